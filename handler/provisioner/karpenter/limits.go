package karpenter

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	// settle is how long after a launch a NodePool's status may not yet count the
	// node: Karpenter brings it up to date every 5 s.
	settle = 10 * time.Second

	// maxOrder bounds how long an order counts that is not launched: by then its claim
	// has been launched or deleted, even if nobody has told us.
	maxOrder = time.Minute

	// maxLaunched bounds the same after the launch, should others' claims keep
	// Karpenter from counting.
	maxLaunched = 3 * time.Minute
)

// ledger holds what we have asked of each pool and its status cannot show yet, so
// that a burst does not overrun the pool's limits: nobody enforces them on a
// NodeClaim that Karpenter did not make, and overshoot then blocks Karpenter.
//
// An order counts with what the node may come to, as far as that can be known
// before, and with what it has come to from its launch on.
type ledger struct {
	mu      sync.Mutex
	orders  map[string]*order // by NodeClaim
	stalled time.Time         // when one of ours was last without an instance: until then no pool's status moves
}

type order struct {
	pool     string
	size     corev1.ResourceList
	at       time.Time
	launched time.Time // zero until it is
}

func newLedger() *ledger { return &ledger{orders: map[string]*order{}} }

// room says which of the pool's limits leaves no room for a node of the size, or
// nothing.
func (l *ledger) room(pool *nodePool, size corev1.ResourceList) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.roomLocked(pool, size)
}

// reserve enters the order of a claim if there is room, or says why there is not.
func (l *ledger) reserve(pool *nodePool, claim string, size corev1.ResourceList) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.orders[claim] != nil {
		return ""
	}
	if reason := l.roomLocked(pool, size); reason != "" {
		return reason
	}
	l.orders[claim] = &order{pool: pool.Name, size: size, at: time.Now()}
	return ""
}

// restore enters the order of a claim that another process has made, whether there
// is room or not.
func (l *ledger) restore(claim *nodeClaim) {
	pool := claim.Labels[nodePoolLabel]
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.orders[claim.Name] != nil || pool == "" || !claim.DeletionTimestamp.IsZero() {
		return
	}
	o := &order{pool: pool, size: claim.size(), at: claim.CreationTimestamp.Time, launched: claim.since("Launched")}
	if !o.launched.IsZero() && len(claim.Status.Capacity) > 0 {
		o.size = claim.Status.Capacity
	}
	l.orders[claim.Name] = o
}

// launched notes that a claim has an instance of some capacity, which the pool's
// status will count.
func (l *ledger) launched(claim string, capacity corev1.ResourceList) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o := l.orders[claim]; o != nil && o.launched.IsZero() {
		o.launched, l.stalled = time.Now(), time.Now()
		if len(capacity) > 0 {
			o.size = capacity
		}
	}
}

// forget drops the order of a claim that there is not or no longer.
func (l *ledger) forget(claim string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o := l.orders[claim]; o != nil && o.launched.IsZero() {
		l.stalled = time.Now()
	}
	delete(l.orders, claim)
}

func (l *ledger) roomLocked(pool *nodePool, size corev1.ResourceList) string {
	if len(pool.Spec.Limits) == 0 {
		return ""
	}
	for claim, o := range l.orders {
		switch {
		case o.launched.IsZero() && time.Since(o.at) > maxOrder, !o.launched.IsZero() && time.Since(o.launched) > maxLaunched:
			delete(l.orders, claim)
		case o.launched.IsZero():
			l.stalled = time.Now()
		}
	}
	pending := withNode(size)
	for claim, o := range l.orders {
		switch {
		case o.pool != pool.Name:
		case !o.launched.IsZero() && pool.read.After(o.launched.Add(settle)) && pool.read.After(l.stalled.Add(settle)):
			delete(l.orders, claim)
		default:
			add(pending, withNode(o.size))
		}
	}
	return exceeded(pool, pending)
}

// exceeded names the limits of the pool that are exceeded with more on top of what
// it has. A limit on what is not asked for is no matter of ours.
func exceeded(pool *nodePool, more corev1.ResourceList) string {
	var over []string
	for name, limit := range pool.Spec.Limits {
		asked, ok := more[name]
		if !ok {
			continue
		}
		used := pool.Status.Resources[name]
		total := used.DeepCopy()
		total.Add(asked)
		if total.Cmp(limit) > 0 {
			over = append(over, fmt.Sprintf("%s: %s used, %s asked for, limit %s", name, used.String(), asked.String(), limit.String()))
		}
	}
	if len(over) == 0 {
		return ""
	}
	slices.Sort(over)
	return "limit of NodePool " + pool.Name + " leaves no room (" + strings.Join(over, "; ") + ")"
}

// withNode adds to a node's size the node itself, which can be limited too.
func withNode(size corev1.ResourceList) corev1.ResourceList {
	sum := corev1.ResourceList{}
	add(sum, size)
	sum["nodes"] = *resource.NewQuantity(1, resource.DecimalSI)
	return sum
}

// size is what a claim of ours counts for before its launch.
func (c *nodeClaim) size() corev1.ResourceList {
	size := corev1.ResourceList{}
	if err := json.Unmarshal([]byte(c.Annotations[sizeAnnotation]), &size); err != nil {
		size = corev1.ResourceList{} // edited by somebody
	}
	return atLeast(c.Spec.Resources.Requests, size)
}
