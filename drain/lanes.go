package drain

import (
	"container/heap"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// laneTime is how long one eviction can keep the others under its budget waiting. It takes
// milliseconds, but a slow admission webhook must not hold up all of them.
const laneTime = 250 * time.Millisecond

// lanes lets the evictions under one disruption budget go one after the other, whatever
// nodes their pods are on. Each writes the budget's status; if two do so at the same time,
// the API server makes one wait for half a second before it tries again, up to twenty times.
// Many at once are slower than one by one, and some time out.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/registry/core/pod/storage/eviction.go
type lanes struct {
	push func(*task) // puts a task back into the queue when its turn has come

	mu    sync.Mutex
	taken map[types.UID]*taskHeap // by budget: who waits
}

func newLanes(push func(*task)) *lanes {
	return &lanes{push: push, taken: map[types.UID]*taskHeap{}}
}

// enter takes the budget's lane and returns what gives it back. If the lane is taken it
// returns nil: the task is put back into the queue when its turn has come, the most urgent
// first, and then has the lane.
func (l *lanes) enter(budget types.UID, t *task) (leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if waiting, ok := l.taken[budget]; ok {
		heap.Push(waiting, t)
		return nil
	}
	l.taken[budget] = &taskHeap{}
	return l.turn(budget)
}

// turn is one task's time in the lane.
func (l *lanes) turn(budget types.UID) (leave func()) {
	once := sync.OnceFunc(func() { l.next(budget) })
	slow := time.AfterFunc(laneTime, once)
	return func() {
		slow.Stop()
		once()
	}
}

func (l *lanes) next(budget types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	waiting := l.taken[budget]
	if waiting.Len() == 0 {
		delete(l.taken, budget)
		return
	}
	t := heap.Pop(waiting).(*task)
	t.lane = l.turn(budget)
	l.push(t)
}
