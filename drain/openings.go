package drain

import (
	"slices"
	"sync"
)

// How many watches and look-ups are begun at the same moment: each has the API server read a node's
// pods, or a namespace's objects, and a thousand at once would hold up everything else. Of one
// namespace they are fewer, as its objects can be so many and so large that all of them take long.
const (
	openingsAtOnce    = 32
	openingsOfOneName = 16
)

// openings lets requests begin a few at a time. Namespaces take turns, so one with a thousand
// of them delays nobody else's; the requests of one, and those of none, begin in the order in which
// they come. Those that wait are functions in a line, as thousands of goroutines would take tens of
// megabytes.
type openings struct {
	mu    sync.Mutex
	free  int
	inUse map[string]int      // by namespace; empty: of none
	lines map[string][]func() // those that wait
	turns []string            // of the lines
}

func newOpenings() *openings {
	return &openings{free: openingsAtOnce, inUse: map[string]int{}, lines: map[string][]func(){}}
}

// enter calls open when there is a place: now, or later from within leave, so open must not block.
// The place has to be given back with leave.
func (o *openings) enter(namespace string, open func()) {
	o.mu.Lock()
	if !o.hasPlace(namespace) {
		if len(o.lines[namespace]) == 0 {
			o.turns = append(o.turns, namespace)
		}
		o.lines[namespace] = append(o.lines[namespace], open)
		o.mu.Unlock()
		return
	}
	o.takePlace(namespace)
	o.mu.Unlock()
	open()
}

// leave gives a place back.
func (o *openings) leave(namespace string) {
	o.mu.Lock()
	o.free++
	if o.inUse[namespace]--; o.inUse[namespace] == 0 {
		delete(o.inUse, namespace)
	}
	turn := slices.IndexFunc(o.turns, o.hasPlace)
	if turn < 0 {
		o.mu.Unlock()
		return
	}
	next := o.turns[turn]
	o.turns = slices.Delete(o.turns, turn, turn+1)
	line := o.lines[next]
	open := line[0]
	line[0] = nil // it keeps a session alive
	if o.lines[next] = line[1:]; len(line) > 1 {
		o.turns = append(o.turns, next)
	} else {
		delete(o.lines, next)
	}
	o.takePlace(next)
	o.mu.Unlock()
	open()
}

func (o *openings) hasPlace(namespace string) bool {
	return o.free > 0 && (namespace == "" || o.inUse[namespace] < openingsOfOneName)
}

func (o *openings) takePlace(namespace string) {
	o.free--
	o.inUse[namespace]++
}
