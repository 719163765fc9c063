package stories

import (
	"flag"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"spot-handler/e2e/controlplane"
)

// turns decides which test is next, as many at a time as -parallel says. Go would take them in
// the order of the files: a long one that came last would run alone in the end, with the
// processors idle, and control planes with and without Karpenter would be started and ended
// again and again.
type turns struct {
	mu      sync.Mutex
	total   int // places
	free    int
	coming  int             // have announced themselves, and wait until those that do not run in parallel have ended
	long    map[string]bool // by test
	waiting []*turn         // in the order of the files
	empty   map[string]int  // control planes, by kind, that wait for the next test
	order   int
}

// turn is one test's.
type turn struct {
	kind    string // of its control plane; empty: it uses none that others have used
	returns bool   // the control plane, to those who come next
	large   bool

	order, places int
	first         bool // before others
	begin         chan struct{}
}

var next = turns{long: map[string]bool{}, empty: map[string]int{}}

// open has Go let all parallel tests go on, to wait here. It parses the flags.
func (q *turns) open() {
	flag.Parse()
	parallel := flag.Lookup("test.parallel")
	q.total = parallel.Value.(flag.Getter).Get().(int)
	q.free = q.total
	_ = parallel.Value.Set("1000")
}

// long is for a test that takes over a minute: it is one of the first.
//
//	s := newStory(long(t), controlplane.Options{})
func long(t *testing.T) *testing.T {
	next.mu.Lock()
	defer next.mu.Unlock()
	next.long[t.Name()] = true
	return t
}

func kindOf(options controlplane.Options) string {
	if options.Karpenter {
		return "with Karpenter"
	}
	return "without Karpenter"
}

// take makes the test a parallel one and waits for its turn, which lasts until its end. It says
// how long it has waited, for e2e/timing.
func (q *turns) take(t *testing.T, one turn) {
	t.Helper()
	// A subtest comes after its parent has begun: nobody waits for it.
	top := !strings.Contains(t.Name(), "/")
	q.announce(t.Name(), &one, top)
	t.Parallel()
	began := time.Now()
	q.arrive(&one, top)
	<-one.begin
	t.Cleanup(func() { q.end(&one) })
	t.Logf("waited %s for its turn", time.Since(began).Round(time.Millisecond))
}

func (q *turns) announce(name string, one *turn, top bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.order++
	one.order, one.places, one.first, one.begin = q.order, 1, q.long[name], make(chan struct{})
	if one.large {
		one.places = min(q.total, q.total/2+1)
	}
	if top {
		q.coming++
	}
}

func (q *turns) arrive(one *turn, top bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if top {
		q.coming--
	}
	q.waiting = append(q.waiting, one)
	slices.SortFunc(q.waiting, func(a, b *turn) int { return a.order - b.order })
	q.letIn()
}

func (q *turns) end(one *turn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.free += one.places
	if one.returns {
		q.empty[one.kind]++
	}
	q.letIn()
}

func (q *turns) letIn() {
	for q.coming == 0 && len(q.waiting) > 0 {
		i := q.choose()
		one := q.waiting[i]
		if one.places > q.free {
			return // not to be overtaken for good by those that need less
		}
		q.free -= one.places
		q.waiting = slices.Delete(q.waiting, i, i+1)
		q.empty[one.kind] = max(0, q.empty[one.kind]-1)
		close(one.begin)
	}
}

// choose prefers a large test, then a long one, then one for which there is a control plane. Those
// that return none come last, and take those that are left.
func (q *turns) choose() int {
	for _, preferred := range []func(*turn) bool{
		func(one *turn) bool { return one.large && one.places <= q.free },
		func(one *turn) bool { return one.first && !one.large },
		func(one *turn) bool { return one.returns && q.empty[one.kind] > 0 },
		func(one *turn) bool { return one.returns },
		func(one *turn) bool { return !one.large },
	} {
		if i := slices.IndexFunc(q.waiting, preferred); i >= 0 {
			return i
		}
	}
	return 0
}

// Large tests run one after the other, beside long ones; then come those for which there is a
// control plane.
func TestTurns(t *testing.T) {
	q := turns{total: 4, free: 4, long: map[string]bool{"long": true}, empty: map[string]int{}}
	running := map[string]bool{}
	all := map[string]*turn{
		"apart": {kind: "x"}, "large": {large: true}, "larger": {large: true},
		"a": {kind: "x", returns: true}, "b": {kind: "y", returns: true}, "c": {kind: "x", returns: true}, "d": {kind: "y", returns: true},
		"long": {kind: "y", returns: true},
	}
	for _, name := range []string{"apart", "a", "b", "c", "large", "larger", "d", "long"} {
		q.announce(name, all[name], true)
	}
	began := func() (names []string) {
		for name, one := range all {
			select {
			case <-one.begin:
				if !running[name] {
					running[name] = true
					names = append(names, name)
				}
			default:
			}
		}
		slices.Sort(names)
		return names
	}
	want := func(what string, names ...string) {
		t.Helper()
		if got := began(); !slices.Equal(got, names) {
			t.Errorf("%s: %q begin, want %q", what, got, names)
		}
	}
	for name, one := range all {
		want("before " + name + " has come")
		q.arrive(one, true)
	}
	want("all have come", "large", "long")
	q.end(all["long"])
	want("long has ended, which leaves a control plane y", "b")
	q.end(all["large"])
	want("large has ended", "larger")
	q.end(all["larger"])
	want("larger has ended", "a", "c", "d")
	for _, name := range []string{"a", "b", "c", "d"} {
		q.end(all[name])
	}
	want("all others have ended", "apart")
	q.end(all["apart"])
	if q.free != q.total {
		t.Errorf("%d places are free in the end, want %d", q.free, q.total)
	}
}
