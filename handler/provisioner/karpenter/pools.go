package karpenter

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/readcache"
)

const (
	// poolTTL is how long the NodePools are used after they were read. Interruptions come in bursts.
	// Karpenter itself updates the status every 5 s: a fresher copy would say no more.
	poolTTL = 10 * time.Second

	// refusedFor is how long it stands that there is no replacement for a node.
	refusedFor = 5 * time.Second

	// poolTimeout bounds the read that a burst waits for together, and failedFor is how long one that
	// failed is not repeated.
	poolTimeout = 5 * time.Second
	failedFor   = time.Second

	// recheck is how long we believe that Karpenter is not available to us, which only an
	// installation or new RBAC rules change.
	recheck = time.Minute
)

// newReadCache keeps what is read for ttl. That it is not available to us is kept for recheck;
// other errors for failedFor.
func newReadCache[V any](ttl time.Duration, read func(ctx context.Context, key string) (V, error)) *readcache.Cache[V] {
	return &readcache.Cache[V]{
		Read: func(ctx context.Context, key string) (V, error) {
			ctx, cancel := context.WithTimeout(ctx, poolTimeout)
			defer cancel()
			return read(ctx, key)
		},
		Lifetime: func(err error) time.Duration {
			_, away := unavailable(err)
			switch {
			case err == nil:
				return ttl
			case away:
				return recheck
			}
			return failedFor
		},
	}
}

// unavailable says why Karpenter's API is not available to us, if that is the error: it is not
// installed, or RBAC forbids it. Trying again at once is of no use.
func unavailable(err error) (reason string, ok bool) {
	switch {
	case apierrors.IsForbidden(err):
		return "the API server forbids it: " + provisioner.Cause(err), true
	case apierrors.IsNotFound(err) && !isMissing(err):
		return "the API of Karpenter (karpenter.sh/v1) is not installed", true
	}
	return "", false
}

