package karpenter

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	resourcehelper "k8s.io/component-helpers/resource"

	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/room"
	"spot-handler/handler/readcache"
)

// maxUnlisted is how long an order counts that no list shows. By then every list shows a
// claim that was made, so this one was not.
const maxUnlisted = time.Minute

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
	usages *readcache.Cache[*usage] // by NodePool

	mu       sync.Mutex
	unlisted map[string]*unlistedClaim // by NodeClaim
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
	l := &ledger{client: client, unlisted: map[string]*unlistedClaim{}}
	l.usages = newReadCache(poolTTL, l.read)
	return l
}

// refusal says which of the pool's limits leaves no room for a claim of that size, or is empty.
// There is always room for a claim that exists: it is counted, and asking for it again adds
// nothing. An error that is not unavailable is transient.
func (l *ledger) refusal(ctx context.Context, pool *nodePool, claim string, size corev1.ResourceList) (full string, err error) {
	if len(pool.Spec.Limits) == 0 {
		return "", nil
	}
	u, err := l.usages.Get(ctx, pool.Name)
	if err != nil {
		return "", err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.full(u, pool, claim, size), nil
}

// reserve is room, and enters the claim, once, if there is room.
func (l *ledger) reserve(ctx context.Context, pool *nodePool, claim string, size corev1.ResourceList) (full string, err error) {
	if len(pool.Spec.Limits) == 0 {
		return "", nil
	}
	u, err := l.usages.Get(ctx, pool.Name)
	if err != nil {
		return "", err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if full := l.full(u, pool, claim, size); full != "" {
		return full, nil
	}
	if !l.counts(u, claim) {
		l.unlisted[claim] = &unlistedClaim{pool: pool.Name, size: size, at: time.Now()}
	}
	return "", nil
}

// left is how much of each limit of the pool is left for the claim, which may be less than nothing; nil
// if there are no limits, or the claim is counted already.
func (l *ledger) left(ctx context.Context, pool *nodePool, claim string) (corev1.ResourceList, error) {
	if len(pool.Spec.Limits) == 0 {
		return nil, nil
	}
	u, err := l.usages.Get(ctx, pool.Name)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.counts(u, claim) {
		return nil, nil
	}
	more, left := l.pending(u, pool), corev1.ResourceList{}
	for name, limit := range pool.Spec.Limits {
		limit = limit.DeepCopy()
		limit.Sub(pool.used(name, u.sum))
		limit.Sub(more[name])
		left[name] = limit
	}
	return left, nil
}

// pending are the claims of the pool that its usage lacks.
func (l *ledger) pending(u *usage, pool *nodePool) corev1.ResourceList {
	sum := corev1.ResourceList{}
	for name, o := range l.unlisted {
		if o.pool != pool.Name {
			continue
		}
		if _, listed := u.claims[name]; listed || u.asked.After(o.at.Add(maxUnlisted)) {
			delete(l.unlisted, name)
			continue
		}
		room.Add(sum, withNode(o.size))
	}
	return sum
}

// counts reports whether the claim is part of the usage, or of what it might lack.
func (l *ledger) counts(u *usage, claim string) bool {
	_, listed := u.claims[claim]
	return listed || l.unlisted[claim] != nil
}

// full is what refusal says, with the pool's usage known.
func (l *ledger) full(u *usage, pool *nodePool, claim string, size corev1.ResourceList) string {
	if l.counts(u, claim) {
		return ""
	}
	more := withNode(size)
	room.Add(more, l.pending(u, pool))
	return exceeded(pool, u.sum, more)
}

// forget drops a claim that was not made or no longer exists.
func (l *ledger) forget(claim string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.unlisted, claim)
}

// read is consistent: it includes what a leader ordered just before it died.
func (l *ledger) read(ctx context.Context, pool string) (*usage, error) {
	u := &usage{asked: time.Now(), sum: corev1.ResourceList{}, claims: map[string]struct{}{}}
	err := eachPage(ctx, l.client, nodeClaimResource, nodePoolLabel+"="+pool, func(o *unstructured.Unstructured) {
		claim := decodeClaim(o)
		u.claims[claim.Name] = struct{}{}
		room.Add(u.sum, withNode(claim.size()))
	})
	return u, err
}

// exceeded names the limits of the pool that are exceeded by more on top of what the pool uses.
func exceeded(pool *nodePool, claims, more corev1.ResourceList) string {
	var over []string
	for name := range pool.over(claims, more) {
		used, asked, limit := pool.used(name, claims), more[name], pool.Spec.Limits[name]
		over = append(over, fmt.Sprintf("%s: %s used, %s asked for, limit %s", name, used.String(), asked.String(), limit.String()))
	}
	if len(over) == 0 {
		return ""
	}
	slices.Sort(over)
	return "limit of NodePool " + pool.Name + " leaves no room (" + strings.Join(over, "; ") + ")"
}

// over is what the exceeded limits would have to be. A limit on what is not asked for does not
// concern us.
func (p *nodePool) over(claims, more corev1.ResourceList) corev1.ResourceList {
	over := corev1.ResourceList{}
	for name, limit := range p.Spec.Limits {
		total := p.used(name, claims)
		asked, ok := more[name]
		total.Add(asked)
		if ok && total.Cmp(limit) > 0 {
			over[name] = total
		}
	}
	return over
}

// used is how much of the resource the pool uses, according to its claims or its status.
func (p *nodePool) used(name corev1.ResourceName, claims corev1.ResourceList) resource.Quantity {
	used := p.Status.Resources[name]
	if q := claims[name]; q.Cmp(used) > 0 {
		used = q
	}
	return used.DeepCopy()
}

// withNode adds the node itself to its size, as the number of nodes can be limited too.
func withNode(size corev1.ResourceList) corev1.ResourceList {
	sum := corev1.ResourceList{}
	room.Add(sum, size)
	sum["nodes"] = *resource.NewQuantity(1, resource.DecimalSI)
	return sum
}

// size is what a claim counts for: its instance's capacity, and before its launch what it
// might come to.
func (c *Claim) size() corev1.ResourceList {
	if len(c.Status.Capacity) > 0 {
		return c.Status.Capacity
	}
	size := corev1.ResourceList{}
	if err := json.Unmarshal([]byte(c.Annotations[sizeAnnotation]), &size); err != nil {
		return c.Spec.Resources.Requests // Karpenter's own, or edited by somebody
	}
	return atLeast(c.Spec.Resources.Requests, size)
}

// sumRequests adds up what the pods ask for, as the scheduler counts it, and the number of pods
// itself.
func sumRequests(n provisioner.Need) corev1.ResourceList {
	sum := corev1.ResourceList{}
	for _, pods := range [][]*corev1.Pod{n.Moving, n.Daemons} {
		for _, pod := range pods {
			room.Add(sum, resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}))
		}
	}
	maps.DeleteFunc(sum, func(_ corev1.ResourceName, q resource.Quantity) bool { return q.Sign() <= 0 })
	sum[corev1.ResourcePods] = *resource.NewQuantity(int64(len(n.Moving)+len(n.Daemons)), resource.DecimalSI)
	return sum
}

// atLeast is the larger of each resource.
func atLeast(a, b corev1.ResourceList) corev1.ResourceList {
	most := corev1.ResourceList{}
	maps.Copy(most, a)
	for name, q := range b {
		if have := most[name]; q.Cmp(have) > 0 {
			most[name] = q
		}
	}
	return most
}
