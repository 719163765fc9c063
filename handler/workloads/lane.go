package workloads

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// lane runs tasks side by side, those of one pod one after the other. Of a pod's tasks that wait
// only the newest is run: what was news has been overtaken. It costs nothing while it has none.
type lane struct {
	most int

	mu      sync.Mutex
	running int
	line    []types.UID
	next    map[types.UID]func()   // by pod
	busy    map[types.UID]struct{} // pods with a task under way
}

func newLane(most int) *lane {
	return &lane{most: most, next: map[types.UID]func(){}, busy: map[types.UID]struct{}{}}
}

// do runs the task soon. It never blocks.
func (l *lane) do(pod types.UID, task func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, waits := l.next[pod]
	l.next[pod] = task
	if _, busy := l.busy[pod]; waits || busy {
		return
	}
	l.line = append(l.line, pod)
	if l.running < l.most {
		l.running++
		go l.run()
	}
}

// run runs tasks until none waits.
func (l *lane) run() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.line) > 0 {
		pod := l.line[0]
		l.line = l.line[1:]
		task := l.next[pod]
		delete(l.next, pod)
		l.busy[pod] = struct{}{}
		l.mu.Unlock()
		task()
		l.mu.Lock()
		delete(l.busy, pod)
		if _, more := l.next[pod]; more {
			l.line = append(l.line, pod)
		}
	}
	l.running--
}
