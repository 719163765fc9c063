package provisioner

import (
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
	// node: Karpenter brings it up to date every 5 s, and only when no claim of the
	// cluster is unlaunched.
	settle = 10 * time.Second

	// maxOrder bounds how long an order counts: by then its claim has been launched
	// or deleted, even if nobody has told us.
	maxOrder = time.Minute
)

// ledger holds what we have asked of each pool and its status cannot show yet, so
// that a burst does not overrun the pool's limits: nobody enforces them on a
// NodeClaim that Karpenter did not make, and overshoot then blocks Karpenter.
type ledger struct {
	mu     sync.Mutex
	orders map[string]*order // by NodeClaim
}

type order struct {
	pool     string
	ask      corev1.ResourceList
	at       time.Time
	launched time.Time // zero until it is
}

func newLedger() *ledger { return &ledger{orders: map[string]*order{}} }

// room says which of the pool's limits leaves no room for ask, or nothing.
func (l *ledger) room(pool *nodePool, ask corev1.ResourceList) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.roomLocked(pool, ask)
}

// reserve enters the order of a claim if there is room, or says why there is not.
func (l *ledger) reserve(pool *nodePool, claim string, ask corev1.ResourceList) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.orders[claim] != nil {
		return ""
	}
	if reason := l.roomLocked(pool, ask); reason != "" {
		return reason
	}
	l.orders[claim] = &order{pool: pool.Name, ask: ask, at: time.Now()}
	return ""
}

// launched notes that a claim has an instance, which the pool's status will count.
func (l *ledger) launched(claim string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o := l.orders[claim]; o != nil && o.launched.IsZero() {
		o.launched = time.Now()
	}
}

// forget drops the order of a claim that there is not or no longer.
func (l *ledger) forget(claim string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.orders, claim)
}

func (l *ledger) roomLocked(pool *nodePool, ask corev1.ResourceList) string {
	if len(pool.Spec.Limits) == 0 {
		return ""
	}
	pending := withNode(ask)
	for claim, o := range l.orders {
		switch {
		case time.Since(o.at) > maxOrder:
			delete(l.orders, claim)
		case o.pool != pool.Name:
		case !o.launched.IsZero() && pool.read.After(o.launched.Add(settle)):
			delete(l.orders, claim)
		default:
			add(pending, withNode(o.ask))
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

// withNode adds to what is asked for the node itself, which can be limited too.
func withNode(ask corev1.ResourceList) corev1.ResourceList {
	sum := corev1.ResourceList{"nodes": *resource.NewQuantity(1, resource.DecimalSI)}
	add(sum, ask)
	return sum
}
