package drain

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// One eviction under a budget at a time, the most urgent next, and those of other budgets
// beside it.
func TestLanes(t *testing.T) {
	var pushed []*task
	l := newLanes(func(t *task) { pushed = append(pushed, t) })
	late, soon := &task{latest: now.Add(time.Hour)}, &task{latest: now}

	leave := l.enter("a", &task{})
	if leave == nil || l.enter("b", &task{}) == nil {
		t.Fatal("a lane that nobody has is not given")
	}
	if l.enter("a", late) != nil || l.enter("a", soon) != nil {
		t.Fatal("a lane is given twice")
	}
	leave()
	leave() // a second time is nothing
	if !slices.Equal(pushed, []*task{soon}) || soon.lane == nil {
		t.Fatalf("%d tasks go on, want the most urgent, with the lane", len(pushed))
	}
	if l.enter("a", &task{latest: now.Add(2 * time.Hour)}) != nil {
		t.Fatal("a lane that was handed over is given")
	}
	soon.lane()
	if len(pushed) != 2 || pushed[1] != late {
		t.Fatalf("%d tasks have gone on, want the next", len(pushed))
	}
	late.lane()
	pushed[2].lane()
	if l.enter("a", &task{}) == nil {
		t.Error("a lane that everybody has left is not given")
	}
}

// A task that takes its time does not hold up the others for all of it.
func TestSlowLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pushed := make(chan *task, 1)
		l := newLanes(func(t *task) { pushed <- t })
		slow := l.enter("a", &task{})
		l.enter("a", &task{})
		start := time.Now()
		next := <-pushed
		if took := time.Since(start); took != laneTime {
			t.Errorf("the next goes on after %s, want %s", took, laneTime)
		}
		slow() // it is no longer the lane's
		if l.enter("a", &task{}) != nil {
			t.Error("the late end of the slow one has freed the lane of the next")
		}
		next.lane()
		(<-pushed).lane()
	})
}
