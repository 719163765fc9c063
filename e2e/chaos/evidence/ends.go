package evidence

import (
	"fmt"
	"slices"
	"time"
)

// ends: however a pod was ended, it was given what time there was, once, and past its budget
// no earlier than it had to be.
func ends(r Round) (broken []string) {
	for _, l := range r.Losses {
		for _, p := range r.Pods {
			if p.Node != l.Node {
				continue
			}
			var taken *Request // the first that was granted
			for _, q := range r.Requests {
				if !q.ours() || !q.endsPod() || q.UID != p.UID {
					continue
				}
				if how := r.wrongly(l, p, q, taken); how != "" {
					broken = append(broken, fmt.Sprintf("pod %s/%s on %s: %s at %s %s", p.Namespace, p.Name, p.Node, q.Verb+" "+q.Subresource, clock(q.At), how))
				}
				if q.succeeded() && taken == nil {
					taken = &q
				}
			}
		}
	}
	return broken
}

// wrongly says what is wrong with a request that ends a pod, given the one that did before.
func (r Round) wrongly(l Loss, p Pod, q Request, taken *Request) string {
	if taken != nil {
		if q.succeeded() && q.Process == taken.Process && !r.disturbed(taken.At, q.At) {
			return fmt.Sprintf("again, after %s", clock(taken.At))
		}
		return "" // an answer that was lost, or another process, which cannot know
	}
	if !q.succeeded() {
		return ""
	}
	grace := p.Grace
	if q.Grace != nil {
		grace = *q.Grace
	}
	deadline, _ := l.deadline()
	if deadline.IsZero() {
		return ""
	}
	left := deadline.Sub(q.Sent)
	switch {
	case grace < min(p.Grace, left-r.Margin)-shortBy:
		return fmt.Sprintf("with a grace period of %s, and %s of the %s that it asks for were left", grace, left.Round(time.Second/10), p.Grace)
	case grace > max(left, time.Second)+shortBy && !r.disturbed(q.Sent, q.At) && r.announced(l, q.Sent):
		return fmt.Sprintf("with a grace period of %s, and %s were left", grace, left.Round(time.Second/10))
	case q.Subresource == "" && left > r.Margin+p.Grace+shortBy && !r.brokenOff(p, q) && !r.surplus(p, q):
		return fmt.Sprintf("past its budget, and %s were left", left.Round(time.Second/10))
	}
	return ""
}

// disturbed: something failed in between, so whoever asked might not know what came of it.
func (r Round) disturbed(from, to time.Time) bool {
	return slices.ContainsFunc(r.Spans, func(s Span) bool { return s.From.Before(to) && from.Before(s.To) })
}

// announced: the deadline was known well before.
func (r Round) announced(l Loss, at time.Time) bool {
	_, when := l.deadline()
	return r.recorded(l, when).Add(shortBy).Before(at)
}

// brokenOff: an eviction of the pod came to no answer that its sender has heard. Another then
// finishes what it may have begun.
func (r Round) brokenOff(p Pod, before Request) bool {
	return slices.ContainsFunc(r.Requests, func(q Request) bool {
		return q.Subresource == "eviction" && q.UID == p.UID && q.At.Before(before.At) && !q.Budget
	})
}

// surplus: a surged pod with all of its grace period is one more than its Deployment asks for,
// and its ReplicaSet would have ended it.
func (r Round) surplus(p Pod, end Request) bool {
	return end.Grace == nil && slices.ContainsFunc(r.Requests, func(q Request) bool {
		return q.ours() && q.is("pods", "", "patch") && q.Namespace == p.Namespace && q.Name == p.Name && q.At.Before(end.At)
	})
}