// isMissing reports that an object does not exist, as opposed to its whole API: for
// that the API server answers with a bare page, which client-go marks as unexpected.
func isMissing(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// note remembers that Karpenter is not available to us, if that is the error: then nothing can be
// done for any node.
func (b *Backend) note(err error) error {
	if reason, ok := unavailable(err); ok {
		b.refusals.Put("", readcache.Answer[interruption.Replacement]{Value: unsupported(reason), Err: err, Asked: time.Now()})
	}
	return err
}

// readPools reads all NodePools, and orders them by name. If that fails, what was known of them
// counts.
func (b *Backend) readPools(ctx context.Context, _ string) ([]*nodePool, error) {
	// "0" is answered from the API server's watch cache.
	list, err := b.opts.Dynamic.Resource(nodePoolResource).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		_, away := unavailable(err)
		if last, _ := b.pools.Last(""); !away && last.Value != nil {
			return last.Value, nil
		}
		return nil, fmt.Errorf("list NodePools: %w", err)
	}
	all := make([]*nodePool, len(list.Items))
	for i := range list.Items {
		all[i] = decodePool(&list.Items[i])
	}
	slices.SortFunc(all, func(a, b *nodePool) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

func poolNamed(pools []*nodePool, name string) *nodePool {
	if i := slices.IndexFunc(pools, func(p *nodePool) bool { return p.Name == name }); i >= 0 {
		return pools[i]
	}
	return nil
}

// RebalanceAnnotation on a NodePool says what to do on a rebalance recommendation for its
// nodes. It overrides the operator's choice for all nodes.
const RebalanceAnnotation = "spot-handler/rebalance"

// RebalancePolicy is the policy that the node's NodePool sets for rebalance recommendations, or empty.
// An invalid value counts as empty, and the NodePool gets an Event about it once. The NodePools are
// read at most every 10 s, however many callers ask. If they cannot be read, what was last known
// counts; without that there is a transient error. If Karpenter is not installed,
// or we have no permission to ask, there are no policies.
func (b *Backend) RebalancePolicy(node *corev1.Node) (interruption.RebalancePolicy, error) {
	name := node.Labels[nodePoolLabel]
	if name == "" {
		return "", nil
	}
	pools, err := b.pools.Get(context.Background(), "")
	if _, away := unavailable(err); err != nil && !away {
		return "", err
	}
	pool := poolNamed(pools, name)
	if pool == nil {
		return "", nil
	}
	value := interruption.RebalancePolicy(pool.Annotations[RebalanceAnnotation])
	if value == "" || slices.Contains(interruption.RebalancePolicies(), value) {
		return value, nil
	}
	var known []string
	for _, policy := range interruption.RebalancePolicies() {
		known = append(known, string(policy))
	}
	b.misunderstood(pool, reasonWrongPolicy, fmt.Sprintf("annotation %s is %s: want one of %s; --rebalance counts",
		RebalanceAnnotation, interruption.Clip(strconv.Quote(string(value))), strings.Join(known, ", ")))
	return "", nil
}

// misunderstood complains about an annotation of the pool, once.
func (b *Backend) misunderstood(pool *nodePool, reason, text string) {
	if b.said.First(pool.Name + ": " + text) {
		b.event("NodePool", pool.ObjectMeta, true, reason, text)
		b.log.Warn().Str("nodepool", pool.Name).Str("reason", text).Msg("annotation of NodePool not understood")
	}
}

// rank makes an order in each of the pools, best first, as preferences say.
func (lost lostNode) rank(list []candidate) []claimOrder {
	orders := make([]claimOrder, len(list))
	for i, c := range list {
		orders[i] = lost.orderIn(c)
	}
	slices.SortFunc(orders, func(a, b claimOrder) int {
		order, _ := lost.compare(a, b)
		return order
	})
	return orders
}

// preferences say which of two orders is better; the first that tells them apart decides.
var preferences = []struct {
	why     string // of the better one's pool
	compare func(lost lostNode, a, b claimOrder) int
}{
	{"takes more of the pods", func(_ lostNode, a, b claimOrder) int {
		return cmp.Compare(len(b.fit.need.Moving), len(a.fit.need.Moving))
	}},
	{"has not lost too many nodes", func(lost lostNode, a, b claimOrder) int { return first(!lost.unsafe(a), !lost.unsafe(b)) }},
	{"has not just failed to launch a spot instance", func(_ lostNode, a, b claimOrder) int { return first(!a.inVain, !b.inVain) }},
	{"can give another spot instance", func(_ lostNode, a, b claimOrder) int { return first(a.capacity == spot, b.capacity == spot) }}, // on a rebalance recommendation
	{"is the node's own", func(lost lostNode, a, b claimOrder) int {
		return first(a.capacity == spot && a.pool.Name == lost.pool, b.capacity == spot && b.pool.Name == lost.pool)
	}},
	{"was not hit lately", func(lost lostNode, a, b claimOrder) int { return first(!lost.risky(a.pool), !lost.risky(b.pool)) }},
	{"has the labels and taints of the node's pool", func(lost lostNode, a, b claimOrder) int { return first(lost.alike(a.pool), lost.alike(b.pool)) }},
	{"has a lower weight than the node's pool", func(lost lostNode, a, b claimOrder) int { return first(lost.below(a.pool), lost.below(b.pool)) }},
	{"has a higher weight", func(_ lostNode, a, b claimOrder) int { return cmp.Compare(b.pool.Spec.Weight, a.pool.Spec.Weight) }},
	{"comes first by name", func(_ lostNode, a, b claimOrder) int { return strings.Compare(a.pool.Name, b.pool.Name) }},
}

// compare puts the better of two orders first, and says why it is better.
func (lost lostNode) compare(a, b claimOrder) (order int, why string) {
	for _, p := range preferences {
		if order := p.compare(lost, a, b); order != 0 {
			return order, p.why
		}
	}
	return 0, ""
}

// first puts what is true before what is not.
func first(a, b bool) int {
	order := []bool{true, false}
	return slices.Index(order, a) - slices.Index(order, b)
}

func (lost lostNode) orderIn(c candidate) claimOrder {
	o := claimOrder{candidate: c, lost: lost, until: lost.protectedUntil(c), remark: lost.remark}
	s := newShape(c.pool, lost.source, lost.node)
	if c.capacity == spot {
		lost.avoidRisk(s)
	} else {
		s.preferOnDemand()
	}
	o.fit = fitTo(s, lost.need)
	o.ask = sumRequests(o.fit.need)
	// Karpenter chooses the instance type: a cheap one that fits, as the interrupted node's own
	// type did. That node's claim says how large that is (with the kwok provider, only how much
	// of it pods can have); the Node that we are given is lean and does not say.
	o.size = o.ask
	if lost.claim != nil {
		o.size = atLeast(atLeast(o.ask, lost.claim.Status.Capacity), lost.claim.Status.Allocatable)
	}
	if n := len(lost.need.Moving) - len(o.fit.need.Moving); n > 0 {
		without := fmt.Sprintf("without %d of %d pods, which cannot run in pool %s: %s", n, len(lost.need.Moving), c.pool.Name, o.fit.remark())
		o.remark = strings.TrimPrefix(o.remark+"; "+without, "; ")
	}
	return o
}

// risky reports whether a node that is only at risk had better not go to the pool, which was
// hit lately. On an interruption any pool that has room will do.
func (lost lostNode) risky(pool *nodePool) bool {
	return lost.rec.Kind == interruption.RebalanceRecommendation &&
		slices.ContainsFunc(lost.lately, func(l offerings.Loss) bool { return l.Pool == pool.Name })
}

// unsafe reports whether the order is of a spot instance in a pool that has lost too many.
func (lost lostNode) unsafe(o claimOrder) bool {
	_, tooMany := lost.tooMany[o.pool.Name]
	return tooMany && (o.capacity == spot || hasNoOnDemand(o.pool, lost) != "")
}

// alike reports whether the pool gives its nodes the labels and taints that the source
// pool does.
func (lost lostNode) alike(pool *nodePool) bool {
	if lost.source == nil || lost.source.broken != "" {
		return false
	}
	return maps.Equal(ownLabels(lost.source, lost.node), ownLabels(pool, lost.node)) &&
		slices.Equal(taintsOf(lost.source), taintsOf(pool))
}

func taintsOf(pool *nodePool) []string {
	var list []string
	for _, t := range pool.Spec.Template.Spec.Taints {
		list = append(list, t.ToString())
	}
	slices.Sort(list)
	return list
}

// below reports whether Karpenter prefers the source pool to this one.
func (lost lostNode) below(pool *nodePool) bool {
	return lost.source == nil || pool.Spec.Weight < lost.source.Spec.Weight
}

// rebalanceWindow is how long a replacement can wait for pods if no deadline ends the wait:
// two minutes to boot, and three for the pods to move.
const rebalanceWindow = 5 * time.Minute

// protectedUntil is how long a replacement in the pool has to be protected from
// consolidation: until our pods are there, at most until the end of the interrupted node,
// and not at all if Karpenter would not be faster than that, unless it is held afterwards. While an
// empty node is protected, Karpenter might move other nodes' healthy pods onto it.
func (lost lostNode) protectedUntil(c candidate) time.Time {
	end := lost.rec.Deadline
	if end.IsZero() {
		end = time.Now().Add(rebalanceWindow)
	}
	after, ok := c.pool.consolidates()
	if !ok || after >= time.Until(end) && !lost.isHeld(c) {
		return time.Time{}
	}
	return end
}
