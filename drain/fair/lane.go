// Package fair runs the tasks of many tenants side by side, so tasks that hang delay no tenant but
// their own.
package fair

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Task is something to do for a tenant.
type Task struct {
	// Tenant is whose task it is, usually a namespace.
	Tenant string
	// Who is what the task is for, such as a pod. Its tasks run one after the other.
	Who types.UID
	// What says what kind of task it is: of those of the same kind that wait only the newest is run,
	// in the place of the first. One that Ends takes the place of all that wait.
	What string
	Ends bool

	Run func()
}

// Lane runs tasks, each in one of its places. Tenants take turns. A tenant with twice as many
// places as would be left gets no further one: one tenant alone can have a third of them, two can
// have a fifth more each, and so on. So there are places for those that have none yet.
//
// A Lane is safe for concurrent use, and costs nothing while it has no task.
type Lane struct {
	mu      sync.Mutex
	free    int // places
	room    int // for tasks that wait
	tenants map[string]*tenant
	turns   []*tenant // those with tasks that can run, the next first

	running sync.WaitGroup
}

type tenant struct {
	name    string
	running int
	waiting int
	line    []*queue // those with a task that can run
	queues  map[types.UID]*queue
}

// queue holds the tasks of one Who.
type queue struct {
	busy  bool
	tasks []waiting
}

type waiting struct {
	Task
	ctx context.Context
}

// NewLane returns a Lane with that many places, and with room for so many tasks that wait, which
// tenants share as they do the places.
func NewLane(places, room int) *Lane {
	return &Lane{free: places, room: room, tenants: map[string]*tenant{}}
}

// Do runs the task soon, unless ctx ends before. It never blocks. It returns false if too many of
// the tenant's tasks wait already.
func (l *Lane) Do(ctx context.Context, task Task) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.tenants[task.Tenant]
	if of == nil {
		of = &tenant{name: task.Tenant, queues: map[types.UID]*queue{}}
		l.tenants[task.Tenant] = of
	}
	defer l.dropLocked(of)
	q := of.queues[task.Who]
	if q == nil {
		q = &queue{}
	}
	before := len(q.tasks)
	i := slices.IndexFunc(q.tasks, func(w waiting) bool { return task.Ends || w.What == task.What })
	switch {
	case i >= 0:
		q.tasks[i] = waiting{task, ctx}
		if task.Ends {
			q.tasks = slices.Delete(q.tasks, i+1, len(q.tasks))
		}
	case 2*of.waiting >= l.room:
		return false
	default:
		q.tasks = append(q.tasks, waiting{task, ctx})
	}
	of.waiting += len(q.tasks) - before
	l.room -= len(q.tasks) - before
	of.queues[task.Who] = q
	if before == 0 && !q.busy {
		l.lineUpLocked(of, q)
	}
	l.startLocked()
	return true
}

// Wait returns when no task runs or waits.
func (l *Lane) Wait() { l.running.Wait() }

func (l *Lane) lineUpLocked(of *tenant, q *queue) {
	if of.line = append(of.line, q); len(of.line) == 1 {
		l.turns = append(l.turns, of)
	}
}

// startLocked gives free places to those whose turn it is.
func (l *Lane) startLocked() {
	for l.free > 0 { // with none free, thousands of tenants would be searched for nothing
		i := slices.IndexFunc(l.turns, func(t *tenant) bool { return 2*t.running < l.free })
		if i < 0 {
			return
		}
		of := l.turns[i]
		q := of.line[0]
		task := q.tasks[0]
		q.busy, q.tasks = true, slices.Delete(q.tasks, 0, 1)
		l.turns = slices.Delete(l.turns, i, i+1)
		if of.line = of.line[1:]; len(of.line) > 0 {
			l.turns = append(l.turns, of)
		}
		of.waiting--
		l.room++
		of.running++
		l.free--
		l.running.Go(func() { l.run(of, q, task) })
	}
}

func (l *Lane) run(of *tenant, q *queue, task waiting) {
	if task.ctx.Err() == nil {
		task.Run()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	of.running--
	l.free++
	if q.busy = false; len(q.tasks) > 0 {
		l.lineUpLocked(of, q)
	} else {
		delete(of.queues, task.Who)
	}
	l.startLocked()
	l.dropLocked(of)
}

// dropLocked forgets a tenant without a task.
func (l *Lane) dropLocked(of *tenant) {
	if len(of.queues) == 0 {
		delete(l.tenants, of.name)
	}
}
