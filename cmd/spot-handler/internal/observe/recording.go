// Package observe follows interruptions as the API server shows them, and keeps a recording: what
// became of each node and each of its pods, and how many pods of their workloads were ready at
// every moment.
//
// An [Observer] takes what watches show, each change singly and in order, so it does not miss even
// a moment with too few ready pods. It makes no call itself: [Cluster.Watch] does, with the
// permissions of the caller; it changes nothing.
package observe

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"spot-handler/cmd/spot-handler/internal/plan"
	"spot-handler/cmd/spot-handler/internal/status"
	"spot-handler/handler/interruption"
)

// Recording is what was seen, as plain data. Times are those of this machine's clock, at which a
// watch showed the change, except where EC2 or the API server says when.
type Recording struct {
	From      time.Time  `json:"from"`
	To        time.Time  `json:"to"`
	Nodes     []Node     `json:"nodes"`
	Workloads []Workload `json:"workloads,omitempty"`
	Budgets   []Budget   `json:"budgets,omitempty"`
	// Unread says what could not be watched, and why.
	Unread []string `json:"unread,omitempty"`
}

// Node is one interruption of a node.
type Node struct {
	Name   string            `json:"name"`
	Pool   string            `json:"pool,omitempty"`
	Kind   interruption.Kind `json:"kind"`
	Action string            `json:"action,omitempty"`
	// Rehearsal: an operator has made it up, and EC2 has not said anything since.
	Rehearsal bool       `json:"rehearsal,omitempty"`
	Noticed   time.Time  `json:"noticed"`            // when EC2 announced it
	Deadline  *time.Time `json:"deadline,omitempty"` // when EC2 acts

	Phases      []PhaseAt    `json:"phases"`
	Cordoned    *time.Time   `json:"cordoned,omitempty"`
	Replacement *Replacement `json:"replacement,omitempty"`
	Drained     *time.Time   `json:"drained,omitempty"` // the last pod that had to leave had left
	// Ended is when the drain ended by the record, and SlackSeconds what was left until the deadline.
	Ended        *time.Time `json:"ended,omitempty"`
	SlackSeconds *float64   `json:"slackSeconds,omitempty"`
	// End is what became of the node, at EndAt; empty while that is open.
	End   End        `json:"end,omitempty"`
	EndAt *time.Time `json:"endAt,omitempty"`

	Pods []Pod `json:"pods,omitempty"`
	// Counted are the pods by the record, which the daemon wrote.
	Counted *interruption.Pods `json:"counted,omitempty"`
}

// PhaseAt is a phase of the record, and when it began.
type PhaseAt struct {
	Phase interruption.Phase `json:"phase"`
	At    time.Time          `json:"at"`
}

// End is what becomes of a node.
type End string

// The ends.
const (
	Gone     End = "gone"     // the Node was deleted
	Restored End = "restored" // nothing stands against it any longer
)

// Replacement is the capacity that was requested in the node's place; the last one, if there were
// several.
type Replacement struct {
	interruption.Replacement
	Requested time.Time  `json:"requested"`
	Launched  *time.Time `json:"launched,omitempty"` // it had an instance; known of Karpenter only
	Ready     *time.Time `json:"ready,omitempty"`
}

// Pod is the life of a pod that had to leave, from the notice.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// Workload is what made it, such as deployment/web; empty if nothing did.
	Workload string `json:"workload,omitempty"`

	GraceSeconds int64  `json:"graceSeconds"`           // that it asks for
	GivenSeconds *int64 `json:"givenSeconds,omitempty"` // that it was given

	Steps   []Step     `json:"steps"`
	Surged  *time.Time `json:"surged,omitempty"` // its replacement pod was asked for
	Evicted *time.Time `json:"evicted,omitempty"`
	Gone    *time.Time `json:"gone,omitempty"`
	Refusal *Refusal   `json:"refusal,omitempty"`
	// Outcome is one of those that the record counts; empty while it is open.
	Outcome plan.Outcome `json:"outcome,omitempty"`
}

// Step is a part of a pod's life.
type Step struct {
	State status.State `json:"state"`
	For   string       `json:"for,omitempty"` // what it waited for
	From  time.Time    `json:"from"`
	To    time.Time    `json:"to"`
}

// Refusal says that the API server refused a pod's eviction.
type Refusal struct {
	From   time.Time `json:"from"`
	Times  int       `json:"times"` // that there were Events of
	Reason string    `json:"reason"`
}

