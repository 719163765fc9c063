package karpenter

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
)

const (
	// maxUnlisted is how long an order counts that no list shows. By then every list shows a
	// claim that was made, so this one was not.
	maxUnlisted = time.Minute

	// usagePage is how many claims are read at once: they are large, and a pool can have
	// thousands.
	usagePage = 200
)

// ledger knows how much a pool uses of what it limits: nobody enforces the limits on a
// NodeClaim that Karpenter did not make, and exceeding them blocks Karpenter.
//
// The pool's status is not enough: Karpenter updates it only while every claim of the
// cluster is launched, which is rare in a burst. So the ledger adds up the pool's claims,
// read at most once per poolTTL however many ask, and whatever was ordered here since. A
// claim counts with its instance's capacity, and before its launch with what it might come
// to.
type ledger struct {
	client dynamic.Interface
	reads  singleflight.Group

	mu       sync.Mutex
	usages   map[string]*usage         // by NodePool
	unlisted map[string]*unlistedClaim // by NodeClaim

	full prometheus.Counter // of refusals; nil is not counted
}

// usage is what a pool's claims came to at some time.
type usage struct {
	asked  time.Time
	sum    corev1.ResourceList
	claims map[string]struct{}
}

// unlistedClaim is one that the last usage might lack.
type unlistedClaim struct {
	pool string
	size corev1.ResourceList
	at   time.Time
}

func newLedger(client dynamic.Interface) *ledger {
	return &ledger{client: client, usages: map[string]*usage{}, unlisted: map[string]*unlistedClaim{}}
}

// room says which of the pool's limits leaves no room for a claim of that size, or is empty.
// There is always room for a claim that exists: it is counted, and asking for it again adds
// nothing. The error is an unavailableError, or transient.
func (l *ledger) room(ctx context.Context, pool *nodePool, claim string, size corev1.ResourceList) (full string, err error) {
	return l.enter(ctx, pool, claim, size, false)
}

// reserve is room, and enters the claim if there is room. The same claim is entered once.
func (l *ledger) reserve(ctx context.Context, pool *nodePool, claim string, size corev1.ResourceList) (full string, err error) {
	return l.enter(ctx, pool, claim, size, true)
}

func (l *ledger) enter(ctx context.Context, pool *nodePool, claim string, size corev1.ResourceList, reserve bool) (full string, err error) {
	if len(pool.Spec.Limits) == 0 {
		return "", nil
	}
	u, err := l.usage(ctx, pool.Name)
	if err != nil {
		return "", err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, there := u.claims[claim]; there || l.unlisted[claim] != nil {
		return "", nil
	}
	more := withNode(size)
	for name, o := range l.unlisted {
		if o.pool != pool.Name {
			continue
		}
		if _, counted := u.claims[name]; counted || u.asked.After(o.at.Add(maxUnlisted)) {
			delete(l.unlisted, name)
			continue
		}
		add(more, withNode(o.size))
	}
	if full := exceeded(pool, u.sum, more); full != "" {
		if l.full != nil {
			l.full.Inc()
		}
		return full, nil
	}
	if reserve {
		l.unlisted[claim] = &unlistedClaim{pool: pool.Name, size: size, at: time.Now()}
	}
	return "", nil
}

// forget drops a claim that was not made or no longer exists.
func (l *ledger) forget(claim string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.unlisted, claim)
}

// usage is the pool's usage, not older than poolTTL.
func (l *ledger) usage(ctx context.Context, pool string) (*usage, error) {
	if u := l.known(pool); u != nil {
		return u, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), poolTimeout) // shared, as in pools.get
	defer cancel()
	v, err, _ := l.reads.Do(pool, func() (any, error) {
		if u := l.known(pool); u != nil { // an earlier flight has landed
			return u, nil
		}
		return l.read(ctx, pool)
	})
	u, _ := v.(*usage)
	return u, err
}

func (l *ledger) known(pool string) *usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	if u := l.usages[pool]; u != nil && time.Now().Before(u.asked.Add(poolTTL)) {
		return u
	}
	return nil
}

// read is consistent: it includes what a leader ordered just before it died.
func (l *ledger) read(ctx context.Context, pool string) (*usage, error) {
	u := &usage{asked: time.Now(), sum: corev1.ResourceList{}, claims: map[string]struct{}{}}
	options := metav1.ListOptions{LabelSelector: nodePoolLabel + "=" + pool, Limit: usagePage}
	for {
		list, err := l.client.Resource(nodeClaimResource).List(ctx, options)
		if err != nil {
			return nil, asUnavailable("list NodeClaims", fmt.Errorf("list NodeClaims of pool %q: %w", pool, err))
		}
		for i := range list.Items {
			claim, err := decodeClaim(&list.Items[i])
			if err != nil {
				continue // Karpenter cannot read it either
			}
			u.claims[claim.Name] = struct{}{}
			add(u.sum, withNode(claim.size()))
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			break
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.usages[pool] = u
	return u, nil
}

// exceeded names the limits of the pool that are exceeded by more on top of what the pool
// uses. A limit on what is not asked for does not concern us.
func exceeded(pool *nodePool, claims, more corev1.ResourceList) string {
	var over []string
	for name, limit := range pool.Spec.Limits {
		used := pool.used(name, claims)
		if total, ok := pool.with(name, claims, more); ok && total.Cmp(limit) > 0 {
			asked := more[name]
			over = append(over, fmt.Sprintf("%s: %s used, %s asked for, limit %s", name, used.String(), asked.String(), limit.String()))
		}
	}
	if len(over) == 0 {
		return ""
	}
	slices.Sort(over)
	return "limit of NodePool " + pool.Name + " leaves no room (" + strings.Join(over, "; ") + ")"
}

// used is how much of the resource the pool uses, according to its claims or its status.
func (p *nodePool) used(name corev1.ResourceName, claims corev1.ResourceList) resource.Quantity {
	used := p.Status.Resources[name]
	if q := claims[name]; q.Cmp(used) > 0 {
		used = q
	}
	return used.DeepCopy()
}

// with is what the pool uses, and more; false if no more of the resource is asked for.
func (p *nodePool) with(name corev1.ResourceName, claims, more corev1.ResourceList) (resource.Quantity, bool) {
	total := p.used(name, claims)
	asked, ok := more[name]
	total.Add(asked)
	return total, ok
}

// withNode adds the node itself to its size, as the number of nodes can be limited too.
func withNode(size corev1.ResourceList) corev1.ResourceList {
	sum := corev1.ResourceList{}
	add(sum, size)
	sum["nodes"] = *resource.NewQuantity(1, resource.DecimalSI)
	return sum
}

// size is what a claim counts for: its instance's capacity, and before its launch what it
// might come to.
func (c *nodeClaim) size() corev1.ResourceList {
	if len(c.Status.Capacity) > 0 {
		return c.Status.Capacity
	}
	size := corev1.ResourceList{}
	if err := json.Unmarshal([]byte(c.Annotations[sizeAnnotation]), &size); err != nil {
		return c.Spec.Resources.Requests // Karpenter's own, or edited by somebody
	}
	return atLeast(c.Spec.Resources.Requests, size)
}
