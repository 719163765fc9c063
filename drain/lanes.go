package drain

import (
	"container/heap"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
)

const (
	// laneTime is how long one request can keep the others of its lane waiting, whatever the lane allows.
	laneTime = 250 * time.Millisecond
	// laneSlow is how long a request takes that does not wait for the budget's status: an eviction takes
	// milliseconds, so an admission webhook is slow.
	laneSlow = 50 * time.Millisecond
	// laneApart is how far apart requests begin that are under way at the same time.
	laneApart = 10 * time.Millisecond
)

// lanes lets requests go one after the other, the most urgent first, whatever nodes their pods are
// on: those that begin the surges of one Deployment, of which maxSurge go, and the evictions under
// one disruption budget. Each of these writes the budget's status; if two do so at the same time,
// the API server makes one wait for half a second before it tries again, up to twenty times.
// Many at once are slower than one by one, and some time out.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/registry/core/pod/storage/eviction.go
//
// If they take longer than that, as they wait for an admission webhook, as many are under way as the
// budget allows. They begin a moment apart, so that they don't all come to the budget at the same time.
type lanes struct {
	push  func(*task)           // puts a task back into the queue when its turn has come
	allow func(*corev1.Pod) int // how many of those with such a pod can be under way at the same time

	mu    sync.Mutex
	taken map[lane]*turns
}

// lane is that of a Deployment or of a budget.
type lane struct {
	deployment types.NamespacedName
	budget     types.UID
}

// turns are those of a lane.
type turns struct {
	lane
	gathering bool // none is given yet, as more urgent ones can still come
	waiting   taskHeap
	underWay  int
	last      time.Time // when the last of them began, or was given its turn
	pending   bool      // the last was given its turn, and its request has not begun
	slow      bool      // requests take longer than laneSlow
	timer     *time.Timer
}

// turn is a task's time in a lane. A nil one is of no lane.
type turn struct {
	lanes *lanes
	of    *turns
	began time.Time
	over  bool
}

func newLanes(push func(*task), allow func(*corev1.Pod) int) *lanes {
	return &lanes{push: push, allow: allow, taken: map[lane]*turns{}}
}

// enter begins the task's turn if it can have it now. Otherwise the task is put back into the queue when its
// turn has come, the most urgent first, and then has it. So it is if gather says how long others
// that are more urgent can still come.
func (l *lanes) enter(in lane, t *task, gather func() time.Duration) (*turn, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if of := l.taken[in]; of != nil {
		heap.Push(&of.waiting, t)
		l.nextLocked(of)
		return nil, false
	}
	of := &turns{lane: in}
	l.taken[in] = of
	if wait := gather(); wait > 0 {
		heap.Push(&of.waiting, t)
		of.gathering = true
		l.open(of, wait, gather)
		return nil, false
	}
	return l.giveLocked(of), true
}

// The nodes that are lost together are planned one by one. Where not all of their pods can go, those
// that are due first go first, so they have to be known.
const (
	together = 300 * time.Millisecond // from the first to the last of such nodes
	planned  = time.Second            // until a node's first plan is carried out, at most
	sameTime = 100 * time.Millisecond // until all plans are carried out that are due at one time
)

// enterLane begins the task's turn in the lane that the decision needs; nil if it needs none. False: the
// task waits for its turn, see lanes.enter.
func (d *Drainer) enterLane(t *task, decision plan.Decision) (*turn, bool) {
	asked := t.asked
	gathering := func() time.Duration { return min(d.gathering(), planned-time.Since(asked)) }
	if decision.Action == plan.SurgeNow {
		return d.lanes.enter(lane{deployment: decision.Deployment}, t, gathering)
	}
	budgets := d.budgets.of(t.pod)
	if decision.Action != plan.Evict || len(budgets) == 0 {
		return nil, true
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
func (l *lanes) open(of *turns, wait time.Duration, gather func() time.Duration) {
	time.AfterFunc(wait, func() {
		if wait := gather(); wait > 0 {
			l.open(of, wait, gather)
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		of.gathering = false
		l.nextLocked(of)
	})
}

func (l *lanes) giveLocked(of *turns) *turn {
	of.underWay++
	of.last, of.pending = time.Now(), true
	return &turn{lanes: l, of: of}
}

// begin notes that the task's request is made now.
func (t *turn) begin() {
	if t == nil {
		return
	}
	t.lanes.mu.Lock()
	defer t.lanes.mu.Unlock()
	if t.over {
		return
	}
	t.began = time.Now()
	t.of.last, t.of.pending = t.began, false
	t.lanes.nextLocked(t.of)
}

// end lets the next task have its turn. A second call does nothing.
func (t *turn) end() {
	if t == nil {
		return
	}
	t.lanes.mu.Lock()
	defer t.lanes.mu.Unlock()
	if t.over {
		return
	}
	t.over = true
	t.of.underWay--
	if !t.began.IsZero() {
		t.of.slow = time.Since(t.began) > laneSlow
	}
	t.lanes.nextLocked(t.of)
}

// nextLocked gives their turns to those that can have them now.
func (l *lanes) nextLocked(of *turns) {
	if of.gathering {
		return
	}
	if of.timer != nil {
		of.timer.Stop()
		of.timer = nil
	}
	for len(of.waiting) > 0 {
		if wait := of.wait(time.Now(), func() int { return l.allow(of.waiting[0].pod) }); wait > 0 {
			of.timer = time.AfterFunc(wait, func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.nextLocked(of)
			})
			return
		}
		of.slow = of.slow || of.underWay > 0 && !of.pending
		t := heap.Pop(&of.waiting).(*task)
		t.turn = l.giveLocked(of)
		l.push(t)
	}
	if of.underWay == 0 && l.taken[of.lane] == of {
		delete(l.taken, of.lane)
	}
}

// wait is how long until the next turn, if none ends earlier.
func (of *turns) wait(now time.Time, allowed func() int) time.Duration {
	since := now.Sub(of.last)
	switch {
	case of.underWay == 0:
		return 0
	case of.pending, of.budget == "", of.underWay >= allowed():
		return laneTime - since
	case of.slow:
		return laneApart - since
	}
	return laneSlow - since
}
