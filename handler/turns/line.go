// Package turns says whose turn it is among nodes recommended for rebalance. Of each pool
// several may be replaced at the same time, and those recommended first go first.
package turns

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// Line says whose turn it is: in each pool, nodes that have begun come first, then those
// recommended earliest. It is safe for concurrent use.
type Line struct {
	atOnce Concurrency
	count  func(pool nodes.Pool) int
	notify func(node string)

	mu      sync.Mutex
	entries map[string]entry      // by node
	sizes   *cache.LRUExpireCache // how many nodes each pool had a moment ago
}

// entry is a node that stands in line.
type entry struct {
	pool     nodes.Pool
	received time.Time
	begun    bool
}

const (
	// sizeFor is how long we believe a pool's size; one node more or less hardly changes it.
	sizeFor = 10 * time.Second
	// maxSizes is more pools than a cluster has.
	maxSizes = 1000
)

// NewLine returns an empty line. count says how many nodes a pool has. notify is called with the node
// whose turn it may be next, and must not block.
func NewLine(atOnce Concurrency, count func(pool nodes.Pool) int, notify func(node string)) *Line {
	return &Line{atOnce: atOnce, count: count, notify: notify, entries: map[string]entry{}, sizes: cache.NewLRUExpireCache(maxSizes)}
}

// Enqueue puts a node in line, if its record belongs there. A node that has taken its turn keeps
// it until it leaves, whatever the Node says: its turn might not be written there yet.
func (l *Line) Enqueue(node *corev1.Node, rec interruption.Record) {
	if rec.Kind != interruption.RebalanceRecommendation || rec.Phase.Over() || rec.Canceled {
		return
	}
	e := entry{pool: nodes.PoolOf(node), received: rec.Received, begun: rec.TurnTaken()}
	l.mu.Lock()
	defer l.mu.Unlock()
	if old, ok := l.entries[node.Name]; ok && old.pool == e.pool {
		e.begun = e.begun || old.begun
	}
	l.entries[node.Name] = e
}

// Start gives a node its turn if fewer of its pool than allowed have theirs, counting those
// ahead of it in line.
func (l *Line) Start(node *corev1.Node, rec interruption.Record) bool {
	l.Enqueue(node, rec)
	of := nodes.PoolOf(node)
	most := l.atOnce.Limit(l.sizeOf(of))
	l.mu.Lock()
	defer l.mu.Unlock()
	turn := l.start(node.Name, most)
	if turn {
		l.wakeNext(of) // there may be room for one more
	}
	return turn
}

// start gives a node its turn, as Start describes.
func (l *Line) start(node string, most int) bool {
	own, ok := l.entries[node]
	if !ok || own.begun {
		return ok
	}
	if begun, waiting := l.ahead(node, own); begun+waiting >= most {
		return false
	}
	own.begun = true
	l.entries[node] = own
	return true
}

// Ahead is how many other nodes of the node's pool have their turn, and how many wait before it.
func (l *Line) Ahead(node string) (begun, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ahead(node, l.entries[node])
}

func (l *Line) ahead(node string, own entry) (begun, waiting int) {
	for name, e := range l.entries {
		switch {
		case name == node || e.pool != own.pool:
		case e.begun:
			begun++
		case before(name, e, node, own):
			waiting++
		}
	}
	return begun, waiting
}

// Remove takes a node out of the line, if it stands there.
func (l *Line) Remove(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, stood := l.entries[node]; stood {
		delete(l.entries, node)
		l.wakeNext(e.pool)
	}
}

// wakeNext notifies the node that has waited longest in the pool.
func (l *Line) wakeNext(of nodes.Pool) {
	var next string
	var best entry
	for name, e := range l.entries {
		if e.pool == of && !e.begun && (next == "" || before(name, e, next, best)) {
			next, best = name, e
		}
	}
	if next != "" {
		l.notify(next)
	}
}

func before(aName string, a entry, bName string, b entry) bool {
	return cmp.Or(a.received.Compare(b.received), cmp.Compare(aName, bName)) < 0
}

// sizeOf is how many nodes the pool has, or had a moment ago.
func (l *Line) sizeOf(of nodes.Pool) int {
	known, _ := l.sizes.Get(of)
	if size, ok := known.(int); ok {
		return size
	}
	size := l.count(of)
	l.sizes.Add(of, size, sizeFor)
	return size
}

// Concurrency is how many nodes of a pool may be replaced at the same time, or which part of
// them. The zero value is one.
type Concurrency struct{ value intstr.IntOrString }

// ParseConcurrency reads a number such as "2", or a percentage of the pool's nodes such as
// "10%".
func ParseConcurrency(text string) (Concurrency, error) {
	c := Concurrency{intstr.Parse(text)}
	if n := c.limit(100); n < 1 || c.value.Type == intstr.String && n > 100 || c.value.String() != text {
		return Concurrency{}, fmt.Errorf("%q: want a number from 1, or a percentage of the pool's nodes, such as 10%%", text)
	}
	return c, nil
}

// Limit is the number for a pool of that many nodes: a percentage is rounded down, but at least
// one node is always allowed.
func (c Concurrency) Limit(nodes int) int { return max(1, c.limit(nodes)) }

// limit is zero if the value is none.
func (c Concurrency) limit(nodes int) int {
	n, _ := intstr.GetScaledValueFromIntOrPercent(&c.value, nodes, false)
	return n
}
