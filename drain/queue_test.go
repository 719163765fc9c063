package drain

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// running is the drain of tasks that need none.
var running = &session{ctx: context.Background()}

func TestQueueGivesTheMostUrgentFirst(t *testing.T) {
	q := newQueue()
	for _, latest := range []time.Duration{30, 0, 10, 20} {
		at := now.Add(latest * time.Second)
		if latest == 0 {
			at = time.Time{} // no deadline: last
		}
		q.push(&task{pod: pod("p"), latest: at})
	}
	for _, want := range []time.Duration{10, 20, 30} {
		got, ok := q.next()
		if !ok || got.latest.Sub(now) != want*time.Second {
			t.Fatalf("got %v, want %v s", got.latest.Sub(now), want)
		}
	}
	if got, ok := q.next(); !ok || !got.latest.IsZero() {
		t.Fatalf("got %v, want the task without a deadline", got.latest)
	}
}

func TestQueueWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		start := time.Now()
		q.after(&task{pod: pod("a"), session: running}, 3*time.Second)
		if got, ok := q.next(); !ok || got.pod.Name != "a" || time.Since(start) != 3*time.Second {
			t.Fatalf("got %v after %s, want a after 3s", got.pod.Name, time.Since(start))
		}
	})
}

func TestQueueWakesWhatABudgetAllows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		for i, name := range []string{"late", "early", "other"} {
			p := pod(name)
			p.Labels = map[string]string{"app": "web"}
			if name == "other" {
				p.Labels["app"] = "db"
			}
			q.after(&task{pod: p, session: running, latest: now.Add(-time.Duration(i) * time.Minute)}, time.Hour)
		}
		start := time.Now()
		q.wake(1, types.NamespacedName{Namespace: "shop"}, func(t *task) bool { return t.pod.Labels["app"] == "web" })
		if got, _ := q.next(); got.pod.Name != "early" || time.Since(start) != 0 {
			t.Fatalf("woke %s after %s, want early at once", got.pod.Name, time.Since(start))
		}
		if got, _ := q.next(); time.Since(start) != time.Hour {
			t.Fatalf("%s came after %s, want the timer's hour", got.pod.Name, time.Since(start))
		}
		q.close()
	})
}

// A parked task has no time of its own: only a wake ends its wait, and a task that has one
// is not disturbed by it.
func TestQueueParks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		parked, timed := &task{pod: pod("parked"), session: running}, &task{pod: pod("timed"), session: running}
		q.park(parked)
		q.after(timed, time.Hour)
		start := time.Now()
		q.unpark(parked)
		q.unpark(timed)
		if got, _ := q.next(); got != parked || time.Since(start) != 0 {
			t.Fatalf("%s came after %s, want the parked task at once", got.pod.Name, time.Since(start))
		}
		if got, _ := q.next(); got != timed || time.Since(start) != time.Hour {
			t.Fatalf("%s came after %s, want the other one after an hour", got.pod.Name, time.Since(start))
		}
		q.close()
	})
}

func TestQueueDropsTheTasksOfADrainThatHasEnded(t *testing.T) {
	q := newQueue()
	ctx, end := context.WithCancel(t.Context())
	ended := &session{ctx: ctx}
	q.park(&task{pod: pod("a"), session: ended})
	q.after(&task{pod: pod("b"), session: ended}, time.Hour)
	q.park(&task{pod: pod("c"), session: running})
	end()
	q.drop(ended)
	q.park(&task{pod: pod("d"), session: ended})
	q.after(&task{pod: pod("e"), session: ended}, time.Hour)
	if n := waiting(q); n != 1 {
		t.Fatalf("%d tasks wait, want only the other drain's", n)
	}
	q.close()
}

// Among tasks of the same time those go first whose pods have volumes.
func TestQueueGivesVolumesFirst(t *testing.T) {
	q := newQueue()
	q.push(&task{pod: pod("plain"), latest: now})
	q.push(&task{pod: pod("volumes", withClaim("data")), latest: now})
	if got, _ := q.next(); got.pod.Name != "volumes" {
		t.Fatalf("%s first, want the pod with volumes", got.pod.Name)
	}
}

func TestQueueClosed(t *testing.T) {
	q := newQueue()
	q.after(&task{pod: pod("a"), session: running}, time.Hour)
	q.close()
	q.push(&task{pod: pod("b")})
	if got, ok := q.next(); ok {
		t.Fatalf("got %s from a closed queue", got.pod.Name)
	}
	if n := waiting(q); n != 0 {
		t.Fatalf("%d tasks still wait", n)
	}
}

func waiting(q *queue) (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, in := range q.waiting {
		n += len(in)
	}
	return n
}

// A task whose deadline has become another is in line by that, also while it is ready.
func TestQueueFollowsTheDeadline(t *testing.T) {
	q := newQueue()
	tasks := map[string]*task{}
	for _, name := range []string{"at risk", "ends", "later"} {
		tasks[name] = &task{pod: pod(name)}
	}
	tasks["ends"].latest, tasks["later"].latest = now.Add(time.Minute), now.Add(time.Hour)
	for _, t := range tasks {
		q.push(t)
	}
	q.due(tasks["at risk"], now)
	for _, want := range []string{"at risk", "ends", "later"} {
		if got, _ := q.next(); got != tasks[want] {
			t.Fatalf("%s is next, want what was at risk and ends first now", got.pod.Name)
		}
	}
	q.due(tasks["ends"], now) // under way: its decision tells
	if !tasks["ends"].latest.Equal(now.Add(time.Minute)) {
		t.Error("changed while it is under way")
	}
}

// Of pods that are equally urgent those of one node go first, and there the first by name, whatever
// came first.
func TestQueueIsInOrder(t *testing.T) {
	q := newQueue()
	var want []*task
	for _, node := range []string{"node-a", "node-b"} {
		for i := range 5 {
			want = append(want, &task{pod: pod(fmt.Sprintf("%d-of-%s", i, node[5:]), onNode(node))})
		}
	}
	for i := range want {
		q.push(want[(7*i+3)%len(want)])
	}
	first, _ := q.next()
	q.push(first) // to be tried again: it keeps its turn
	for _, w := range want {
		if got, _ := q.next(); got != w {
			t.Fatalf("%s is next, want %s", got.pod.Name, w.pod.Name)
		}
	}
}
