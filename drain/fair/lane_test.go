package fair

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// record notes when tasks have ended.
type record struct {
	mu    sync.Mutex
	order []string
}

func (r *record) task(tenant, who, what string, takes time.Duration) Task {
	return Task{Tenant: tenant, Who: types.UID(who), What: what, Run: func() {
		time.Sleep(takes)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.order = append(r.order, what)
	}}
}

func (r *record) ended() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.order)
}

// A third of the places are one tenant's, whatever it does; another that comes later has places at
// once, and hundreds can hang before there is none.
func TestTenantsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r record
		l := NewLane(300, 1<<20)
		for i := range 10000 {
			l.Do(t.Context(), r.task("hostile", fmt.Sprint(i), "hangs", 4*time.Second))
		}
		synctest.Wait()
		if hostile := l.tenants["hostile"]; hostile.running != 100 || hostile.waiting != 9900 {
			t.Errorf("%d of one tenant run and %d wait, want a third of the places", hostile.running, hostile.waiting)
		}
		began := time.Now()
		for i := range 10 {
			l.Do(t.Context(), r.task(fmt.Sprint("tenant ", i), "a", "prompt", 0))
		}
		synctest.Wait()
		if ended := r.ended(); len(ended) != 10 || time.Since(began) != 0 {
			t.Errorf("%q done after %s, want ten prompt ones at once", ended, time.Since(began))
		}
		l.Wait()
		if len(r.order) != 10010 || l.free != 300 || l.room != 1<<20 || len(l.tenants)+len(l.turns) != 0 {
			t.Errorf("%d done, %d places and room for %d, %d tenants; want all, and nothing left", len(r.order), l.free, l.room, len(l.tenants))
		}
	})
}

// Where there is one place, tenants take turns.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r record
		l := NewLane(1, 1000)
		for _, what := range []string{"a1", "a2", "a3", "a4", "b1", "b2", "c1"} {
			l.Do(t.Context(), r.task(what[:1], what, what, time.Second))
		}
		l.Wait()
		if want := []string{"a1", "a2", "b1", "c1", "a3", "b2", "a4"}; !slices.Equal(r.order, want) {
			t.Errorf("order %q, want %q", r.order, want)
		}
	})
}

// The tasks of one pod run one after the other. Of those of one kind that wait the newest is run,
// and one that ends takes the place of all.
func TestTasksOfOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r record
		l := NewLane(10, 1000)
		do := func(kind, what string, ends bool) {
			task := r.task("a", "pod", what, time.Second)
			task.What, task.Ends = kind, ends
			l.Do(t.Context(), task)
		}
		began := time.Now()
		do("notice", "first", false)
		do("notice", "second", false)
		do("ready", "ready", false)
		do("notice", "third", false)
		time.Sleep(500 * time.Millisecond)
		l.Wait()
		if want := []string{"first", "third", "ready"}; !slices.Equal(r.order, want) || time.Since(began) != 3*time.Second {
			t.Errorf("%q after %s, want %q after 3 s", r.order, time.Since(began), want)
		}
		r.order = nil
		do("notice", "first", false)
		do("ready", "ready", false)
		do("notice", "second", false)
		do("canceled", "canceled", true)
		do("notice", "next", false)
		l.Wait()
		if want := []string{"first", "canceled", "next"}; !slices.Equal(r.order, want) {
			t.Errorf("%q, want %q", r.order, want)
		}
		if l.room != 1000 || l.free != 10 || len(l.tenants) != 0 {
			t.Errorf("room for %d, %d places, %d tenants; want nothing left", l.room, l.free, len(l.tenants))
		}
	})
}

// Tasks that wait are bounded for a tenant, and others still have room. What waits when its context
// ends is not run.
func TestRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r record
		l := NewLane(3, 100)
		ctx, cancel := context.WithCancel(t.Context())
		taken := 0
		for i := range 200 {
			if l.Do(ctx, r.task("a", fmt.Sprint(i), "a", time.Second)) {
				taken++
			}
		}
		if taken != 1+34 {
			t.Errorf("%d taken, want one that runs, and a third of the room", taken)
		}
		if !l.Do(t.Context(), r.task("b", "b", "b", 0)) {
			t.Error("another tenant has no room")
		}
		synctest.Wait()
		cancel()
		l.Wait()
		if want := []string{"b", "a"}; !slices.Equal(r.order, want) {
			t.Errorf("run %q, want %q", r.order, want)
		}
	})
}

// Once all tasks have ended, the lane is as it was at first, also after replacements and refusals.
func TestLaneIsAsItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r record
		l := NewLane(2, 6)
		for _, what := range []string{"first", "a", "b", "a", "b"} { // the last two take the places of those that wait
			if !l.Do(t.Context(), r.task("tenant", "pod", what, time.Second)) {
				t.Errorf("%s is refused", what)
			}
		}
		if l.room != 4 {
			t.Errorf("room for %d more, want 4: two of 6 wait", l.room)
		}
		ends := r.task("tenant", "pod", "end", time.Second)
		ends.Ends = true
		l.Do(t.Context(), ends)
		if l.room != 5 {
			t.Errorf("room for %d more, want 5: what ends has replaced both", l.room)
		}
		full := NewLane(1, 0)
		if full.Do(t.Context(), r.task("refused", "pod", "x", 0)) || len(full.tenants) != 0 {
			t.Errorf("tenants %v of a lane without room", full.tenants)
		}
		l.Wait()
		if want := []string{"first", "end"}; !slices.Equal(r.ended(), want) {
			t.Errorf("run %q, want %q", r.ended(), want)
		}
		if l.room != 6 || l.free != 2 || len(l.tenants) != 0 || len(l.turns) != 0 {
			t.Errorf("room %d, free %d, tenants %v, turns %v after all have ended", l.room, l.free, l.tenants, l.turns)
		}
	})
}
