package drain

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

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
		q.after(&task{pod: pod("a")}, 3*time.Second)
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
			q.after(&task{pod: p, latest: now.Add(-time.Duration(i) * time.Minute)}, time.Hour)
		}
		start := time.Now()
		q.wake("shop", labels.SelectorFromSet(labels.Set{"app": "web"}), 1)
		if got, _ := q.next(); got.pod.Name != "early" || time.Since(start) != 0 {
			t.Fatalf("woke %s after %s, want early at once", got.pod.Name, time.Since(start))
		}
		if got, _ := q.next(); time.Since(start) != time.Hour {
			t.Fatalf("%s came after %s, want the timer's hour", got.pod.Name, time.Since(start))
		}
		q.close()
	})
}

func TestQueueClosed(t *testing.T) {
	q := newQueue()
	q.after(&task{pod: pod("a")}, time.Hour)
	q.close()
	q.push(&task{pod: pod("b")})
	if got, ok := q.next(); ok {
		t.Fatalf("got %s from a closed queue", got.pod.Name)
	}
	if len(q.waiting) != 0 {
		t.Fatalf("%d tasks still wait", len(q.waiting))
	}
}

func TestRetryIn(t *testing.T) {
	for attempt := 1; attempt < 50; attempt++ {
		if d := retryIn(attempt); d < 250*time.Millisecond || d > 5*time.Second {
			t.Fatalf("attempt %d waits %s", attempt, d)
		}
	}
}
