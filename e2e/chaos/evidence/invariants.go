package evidence

import (
	"fmt"
	"slices"
	"time"
)

// Invariant is one that has to hold after each round. Broken says how it was broken.
type Invariant struct {
	Name   string
	Broken func(Round) []string
}

// Invariants are all, in the order in which they are worth a look.
var Invariants = []Invariant{
	{"no message is deleted before its record is written", deletedBeforeRecorded},
	{"one process drains at a time", drainedByTwo},
	{"every pod has its grace period, unless deadline or budget forbids it", pods},
	{"every pod is ended once, with what time there is, and past its budget no earlier than it must", ends},
	{"no pod is ended on a node that nothing was announced about", endedElsewhere},
	{"pods that ask are notified before they are evicted", notified},
	{"no pod is notified that has nothing to do with it", notifiedInVain},
	{"nothing is left that is not under way", func(r Round) []string { return r.Unsettled }},
	{"one replacement at most for an interruption", replacements},
	{"no request without need", needlessRequests},
	{"the replicas are forbidden nothing that they ask for", forbidden},
	{"no process ends by itself", func(r Round) []string { return r.Unexpected }},
}

// Check returns how the round has broken invariants, by their names.
func Check(r Round) map[string][]string {
	broken := map[string][]string{}
	for _, i := range Invariants {
		if how := i.Broken(r); len(how) > 0 {
			broken[i.Name] = how
		}
	}
	return broken
}

// deletedBeforeRecorded: when a message goes, the Node has, or has had, a record of its kind
// or a stronger one; or it is gone, or handed back.
func deletedBeforeRecorded(r Round) (broken []string) {
	for _, m := range r.Messages {
		if m.Deleted.IsZero() {
			continue
		}
		recorded := slices.ContainsFunc(r.Requests, func(q Request) bool {
			return q.writesRecord(m.Node) && q.At.Before(m.Deleted) &&
				(!m.Kind.Stronger(q.Record.Kind) || q.Record.Phase.Over())
		})
		gone := slices.ContainsFunc(r.Losses, func(l Loss) bool {
			return l.Node == m.Node && !l.Gone.IsZero() && l.Gone.Before(m.Deleted)
		})
		if !recorded && !gone {
			broken = append(broken, fmt.Sprintf("message %s, a %s of node %s, was deleted at %s without a record", m.ID, m.Kind, m.Node, clock(m.Deleted)))
		}
	}
	return broken
}

// writesRecord on the Node, or might have done so.
func (r Request) writesRecord(node string) bool {
	return r.is("nodes", "", "patch") && r.Name == node && r.Record != nil && r.perhaps()
}

// handover is how long after another has taken the lease a process can still send what it had
// begun. It need not notice within that time that it was asleep, so it counts from then.
const handover = 2 * time.Second

// drainedByTwo: what a drain does is done by who holds the lease. Whoever writes the Lease
// with success holds it, until another does.
func drainedByTwo(r Round) (broken []string) {
	type term struct {
		process string
		from    time.Time
	}
	var terms []term
	for _, q := range r.Requests {
		if q.takesLease() {
			if len(terms) == 0 || terms[len(terms)-1].process != q.Process {
				terms = append(terms, term{q.Process, q.At})
			}
		}
	}
	holder := func(at time.Time) (t term) {
		for _, next := range terms {
			if next.from.After(at) {
				break
			}
			t = next
		}
		return t
	}
	for _, q := range r.Requests {
		drains := q.endsPod() || q.is("pods", "", "patch") || q.is("nodeclaims", "", "create", "delete")
		if !q.ours() || !drains {
			continue
		}
		led := holder(q.Sent)
		if led.process == q.Process {
			continue
		}
		excused := !led.from.IsZero() && q.Sent.Sub(led.from) < handover || slices.ContainsFunc(r.Spans, func(s Span) bool {
			awake := s.Replica == "" || s.Paused && s.Replica == q.Replica
			return awake && s.To.After(led.from) && !s.From.After(q.Sent) && q.Sent.Sub(s.To) < handover
		})
		if !excused {
			broken = append(broken, fmt.Sprintf("process %s sent %s %s/%s %s at %s, while %q had the lease since %s",
				q.Process, q.Verb, q.Resource, q.Subresource, q.Name, clock(q.Sent), led.process, clock(led.from)))
		}
	}
	return broken
}

// takesLease, or renews it.
func (r Request) takesLease() bool {
	return r.is("leases", "", "create", "update", "patch") && r.succeeded() && r.ours()
}

// LastLease is the last of the requests by which one of ours took the lease, or renewed it.
func LastLease(requests []Request) []Request {
	for _, q := range slices.Backward(requests) {
		if q.takesLease() {
			return []Request{q}
		}
	}
	return nil
}

// replacements: never two for an instance at once, never more than announcements about it,
// and none for another.
func replacements(r Round) (broken []string) {
	made := map[string][]Claim{}
	for _, c := range r.Claims {
		made[c.Replaces] = append(made[c.Replaces], c)
	}
	for instance, claims := range made {
		i := slices.IndexFunc(r.Losses, func(l Loss) bool { return l.Instance == instance })
		if i < 0 {
			broken = append(broken, fmt.Sprintf("%s replaces %s, of which nothing was announced", claims[0].Name, instance))
			continue
		}
		n, announced := len(slices.DeleteFunc(slices.Clone(claims), Claim.GivenUp)), len(r.Losses[i].Announced)
		if n > announced {
			broken = append(broken, fmt.Sprintf("%d replacements of %s for %d announcements", n, r.Losses[i].Node, announced))
		}
		for _, a := range claims {
			for _, b := range claims {
				if a.Made.Before(b.Made) && (a.Going.IsZero() || b.Made.Before(a.Going)) {
					broken = append(broken, fmt.Sprintf("%s and %s replace %s at the same time", a.Name, b.Name, r.Losses[i].Node))
				}
			}
		}
	}
	slices.Sort(broken)
	return broken
}

// What a round may cost in requests. These are about twice what one costs without faults; what
// a fault breaks off is asked again.
const (
	perStart = 25 // of a process: permissions, lists, watches, leftovers
	perLoss  = 30
	perPod   = 6
	perFault = 15
)

// Allowed is how many requests a round may cost, and Made how many it has. The Lease is not
// counted, nor what a budget refuses: an owner decides that.
func (r Round) Allowed() int {
	return r.Starts*perStart + len(r.Losses)*perLoss + len(r.Pods)*perPod + r.faults()*perFault
}

func (r Round) faults() (n int) {
	for _, s := range r.Spans {
		if !s.Machine {
			n++
		}
	}
	return n
}

// Made is how many of them it has cost.
func (r Round) Made() int {
	n := 0
	for _, q := range r.Requests {
		if q.ours() && q.Resource != "leases" && !q.Budget {
			n++
		}
	}
	return n
}

func needlessRequests(r Round) []string {
	if made, allowed := r.Made(), r.Allowed(); made > allowed {
		return []string{fmt.Sprintf("%d requests, want %d at most for %d losses, %d pods, %d starts, %d faults",
			made, allowed, len(r.Losses), len(r.Pods), r.Starts, r.faults())}
	}
	return nil
}

func forbidden(r Round) (broken []string) {
	for _, q := range r.Requests {
		if q.ours() && q.Forbidden {
			broken = append(broken, fmt.Sprintf("%s %s/%s %s at %s", q.Verb, q.Resource, q.Subresource, q.Name, clock(q.At)))
		}
	}
	return broken
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }
