package plan

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// tellAfter is the refusal in a row at which people are notified. That a budget lets pods go one
// after the other is its purpose, and not worth an Event.
const tellAfter = 4

// Replied is what has become of a request. What was done can differ from what was asked for: a pod that was
// to be given back can have been ended instead.
type Replied struct {
	Request Request
	Did     Action
	Reply   Reply
}

func (e Replied) apply(f *Fleet) {
	r, t := e.Request, e.Request.of
	f.limiter.end(f.now, r.seat, e.Reply.busy())
	if e.Reply.Settled() {
		f.learnPace(f.now.Sub(r.began))
	}
	if g := r.lane; g != nil {
		g.lane.end(f.now, f.now.Sub(r.began))
		f.tidy(g)
	}
	delete(f.underWay, t.pod.UID)
	t.node.underWay--
	if !e.Reply.Settled() {
		f.release(r.Decision)
	}
	if f.nodes[r.Node] != t.node { // its drain has ended
		if e.Reply.Settled() && e.Did != SurgeNow && e.Did != Return {
			f.remember(t.pod.UID, evicted)
		}
		if again := f.trackedOn(r.Node, t.pod.UID); again != nil {
			again.sent = max(again.sent, f.sent[t.pod.UID])
			f.place(again)
		}
		return
	}
	f.settle(t, e)
	f.place(t)
	f.putBack(t.node)
}

// learnPace takes in how long a request took. The pace is a moving average in which each request weighs a sixteenth.
func (f *Fleet) learnPace(took time.Duration) {
	if f.took == 0 {
		f.took = took
	}
	f.took += (took - f.took) / 16
}

// trackedOn is a pod that has to leave a node, or nil.
func (f *Fleet) trackedOn(node string, pod types.UID) *tracked {
	if n := f.nodes[node]; n != nil {
		return n.tracked[pod]
	}
	return nil
}

// settle takes in what has become of a request: the pod is on its way, or waits or is tried again.
func (f *Fleet) settle(t *tracked, e Replied) {
	n, d, reply := t.node, e.Request.Decision, e.Reply
	hangs := reply.Outcome == Unanswered && t.unanswered
	t.unanswered = reply.Outcome == Unanswered
	if !reply.Settled() {
		t.attempt++
	}
	report := Report{Node: n.name, Pod: t.pod, Deployment: d.Deployment, Action: e.Did, Attempt: t.attempt, Reason: reply.Reason}
	switch {
	case reply.Settled() && e.Did == SurgeNow:
		t.surged = true
		report.Kind = Surged
	case reply.Settled() && e.Did == Return:
		t.surged, t.returned = false, true
		n.fixed[t.pod.UID] = d.Reason
		if d.Takes {
			f.giveUp(d)
		}
		report.Kind, report.Reason = Returned, d.Reason
	case reply.Settled():
		by, refusal := evicted, t.refusal
		switch {
		case reply.Outcome == PodGone:
		case e.Did == Force:
			by = forceDeleted
		case d.Grace != nil:
			by = cutShort
		}
		t.send(by)
		switch {
		case e.Did == End:
			report.Kind, report.Reason = Ended, d.Reason
		case by == forceDeleted:
			report.Kind, report.Reason = EvictionForced, refusal
		default:
			return
		}
	case e.Did == SurgeNow && (t.denied(reply) || hangs): // by admission: the pod is held, like any other
		report.Kind = NotSurged
		if len(n.fixed) > 0 {
			report.Kind = NotSurgedEither
		}
		n.fixed[t.pod.UID] = reply.Reason
		f.plans.sooner(n, f.now)
	case e.Did == Evict && (reply.Outcome == Refused || reply.Outcome == Unanswered):
		first, blocked := t.refusal == "", t.unanswered || t.attempt >= tellAfter
		report.Kind = TriedAgain
		if blocked && !t.blocked {
			f.report(Report{Kind: EvictionBlocked, Node: n.name, Pod: t.pod, Reason: reply.Reason})
		}
		if first || blocked && !t.blocked {
			f.plans.sooner(n, f.now)
		}
		t.refusal, t.ofBudget, t.blocked = reply.Reason, reply.OfBudget, blocked
		if t.woken {
			t.woken, t.misledAt = false, f.now
		}
		n.refused[t.pod.UID] = true
		f.retry(t, e)
	default: // the answer says nothing about the pod
		t.failure = reply.Reason
		report.Kind = TriedAgain
		f.retry(t, e)
	}
	f.report(report)
}

// surgeTries is how often a surge is tried if the answer is an internal error. That can be etcd's trouble, which passes,
// or an admission webhook that can't be reached.
const surgeTries = 3

// denied reports whether the pod can't be surged, by the reply to the latest of its attempts.
func (t *tracked) denied(reply Reply) bool {
	return reply.Outcome == Refused && (!reply.Internal || t.attempt >= surgeTries)
}

// shownWithin is how long a request that was not answered is left alone: it might have been granted all the same,
// and the pod's watch shows that, if late, as the API server has too much to do.
const shownWithin = 2 * time.Second

// retry has the request made again in a while.
func (f *Fleet) retry(t *tracked, e Replied) {
	backoff := retryIn(t.attempt, f.random)
	if e.Reply.Outcome == Unanswered {
		backoff = max(backoff, shownWithin)
	}
	after := retryAfter(f.now, e.Request.began, e.Request.Latest, e.Reply, backoff)
	f.wait(t, f.now.Add(after))
}