// Workload is a controller with pods on the nodes.
type Workload struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`    // such as deployment/web
	Samples   []Sample `json:"samples"` // at least one
	// Fewest is the fewest ready pods, and Missing how many that was short of what had been
	// asked for and had been there: 0 is no dip.
	Fewest  int `json:"fewest"`
	Missing int `json:"missing"`
	// UnavailableSeconds adds up how long each pod was missing.
	UnavailableSeconds float64 `json:"unavailablePodSeconds"`
}

// Sample says how many pods of a workload are ready from a moment on.
type Sample struct {
	At    time.Time `json:"at"`
	Ready int       `json:"ready"`
	// Desired is how many the workload asks for.
	Desired int `json:"desired"`
}

// Budget is a disruption budget of pods that had to leave.
type Budget struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Workloads []string `json:"workloads,omitempty"`
	// Needed is how many healthy pods it asked for at the most, Fewest how many it had at the
	// least, by its own status.
	Needed int `json:"needed"`
	Fewest int `json:"fewest"`
}

// Happening is something that a recording shows, in a clause.
type Happening struct {
	At   time.Time
	Node string
	What string // "node", "replacement" or the pod's namespace/name
	Text string
}

// Begin is when the first notice was; all other times count from it.
func (r Recording) Begin() time.Time {
	begin := r.To
	for _, n := range r.Nodes {
		begin = interruption.Earlier(begin, n.Noticed)
	}
	return begin
}

// Happenings are what happened, in order of time.
func (r Recording) Happenings() []Happening {
	var list []Happening
	for _, n := range r.Nodes {
		list = append(list, n.happenings()...)
	}
	slices.SortStableFunc(list, func(a, b Happening) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Node, b.Node)) })
	return list
}

func (n Node) happenings() []Happening {
	var list []Happening
	add := func(at *time.Time, what, format string, args ...any) {
		if at != nil {
			list = append(list, Happening{*at, n.Name, what, fmt.Sprintf(format, args...)})
		}
	}
	add(&n.Noticed, "node", "noticed: %s", n.Kind)
	add(n.Cordoned, "node", "cordoned")
	for _, p := range n.Phases {
		add(&p.At, "node", "%s", p.Phase)
	}
	if r := n.Replacement; r != nil {
		if r.Name == "" {
			add(&r.Requested, "replacement", "none: %s", r.Reason)
		} else {
			add(&r.Requested, "replacement", "%s requested from pool %s", r.Name, r.Pool)
		}
		add(r.Launched, "replacement", "%s launched", r.Name)
		add(r.Ready, "replacement", "%s ready for pods", r.Name)
	}
	for _, p := range n.Pods {
		name := p.Namespace + "/" + p.Name
		add(p.Surged, name, "surged: its replacement pod comes first")
		if p.Refusal != nil {
			add(&p.Refusal.From, name, "refused: %s", p.Refusal.Reason)
		}
		if p.GivenSeconds != nil {
			add(p.Evicted, name, "evicted, with %d of %d s to end", *p.GivenSeconds, p.GraceSeconds)
		}
		add(p.Gone, name, "gone")
	}
	left := ""
	if n.Deadline != nil && n.Drained != nil {
		left = fmt.Sprintf(", %.1f s before its deadline", n.Deadline.Sub(*n.Drained).Seconds())
	}
	add(n.Drained, "node", "every pod has left%s", left)
	switch n.End {
	case Gone:
		add(n.EndAt, "node", "the Node is gone")
	case Restored:
		add(n.EndAt, "node", "back in service: nothing stands against it")
	}
	return list
}

// Line shows a happening of the recording, with its time in seconds since the begin, and its node if
// there are several.
func (r Recording) Line(h Happening) string {
	what := h.What
	if len(r.Nodes) > 1 {
		what = h.Node + "  " + what
	}
	return fmt.Sprintf("%7.1f s  %s  %s", h.At.Sub(r.Begin()).Seconds(), what, h.Text)
}

const (
	// settled is how long after the drain a node is watched that nobody terminates or puts back into
	// service, and workloads that do not have their pods back.
	settled = 30 * time.Second
	// terminating is how long one is watched whose NodeClaim was deleted, or instance terminated:
	// Karpenter takes some seconds, an Auto Scaling group until a hook ends.
	terminating = 2 * time.Minute
)

func (r Recording) over() bool {
	var last time.Time
	for _, n := range r.Nodes {
		ended := n.EndAt
		if ended == nil {
			wait := settled
			if n.Phase() == interruption.Released {
				wait = terminating
			}
			if ended = n.over(); ended == nil || r.To.Before(ended.Add(wait)) {
				return false
			}
		}
		last = interruption.Later(last, *ended)
	}
	return len(r.Nodes) > 0 && (r.recovered() || r.To.After(last.Add(settled)))
}

// over is when the end of the drain was seen, by the same clock as everything else; nil if it goes
// on.
func (n Node) over() *time.Time {
	for _, p := range n.Phases {
		if p.Phase.Over() {
			return &p.At
		}
	}
	return nil
}

// Phase is the last phase that was seen.
func (n Node) Phase() interruption.Phase {
	if len(n.Phases) == 0 {
		return ""
	}
	return n.Phases[len(n.Phases)-1].Phase
}

// recovered reports whether no workload misses a pod now.
func (r Recording) recovered() bool {
	return !slices.ContainsFunc(r.Workloads, func(w Workload) bool { return w.Samples[len(w.Samples)-1].Missing(w.Samples[0].Ready) > 0 })
}

// Missing is how many pods are missing that were there before.
func (s Sample) Missing(before int) int { return max(0, min(s.Desired, before)-s.Ready) }
