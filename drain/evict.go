package drain

import (
	"container/heap"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"k8s.io/apimachinery/pkg/types"
)

// attempt takes a task one step further, as the plan now says. It reports whether the API
// server was too busy for it.
func (d *Drainer) attempt(t *task) (busy bool) {
	lane := t.lane
	t.lane = nil
	defer func() {
		if lane != nil {
			lane()
		}
	}()
	if !t.session.enter() {
		return false
	}
	defer t.session.leave()
	decision, ok := t.session.decision(t)
	switch {
	case !ok:
		return false
	case decision.Action == SurgeNow && t.surged, decision.Action == Return && t.returned:
		d.queue.park(t) // the node's watch has not shown it yet; when it does, the node is planned again
		return false
	case decision.waits:
		d.park(t, decision)
		return false
	}
	if lane == nil {
		if lane = d.enterLane(t, decision); lane == nil {
			return false
		}
	}
	if !d.reserve(t, decision) {
		d.park(t, decision)
		return false
	}
	if decision.Action == SurgeNow {
		lane() // the others can count without it
	}
	within := answersWithin(time.Now(), decision, t.unanswered)
	did, err := d.request(t.session.going, decision, within)
	answer := classify(err)
	if answer.outcome == unanswered {
		answer.reason = fmt.Sprintf("not answered within %s; an admission webhook might hang", within.Round(time.Second))
	}
	return d.settle(t, decision, did, answer)
}

// tellAfter is the refusal in a row at which people are notified. That a budget lets pods go one
// after the other is its purpose, and not worth an Event.
const tellAfter = 4

// triedAgain are what is logged of requests that are made again.
var triedAgain = map[Action]string{
	SurgeNow: "surge pod",
	Evict:    "evict pod",
	Force:    "delete pod past its disruption budget",
	End:      "end surged pod",
	Return:   "give surged pod back to its ReplicaSet",
}

// settle takes in what has become of a request: the pod is on its way, or the task waits or is tried
// again.
func (d *Drainer) settle(t *task, decision Decision, did Action, answer answer) (busy bool) {
	s, hangs := t.session, answer.outcome == unanswered && t.unanswered
	t.unanswered = answer.outcome == unanswered
	log := d.opts.Logger.With().Str("node", s.node).Str("pod", t.pod.Namespace+"/"+t.pod.Name).Logger()
	if !answer.settled() {
		t.attempt++
		d.deployments.settle(decision)
	}
	switch {
	case answer.settled() && did == SurgeNow:
		t.surged = true
		log.Debug().Msg("pod surged: its replacement pod is made")
		d.park(t, decision) // until the replacement pod is available
	case answer.settled() && did == Return:
		t.surged, t.returned = false, true
		s.fix(t.state, decision.Reason)
		if decision.takes {
			d.deployments.giveUp(decision.workload, decision.Reason)
		}
		log.Debug().Str("reason", decision.Reason).Msg("surged pod given back to its ReplicaSet")
		d.queue.park(t) // until the node's watch shows it
	case answer.settled():
		by := evicted
		switch {
		case answer.outcome == podGone:
		case did == Force:
			by = forceDeleted
		case decision.Grace != nil:
			by = cutShort
		}
		refusal := s.sentAway(t.state, by)
		if did == End {
			log.Info().Str("reason", decision.Reason).Msg("surged pod ended, as its ReplicaSet would have")
		}
		if by == forceDeleted {
			log.Warn().Str("reason", refusal).Msg("pod deleted past its disruption budget")
			d.opts.Events.EvictionForced(s.node, t.pod, refusal)
		}
	case did == SurgeNow && (answer.outcome == refused || hangs): // by admission: the pod is held, like any other
		level := zerolog.WarnLevel
		if s.fix(t.state, answer.reason) {
			level = zerolog.DebugLevel // it was said about another pod
		}
		s.note(func() { t.state.task = nil })
		log.WithLevel(level).Str("reason", answer.reason).Msg("surge pod; it is held instead")
		d.opts.Notify(s.node)
	case did == Evict && (answer.outcome == refused || answer.outcome == unanswered):
		first, blocked := s.refused(t.state, answer, t.unanswered || t.attempt >= tellAfter)
		log.Debug().Str("reason", answer.reason).Int("attempt", t.attempt).Msg("eviction refused")
		d.retry(t, decision, answer)
		if blocked {
			d.opts.Events.EvictionBlocked(s.node, t.pod, answer.reason)
		}
		if first || blocked {
			d.opts.Notify(s.node)
		}
	default: // the answer says nothing about the pod
		s.note(func() { t.state.failure = answer.reason })
		log.Debug().Str("reason", answer.reason).Int("attempt", t.attempt).Msg(triedAgain[did])
		d.retry(t, decision, answer)
	}
	return answer.busy()
}

