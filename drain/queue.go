package drain

import (
	"container/heap"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
)

// task is one pod that has to leave, from when its first request is due (to surge it, to evict it or to
// delete it) until the API server has accepted what sends it away.
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

	turn *turn // in its lane, if it was given one

	timer *time.Timer // set while it waits for its next attempt; nil if only a wake ends the wait
	fires time.Time   // when that is
}

// before reports whether the task goes first where not both can.
func (t *task) before(other *task) bool {
	return plan.Precedes(t.latest, t.pod, other.latest, other.pod) < 0
}

// waitKey is what a waiting task is found by: its Deployment, or, if it has a timer of its
// own, the pod's namespace without a name.
func (t *task) waitKey() types.NamespacedName {
	if t.timer == nil {
		return t.workload
	}
	return types.NamespacedName{Namespace: t.pod.Namespace}
}

// queue orders the tasks of all nodes by when they are due, see Decision.due. Tasks that wait for
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
		t.timer, t.fires = time.AfterFunc(d, func() { q.wakeTask(t) }), time.Now().Add(d)
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
// that is under way learns it from its decision. One that waits for its next attempt, and was not due
// yet, waits no longer than until then.
func (q *queue) due(t *task, at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, waits := q.waiting[t.waitKey()][t]
	if !t.ready && !waits || t.latest.Equal(at) {
		return
	}
	now, early := time.Now(), t.latest.IsZero() || time.Now().Before(t.latest)
	t.latest = at
	if t.ready {
		heap.Init(&q.heap)
	}
	if t.timer != nil && early && !at.IsZero() && at.Before(t.fires) {
		t.fires = interruption.Later(at, now)
		t.timer.Reset(t.fires.Sub(now))
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
func (d *Drainer) reserve(t *task, decision plan.Decision) bool {
	ahead := 0
	switch {
	case !decision.Takes:
		ahead = -1
	case decision.Action == plan.SurgeNow || decision.Action == plan.Evict:
		ahead = d.queue.ahead(t, waitsToBeSurged(decision.Action == plan.SurgeNow))
	}
	return d.deployments.reserve(decision, ahead) || !decision.Takes
}

// park has a task wait for its Deployment. It would miss what happened there since its
// decision, or that its time has come, so both are looked at once more.
func (d *Drainer) park(t *task, decision plan.Decision) {
	d.queue.park(t)
	if !decision.At.IsZero() && !time.Now().Before(decision.At) {
		d.queue.unpark(t)
		return
	}
	d.deployments.look(decision.Deployment)
}

// retry puts a task back until the API server is to be asked again.
func (d *Drainer) retry(t *task, decision plan.Decision, answer answer) {
	d.queue.after(t, retryAfter(time.Now(), t.asked, decision.Latest, answer, retryIn(t.attempt)))
}

// lateRetry is the longest wait for another attempt once the pod's eviction deadline has passed. A
// busy API server asks for up to 32 s, which is more than such a pod has.
const lateRetry = 2 * time.Second

// retryAfter is how long an attempt waits that follows one decided at asked: as the API server wants,
// and no less than backoff, but not past the pod's eviction deadline. If that has come while the request
// was under way there is no wait, as the decision might be another one now.
func retryAfter(now, asked, latest time.Time, answer answer, backoff time.Duration) time.Duration {
	wait := max(answer.retryAfter, backoff)
	switch {
	case latest.IsZero():
		return wait
	case asked.Before(latest):
		return min(wait, max(0, latest.Sub(now)))
	case answer.outcome == refused: // the watch of its budget ends the wait earlier
		return max(min(answer.retryAfter, lateRetry), backoff)
	}
	return min(wait, lateRetry/2+backoff%(lateRetry/2)) // as backoff has jitter, so has this
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
