package drain

import "sync"

// openingsAtOnce is how many watches are opened at the same moment: each has the API server
// read a node's pods, and a thousand at once would hold up everything else.
const openingsAtOnce = 32

// openings lets watches be opened a few at a time, in the order in which they come. Those that
// wait are functions in a line, as thousands of goroutines would take tens of megabytes.
type openings struct {
	mu      sync.Mutex
	free    int
	waiting []func()
}

func newOpenings() *openings { return &openings{free: openingsAtOnce} }

// enter calls open when there is a place: now, or later from within leave, so open must not block.
// The place has to be given back with leave.
func (o *openings) enter(open func()) {
	o.mu.Lock()
	if o.free == 0 {
		o.waiting = append(o.waiting, open)
		o.mu.Unlock()
		return
	}
	o.free--
	o.mu.Unlock()
	open()
}

// leave gives a place back.
func (o *openings) leave() {
	o.mu.Lock()
	if len(o.waiting) == 0 {
		o.free++
		o.mu.Unlock()
		return
	}
	next := o.waiting[0]
	o.waiting[0] = nil // it keeps a session alive
	o.waiting = o.waiting[1:]
	o.mu.Unlock()
	next()
}
