package handler

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// Concurrency is how many nodes of a pool may be replaced at the same time. The zero value
// is one.
type Concurrency struct{ number, percent int }

// ParseConcurrency reads a number such as "2", or a percentage of the pool's nodes such as
// "10%".
func ParseConcurrency(text string) (Concurrency, error) {
	digits, percentage := strings.CutSuffix(text, "%")
	n, err := strconv.Atoi(digits)
	switch {
	case err != nil || n < 1 || digits != strconv.Itoa(n):
		return Concurrency{}, fmt.Errorf("%q: want a number from 1, or a percentage of the pool's nodes, such as 10%%", text)
	case percentage && n > 100:
		return Concurrency{}, fmt.Errorf("%q: want 100%% at most", text)
	case percentage:
		return Concurrency{percent: n}, nil
	}
	return Concurrency{number: n}, nil
}

// Of is the number for a pool of so many nodes: a percentage is rounded down, and one node
// always may.
func (c Concurrency) Of(nodes int) int { return max(1, c.number, nodes*c.percent/100) }

// pool is what made a node, and what it was made as. Nodes that say nothing are all one pool.
type pool struct{ label, name string }

func poolOf(node *corev1.Node) pool {
	for _, label := range poolLabels {
		if name := node.Labels[label]; name != "" {
			return pool{label, name}
		}
	}
	return pool{}
}

// selector selects the nodes of the pool, and no others.
func (p pool) selector() string {
	var terms []string
	for _, label := range poolLabels {
		if label == p.label {
			terms = append(terms, label+"="+p.name)
			break
		}
		terms = append(terms, "!"+label)
	}
	return strings.Join(terms, ",")
}

// place is where a recommended node is in the line of its pool.
type place struct {
	pool     pool
	received time.Time
	begun    bool
}

// line says whose turn it is to be replaced: of each pool those that have begun, and then
// those that were recommended first. It is safe for concurrent use.
type line struct {
	mu     sync.Mutex
	places map[string]place // by node
	sizes  map[pool]size
}

// size is how many nodes a pool had at some time.
type size struct {
	nodes int
	at    time.Time
}

// sizeFor is how long a pool's size is believed, which a node more or less hardly changes.
const sizeFor = 10 * time.Second

func newLine() *line { return &line{places: map[string]place{}, sizes: map[pool]size{}} }

// stand gives a node its place. One that has taken its turn keeps it until it leaves,
// whatever the Node says: what it was told may not be written yet.
func (l *line) stand(node string, p place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old, ok := l.places[node]; ok && old.pool == p.pool {
		p.begun = p.begun || old.begun
	}
	l.places[node] = p
}

// take gives a node its turn if fewer than most of its pool have theirs and not too many
// come before it. ahead is how many of those that wait do.
func (l *line) take(node string, most int) (turn bool, ahead int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own, ok := l.places[node]
	if !ok || own.begun {
		return ok, 0
	}
	taken := 0
	for name, p := range l.places {
		switch {
		case p.pool != own.pool:
		case p.begun:
			taken++
		case name != node && before(name, p, node, own):
			ahead++
		}
	}
	if taken+ahead >= most {
		return false, ahead
	}
	own.begun = true
	l.places[node] = own
	return true, ahead
}

// leave takes a node out of the line; where it stood in one it returns the pool.
func (l *line) leave(node string) (pool, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.places[node]
	delete(l.places, node)
	return p.pool, ok
}

// first is who waits longest in the pool.
func (l *line) first(of pool) (node string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var best place
	for name, p := range l.places {
		if p.pool == of && !p.begun && (node == "" || before(name, p, node, best)) {
			node, best = name, p
		}
	}
	return node, node != ""
}

func before(aName string, a place, bName string, b place) bool {
	if c := a.received.Compare(b.received); c != 0 {
		return c < 0
	}
	return aName < bName
}

// sizeOf is how many nodes the pool has, as count last said.
func (l *line) sizeOf(of pool, count func() int) int {
	l.mu.Lock()
	s, ok := l.sizes[of]
	l.mu.Unlock()
	if ok && time.Since(s.at) < sizeFor {
		return s.nodes
	}
	s = size{count(), time.Now()}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sizes[of] = s
	return s.nodes
}

// standInLine gives a node its place by its record.
func (h *Handler) standInLine(node *corev1.Node, rec interruption.Record) {
	if p, ok := placeOf(poolOf(node), rec); ok {
		h.line.stand(node.Name, p)
	}
}

// placeOf is the place that a record stands for; false where it stands for none.
func placeOf(of pool, rec interruption.Record) (place, bool) {
	if rec.Kind != interruption.RebalanceRecommendation || rec.Phase.Over() || rec.Canceled {
		return place{}, false
	}
	return place{pool: of, received: rec.Received, begun: begun(rec)}, true
}

// leaveLine takes a node out of the line, and has the next looked at.
func (h *Handler) leaveLine(node string) {
	if of, stood := h.line.leave(node); stood {
		h.callNext(of)
	}
}

func (h *Handler) callNext(of pool) {
	if next, ok := h.line.first(of); ok {
		h.Enqueue(next)
	}
}

// fillLine gives all nodes their places before the first takes its turn: a process that
// begins must not take those for nobody that its predecessor has begun with.
func (h *Handler) fillLine() {
	for _, name := range h.opts.Index.WithRecord() {
		node, ok := h.opts.Index.Get(name)
		if !ok {
			continue
		}
		if rec, has, err := recordOf(node); has && err == nil && begun(rec) {
			h.standInLine(node, rec)
		}
	}
}

// rebalanceTurn says whether a recommended node may begin now, else when to look again if
// nothing happens before.
func (h *Handler) rebalanceTurn(ctx context.Context, node *corev1.Node, rec interruption.Record) (begin bool, again time.Duration, err error) {
	if h.opts.Node != "" {
		return h.turnAmongPeers(ctx, node, rec)
	}
	h.standInLine(node, rec)
	of := poolOf(node)
	nodes := h.line.sizeOf(of, func() int {
		return h.opts.Index.Count(func(n *corev1.Node) bool { return poolOf(n) == of })
	})
	begin, _ = h.line.take(node.Name, h.opts.RebalancesAtOnce.Of(nodes))
	if begin {
		h.callNext(of) // there may be room for one more
	}
	return begin, rebalanceLook, nil
}
