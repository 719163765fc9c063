package drain

import (
	"container/heap"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// task is one pod's eviction, from when it is due until the API server has taken it.
type task struct {
	session *session
	pod     *corev1.Pod
	state   *tracked
	latest  time.Time // when it has to begin; zero is last
	volumes bool      // the pod has volumes, which have to be detached afterwards
	number  uint64    // in the order in which they came; 0 before
	attempt int

	lane func() // gives back the budget's lane, which it has been given; nil where it has none

	timer *time.Timer // set while it waits for its next attempt; nil where only a wake ends that
}

// queue orders the evictions of all nodes by their latest safe start. Tasks that
// wait for their next attempt are timers beside it.
type queue struct {
	mu      sync.Mutex
	ready   *sync.Cond
	heap    tasks
	waiting map[*task]struct{}
	came    uint64 // how many tasks have come
	closed  bool
}

func newQueue() *queue {
	q := &queue{waiting: map[*task]struct{}{}}
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
	if t.number == 0 {
		q.came++
		t.number = q.came
	}
	heap.Push(&q.heap, t)
	q.ready.Signal()
}

// after puts the task back in d, or earlier when wake says so.
func (q *queue) after(t *task, d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.waiting[t] = struct{}{}
	t.timer = time.AfterFunc(d, func() { q.wakeTask(t) })
}

// park keeps the task until something wakes it.
func (q *queue) park(t *task) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.waiting[t] = struct{}{}
	}
}

// unpark puts a parked task back at once, and leaves one that has a time of its own.
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
	if _, ok := q.waiting[t]; !ok {
		return
	}
	delete(q.waiting, t)
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	q.pushLocked(t)
}

// wake puts back up to n of the waiting tasks that the filter picks, the most urgent first.
func (q *queue) wake(n int, filter func(*task) bool) {
	if n <= 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	var matching tasks
	for t := range q.waiting {
		if filter(t) {
			matching = append(matching, t)
		}
	}
	heap.Init(&matching)
	for ; n > 0 && len(matching) > 0; n-- {
		q.wakeLocked(heap.Pop(&matching).(*task))
	}
}

// drop forgets the waiting tasks of a node's drain that has ended.
func (q *queue) drop(s *session) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for t := range q.waiting {
		if t.session == s {
			delete(q.waiting, t)
			if t.timer != nil {
				t.timer.Stop()
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
	return heap.Pop(&q.heap).(*task), true
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for t := range q.waiting {
		if t.timer != nil {
			t.timer.Stop()
		}
	}
	clear(q.waiting)
	q.heap = nil
	q.ready.Broadcast()
}

// tasks is a heap, the earliest to begin first; those without a time come last. Among
// equals go those with volumes, which take longer in the end, and then those that came
// first: of many nodes with one deadline, one is empty after the other, which takes fewer
// plans than to have all of them under way to the end.
type tasks []*task

func (h tasks) Len() int { return len(h) }
func (h tasks) Less(i, j int) bool {
	switch a, b := h[i].latest, h[j].latest; {
	case a.Equal(b):
		if h[i].volumes != h[j].volumes {
			return h[i].volumes
		}
		return h[i].number < h[j].number
	case a.IsZero():
		return false
	case b.IsZero():
		return true
	default:
		return a.Before(b)
	}
}
func (h tasks) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *tasks) Push(x any)   { *h = append(*h, x.(*task)) }
func (h *tasks) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return last
}