// laneTime is how long one eviction can keep the others under its budget waiting. It takes
// milliseconds, but a slow admission webhook must not hold up all of them.
const laneTime = 250 * time.Millisecond

// lanes lets requests go one after the other, the most urgent first, whatever nodes their pods are
// on: those that begin the surges of one Deployment, of which maxSurge go, and the evictions under
// one disruption budget. Each of these writes the budget's status; if two do so at the same time,
// the API server makes one wait for half a second before it tries again, up to twenty times.
// Many at once are slower than one by one, and some time out.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/registry/core/pod/storage/eviction.go
type lanes struct {
	push func(*task) // puts a task back into the queue when its turn has come

	mu    sync.Mutex
	taken map[lane]*taskHeap // who waits
}

// lane is that of a Deployment or of a budget.
type lane struct {
	deployment types.NamespacedName
	budget     types.UID
}

func newLanes(push func(*task)) *lanes {
	return &lanes{push: push, taken: map[lane]*taskHeap{}}
}

// enter takes the lane and returns what gives it back. If the lane is taken it returns nil: the
// task is put back into the queue when its turn has come, the most urgent first, and then has the
// lane. So it is if gather says how long others that are more urgent can still come.
func (l *lanes) enter(in lane, t *task, gather func() time.Duration) (leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if waiting, ok := l.taken[in]; ok {
		heap.Push(waiting, t)
		return nil
	}
	l.taken[in] = &taskHeap{}
	if wait := gather(); wait > 0 {
		heap.Push(l.taken[in], t)
		l.open(in, wait, gather)
		return nil
	}
	return l.turn(in)
}

// The nodes that are lost together are planned one by one. Where not all of their pods can go, those
// that are due first go first, so they have to be known.
const (
	together = 300 * time.Millisecond // from the first to the last of such nodes
	planned  = time.Second            // until a node's first plan is carried out, at most
	sameTime = 100 * time.Millisecond // until all plans are carried out that are due at one time
)

// enterLane takes the lane that the decision needs, if any, and returns what gives it back; nil if
// the task waits for it, see lanes.enter.
func (d *Drainer) enterLane(t *task, decision Decision) (leave func()) {
	asked := t.asked
	gathering := func() time.Duration { return min(d.gathering(), planned-time.Since(asked)) }
	if decision.Action == SurgeNow {
		return d.lanes.enter(lane{deployment: decision.workload}, t, gathering)
	}
	budgets := d.budgets.of(t.pod)
	if decision.Action != Evict || len(budgets) == 0 {
		return func() {}
	}
	budget := budgets[0]
	return d.lanes.enter(lane{budget: budget.UID}, t, func() time.Duration {
		if t.attempt > 0 || budget.Status.DisruptionsAllowed >= budget.Status.ExpectedPods { // it was woken in its turn, or all can go
			return 0
		}
		return max(sameTime-time.Since(asked), gathering())
	})
}

// gathering is how long to wait for nodes whose drain has just begun and that have not been planned;
// zero or less if there is none.
func (d *Drainer) gathering() (wait time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Since(d.newest) >= planned {
		return 0
	}
	for _, s := range d.sessions {
		began := time.Since(s.began)
		if _, ok := s.interruption(); !ok && began < planned {
			return sameTime
		}
		wait = max(wait, together-began)
	}
	return wait
}

// open begins the turns once nobody else is to come.
func (l *lanes) open(in lane, wait time.Duration, gather func() time.Duration) {
	time.AfterFunc(wait, func() {
		if wait := gather(); wait > 0 {
			l.open(in, wait, gather)
			return
		}
		l.next(in)
	})
}

// turn is one task's time in the lane.
func (l *lanes) turn(in lane) (leave func()) {
	once := sync.OnceFunc(func() { l.next(in) })
	slow := time.AfterFunc(laneTime, once)
	return func() {
		slow.Stop()
		once()
	}
}

func (l *lanes) next(in lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	waiting := l.taken[in]
	if waiting.Len() == 0 {
		delete(l.taken, in)
		return
	}
	t := heap.Pop(waiting).(*task)
	t.lane = l.turn(in)
	l.push(t)
}
