package evidence

import (
	"fmt"
	"slices"
	"time"
)

const (
	// shortBy is how much less than its grace period a pod can have had: a machine that is
	// busy runs nobody to the second.
	shortBy = 2 * time.Second

	// recovery is how long after a fault everything works again: a lease of 6 s runs out and
	// is taken within a second or two, requests are made again within 5 s, and the machine is
	// busy.
	recovery = 15 * time.Second

	// refusedWithin is how long before its end a pod must have been refused by its budget for
	// that to be the reason: it is asked again every few seconds.
	refusedWithin = 12 * time.Second
)

// pods: each pod of a lost node was evicted with its whole grace period, unless there was no
// time for it, or its budget did not allow it in time.
func pods(r Round) (broken []string) {
	for _, l := range r.Losses {
		deadline, _ := l.deadline()
		for _, p := range r.Pods {
			if p.Node != l.Node {
				continue
			}
			switch fate, end := r.fate(l, p); {
			case fate == short && !r.excused(l, p, end.At):
				broken = append(broken, fmt.Sprintf("pod %s/%s on %s had %s of its %s at %s, deadline %s",
					p.Namespace, p.Name, p.Node, *end.Grace, p.Grace, clock(end.At), clock(deadline)))
			case fate == left && !r.excused(l, p, deadline):
				broken = append(broken, fmt.Sprintf("pod %s/%s was left on %s, deadline %s, and nobody refused it",
					p.Namespace, p.Name, p.Node, clock(deadline)))
			}
		}
	}
	return broken
}

// What becomes of a pod.
type fate int

const (
	others fate = iota
	whole
	short
	left
)

// fate is what became of a pod of a lost node, and the request that ended it.
func (r Round) fate(l Loss, p Pod) (fate, Request) {
	deadline, _ := l.deadline()
	end, found := r.endOf(p)
	switch {
	case found && end.ours():
		if end.Grace == nil || *end.Grace >= p.Grace-shortBy {
			return whole, end
		}
		return short, end
	case deadline.IsZero() || !l.Canceled.IsZero():
		return others, end // nobody has to move it
	case found && (l.Gone.IsZero() || end.At.Before(l.Gone)) && end.User != karpenter:
		return others, end // its owner has ended it
	case p.Tolerates && r.recorded(l, l.Announced[0].Sent).Before(p.Bound):
		return others, end // it has come to a node that it knew to be cordoned
	}
	return left, end
}

// karpenter drains by itself what is left on a node that was handed back.
const karpenter = "karpenter"

// endOf is the request that ended the pod, or might have done so.
func (r Round) endOf(p Pod) (Request, bool) {
	for _, q := range r.Requests {
		if q.endsPod() && q.Namespace == p.Namespace && q.Name == p.Name && (q.UID == "" || q.UID == p.UID) && q.perhaps() {
			if !q.succeeded() && p.Gone.IsZero() {
				continue
			}
			return q, true
		}
	}
	return Request{}, false
}

// excused says whether there was a reason for the pod not to leave in time.
func (r Round) excused(l Loss, p Pod, end time.Time) bool {
	if deadline, _ := l.deadline(); deadline.IsZero() {
		return false
	}
	return r.tooLate(l, p) || slices.ContainsFunc(r.Requests, func(q Request) bool {
		return q.ours() && q.Budget && q.Namespace == p.Namespace && q.Name == p.Name && !q.At.After(end) && end.Sub(q.At) < refusedWithin
	})
}

// tooLate: after the notice, and after the last fault, there was not time enough.
func (r Round) tooLate(l Loss, p Pod) bool {
	deadline, able := l.deadline()
	latest := deadline.Add(-r.Margin - p.Grace)
	if p.Bound.After(able) {
		able = p.Bound
	}
	recorded := r.recorded(l, able)
	for _, s := range r.Spans {
		to := s.To
		if s.Queue && recorded.Before(to) {
			to = recorded
		}
		if s.From.Before(latest.Add(shortBy)) && to.After(able) {
			able = to
		}
	}
	return able.Add(recovery).After(latest)
}

// recorded is when the Node had a record that was written after the announcement; its
// deadline if there was none.
func (r Round) recorded(l Loss, announced time.Time) time.Time {
	for _, q := range r.Requests {
		if q.writesRecord(l.Node) && q.At.After(announced) {
			return q.At
		}
	}
	deadline, _ := l.deadline()
	return deadline
}

// Fates counts the pods of lost nodes by what became of them.
type Fates struct {
	Whole  int // had their whole grace period
	Short  int // had less
	Left   int // nobody had moved them when the instance ended
	Others int // ended by their owner, or still there where nothing has ended

	Due int // of Whole, Short and Left: there was time, whatever had failed
}

// Fates of the round's pods.
func (r Round) Fates() (f Fates) {
	for _, l := range r.Losses {
		for _, p := range r.Pods {
			if p.Node != l.Node {
				continue
			}
			fate, _ := r.fate(l, p)
			if deadline, _ := l.deadline(); fate != others && !deadline.IsZero() && !r.tooLate(l, p) {
				f.Due++
			}
			switch fate {
			case whole:
				f.Whole++
			case short:
				f.Short++
			case left:
				f.Left++
			default:
				f.Others++
			}
		}
	}
	return f
}
