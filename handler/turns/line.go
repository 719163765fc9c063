// Package turns says whose turn it is among nodes that are recommended for rebalance: of each
// pool some may be replaced at the same time, and those that were recommended first go first.
//
// A [Line] knows all nodes, in the process that drains them all. [Peers] do without one, for
// a process that knows its own node alone and has to look at the others.
package turns

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// Line says whose turn it is: of each pool those that have begun, and then those that were
// recommended first. It is safe for concurrent use.
type Line struct {
	atOnce Concurrency
	count  func(pool nodes.Pool) int

	mu      sync.Mutex
	entries map[string]entry // by node
	sizes   map[nodes.Pool]size
}

// entry is a node that stands in line.
type entry struct {
	pool     nodes.Pool
	received time.Time
	begun    bool
}

// size is how many nodes a pool had at some time.
type size struct {
	nodes int
	at    time.Time
}

// sizeFor is how long a pool's size is believed, which a node more or less hardly changes.
const sizeFor = 10 * time.Second

// NewLine returns an empty line. count says how many nodes a pool has.
func NewLine(atOnce Concurrency, count func(pool nodes.Pool) int) *Line {
	return &Line{atOnce: atOnce, count: count, entries: map[string]entry{}, sizes: map[nodes.Pool]size{}}
}

// Stand has a node stand in line, where its record says so. One that has taken its turn
// keeps it until it leaves, whatever the Node says: what it was told may not be written yet.
func (l *Line) Stand(node *corev1.Node, rec interruption.Record) {
	e, ok := entryOf(nodes.PoolOf(node), rec)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stand(node.Name, e)
}

func (l *Line) stand(node string, e entry) {
	if old, ok := l.entries[node]; ok && old.pool == e.pool {
		e.begun = e.begun || old.begun
	}
	l.entries[node] = e
}

// entryOf is what a record stands for in line; false where it stands for nothing.
func entryOf(of nodes.Pool, rec interruption.Record) (entry, bool) {
	if rec.Kind != interruption.RebalanceRecommendation || rec.Phase.Over() || rec.Canceled {
		return entry{}, false
	}
	return entry{pool: of, received: rec.Received, begun: rec.TurnTaken()}, true
}

// Turn gives a node its turn if fewer than may of its pool have theirs, and not too many come
// before it. again is when to ask again; zero where whoever leaves the line names the node.
// next may go too, where it is not empty.
func (l *Line) Turn(_ context.Context, node *corev1.Node, rec interruption.Record) (turn bool, again time.Duration, next string, err error) {
	l.Stand(node, rec)
	of := nodes.PoolOf(node)
	most := l.atOnce.Of(l.sizeOf(of))
	l.mu.Lock()
	defer l.mu.Unlock()
	if turn, _ = l.take(node.Name, most); turn {
		next = l.first(of) // there may be room for one more
	}
	return turn, 0, next, nil
}

// take gives a node its turn, as Turn says. ahead is how many of those that wait come first.
func (l *Line) take(node string, most int) (turn bool, ahead int) {
	own, ok := l.entries[node]
	if !ok || own.begun {
		return ok, 0
	}
	taken := 0
	for name, e := range l.entries {
		switch {
		case e.pool != own.pool:
		case e.begun:
			taken++
		case name != node && before(name, e, node, own):
			ahead++
		}
	}
	if taken+ahead >= most {
		return false, ahead
	}
	own.begun = true
	l.entries[node] = own
	return true, ahead
}

// Leave takes a node out of the line, and names the next of its pool; empty where nobody
// waits, or the node did not stand in line.
func (l *Line) Leave(node string) (next string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, stood := l.entries[node]
	if !stood {
		return ""
	}
	delete(l.entries, node)
	return l.first(e.pool)
}

// first is who waits longest in the pool.
func (l *Line) first(of nodes.Pool) (node string) {
	var best entry
	for name, e := range l.entries {
		if e.pool == of && !e.begun && (node == "" || before(name, e, node, best)) {
			node, best = name, e
		}
	}
	return node
}

func before(aName string, a entry, bName string, b entry) bool {
	if c := a.received.Compare(b.received); c != 0 {
		return c < 0
	}
	return aName < bName
}

// sizeOf is how many nodes the pool has, or had a moment ago.
func (l *Line) sizeOf(of nodes.Pool) int {
	l.mu.Lock()
	s, ok := l.sizes[of]
	l.mu.Unlock()
	if ok && time.Since(s.at) < sizeFor {
		return s.nodes
	}
	s = size{l.count(of), time.Now()}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sizes[of] = s
	return s.nodes
}
