package drain

import (
	"container/heap"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// task is one pod's eviction, from when it is due until the API server has accepted it.
type task struct {
	session *session
	pod     *corev1.Pod
	state   *tracked
	latest  time.Time // when it is due, see Decision.due; zero comes last
	ready   bool      // it is in the queue's heap
	attempt int
	asked   time.Time // when its decision was last asked for

	workload types.NamespacedName // the Deployment that it might have to wait for
	surged   bool                 // by this task
	returned bool                 // by this task

	unanswered bool // its last request was not answered in time

	lane func() // gives its lane back; nil if it has none

	timer *time.Timer // set while it waits for its next attempt; nil if only a wake ends the wait
}

// before reports whether the task goes first where not both can.
func (t *task) before(other *task) bool { return inTurn(t.latest, t.pod, other.latest, other.pod) < 0 }

// waitKey is what a waiting task is found by: its Deployment, or, if it has a timer of its
// own, the pod's namespace without a name.
func (t *task) waitKey() types.NamespacedName {
	if t.timer == nil {
		return t.workload
	}
	return types.NamespacedName{Namespace: t.pod.Namespace}
}

// queue orders the evictions of all nodes by their eviction deadline. Tasks that wait for
// their next attempt are timers beside it. A wake looks under one key only: in a burst
// thousands wait, and the pods of its Deployments change all the time.
type queue struct {
	mu      sync.Mutex
	ready   *sync.Cond
	heap    taskHeap
	waiting map[types.NamespacedName]map[*task]struct{} // by waitKey
	closed  bool
}

func newQueue() *queue {
	q := &queue{waiting: map[types.NamespacedName]map[*task]struct{}{}}
	q.ready = sync.NewCond(&q.mu)
	return q
}

func (q *queue) push(t *task) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pushLocked(t)
}

func (q *queue) pushLocked(t *task) {
	if q.closed {
		return
	}
	t.ready = true
	heap.Push(&q.heap, t)
	q.ready.Signal()
}

// after puts the task back in d, or earlier when wake says so.
func (q *queue) after(t *task, d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.endedLocked(t) {
		t.timer = time.AfterFunc(d, func() { q.wakeTask(t) })
		q.waitLocked(t)
	}
}

// park keeps the task until something wakes it.
func (q *queue) park(t *task) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.endedLocked(t) {
		q.waitLocked(t)
	}
}

// endedLocked reports whether the task has nothing more to wait for, see drop.
func (q *queue) endedLocked(t *task) bool { return q.closed || t.session.ctx.Err() != nil }

func (q *queue) waitLocked(t *task) {
	in := q.waiting[t.waitKey()]
	if in == nil {
		in = map[*task]struct{}{}
		q.waiting[t.waitKey()] = in
	}
	in[t] = struct{}{}
}

// leaveLocked ends the task's wait, and reports whether it waited.
func (q *queue) leaveLocked(t *task) bool {
	key := t.waitKey()
	in := q.waiting[key]
	if _, ok := in[t]; !ok {
		return false
	}
	if delete(in, t); len(in) == 0 {
		delete(q.waiting, key)
	}
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	return true
}

// due changes when a task of the queue has to begin, after its deadline has changed. A task
// that is under way learns it from its decision.
func (q *queue) due(t *task, at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, waits := q.waiting[t.waitKey()][t]
	if !t.ready && !waits || t.latest.Equal(at) {
		return
	}
	t.latest = at
	if t.ready {
		heap.Init(&q.heap)
	}
}

// ahead is how many of the tasks that are parked with the task and pass the filter go before it.
func (q *queue) ahead(t *task, filter func(*task) bool) (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for other := range q.waiting[t.workload] {
		if other.before(t) && filter(other) {
			n++
		}
	}
	return n
}

// unpark puts a parked task back at once, and leaves one that has a timer of its own.
func (q *queue) unpark(t *task) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.timer == nil {
		q.wakeLocked(t)
	}
}

// wakeTask puts a waiting task back at once.
func (q *queue) wakeTask(t *task) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wakeLocked(t)
}

func (q *queue) wakeLocked(t *task) {
	if q.leaveLocked(t) {
		q.pushLocked(t)
	}
}

// wake puts back up to n of the tasks that wait under the key and pass the filter, the most
// urgent first.
func (q *queue) wake(n int, key types.NamespacedName, filter func(*task) bool) {
	if n <= 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	var matching taskHeap
	for t := range q.waiting[key] {
		if filter(t) {
			matching = append(matching, t)
		}
	}
	heap.Init(&matching)
	for ; n > 0 && len(matching) > 0; n-- {
		q.wakeLocked(heap.Pop(&matching).(*task))
	}
}

// drop forgets the waiting tasks of a node's drain that has ended. From then on none of them waits
// again.
func (q *queue) drop(s *session) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, in := range q.waiting {
		for t := range in {
			if t.session == s {
				q.leaveLocked(t)
			}
		}
	}
}

// next blocks until a task is due; false means that the queue is closed.
func (q *queue) next() (*task, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.heap) == 0 && !q.closed {
		q.ready.Wait()
	}
	if q.closed {
		return nil, false
	}
	t := heap.Pop(&q.heap).(*task)
	t.ready = false
	return t, true
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, in := range q.waiting {
		for t := range in {
			q.leaveLocked(t)
		}
	}
	q.heap = nil
	q.ready.Broadcast()
}

// reserve asks for what the decision takes of its Deployment, if that has enough for the more
// urgent pods that wait for the same. A pod that goes in any case counts as gone for the others.
func (d *Drainer) reserve(t *task, decision Decision) bool {
	ahead := 0
	switch {
	case !decision.takes:
		ahead = -1
	case decision.Action == SurgeNow || decision.Action == Evict:
		ahead = d.queue.ahead(t, waitsToBeSurged(decision.Action == SurgeNow))
	}
	return d.deployments.reserve(decision, ahead) || !decision.takes
}

// park has a task wait for its Deployment. It would miss what happened there since its
// decision, or that its time has come, so both are looked at once more.
func (d *Drainer) park(t *task, decision Decision) {
	d.queue.park(t)
	if !decision.At.IsZero() && !time.Now().Before(decision.At) {
		d.queue.unpark(t)
		return
	}
	d.deployments.look(decision.workload)
}

// retry puts a task back until the API server wants to be asked again, or until its pod's
// eviction deadline: a busy server says up to 32 s. If that came while the request was under
// way the task is tried at once, as its decision might be another one now.
func (d *Drainer) retry(t *task, decision Decision, answer answer) {
	wait := max(answer.retryAfter, retryIn(t.attempt))
	if t.asked.Before(decision.Latest) {
		wait = min(wait, max(0, time.Until(decision.Latest)))
	}
	d.queue.after(t, wait)
}

// retryIn is when a refused eviction is tried again if nothing wakes it earlier: from half a
// second up to five, with jitter to keep the pods of one budget apart. The watch of the
// budget makes retries prompt; this makes them certain.
func retryIn(attempt int) time.Duration {
	const first, longest = 500 * time.Millisecond, 5 * time.Second
	d := min(first<<min(attempt-1, 10), longest)
	return d/2 + rand.N(d/2)
}

// taskHeap has the most urgent first, see InTurn.
type taskHeap []*task

func (h taskHeap) Len() int           { return len(h) }
func (h taskHeap) Less(i, j int) bool { return h[i].before(h[j]) }
func (h taskHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *taskHeap) Push(x any)        { *h = append(*h, x.(*task)) }
func (h *taskHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return last
}
