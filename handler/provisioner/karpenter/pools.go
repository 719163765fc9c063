package karpenter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"spot-handler/handler/readcache"
)

const (
	// poolTTL is how long a NodePool is used after it was read. Interruptions come in bursts
	// within one pool. Karpenter itself updates the status every 5 s: a fresher copy would say
	// no more.
	poolTTL = 10 * time.Second

	// refusedFor is how long it stands that there is no replacement for a node.
	refusedFor = 5 * time.Second

	// poolTimeout bounds the read that a burst waits for together.
	poolTimeout = 5 * time.Second

	// recheck is how long we believe that Karpenter is not available to us, which only an
	// installation or new RBAC rules change.
	recheck = time.Minute
)

// newReadCache keeps what is read for ttl. That it is not available to us is kept for recheck;
// other errors are not kept.
func newReadCache[V any](ttl time.Duration, read func(ctx context.Context, key string) (V, error)) *readcache.Cache[V] {
	return &readcache.Cache[V]{
		Read: func(ctx context.Context, key string) (V, error) {
			ctx, cancel := context.WithTimeout(ctx, poolTimeout)
			defer cancel()
			return read(ctx, key)
		},
		Lifetime: func(err error) time.Duration {
			if err == nil {
				return ttl
			}
			if _, away := unavailable(err); away {
				return recheck
			}
			return 0
		},
	}
}

// unavailableError says that Karpenter's API is not available to us: it is not installed, or
// RBAC forbids it. Trying again at once is of no use.
type unavailableError struct{ reason string }

func (e *unavailableError) Error() string { return e.reason }

// unavailable is the reason of an unavailableError.
func unavailable(err error) (string, bool) {
	if e, ok := errors.AsType[*unavailableError](err); ok {
		return e.reason, true
	}
	return "", false
}

// asUnavailable turns the error of an action into an unavailableError if it is one.
func asUnavailable(action string, err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return &unavailableError{reason: "the API server forbids us to " + action}
	case apierrors.IsNotFound(err) && !isMissing(err):
		return &unavailableError{reason: "the API of Karpenter (karpenter.sh/v1) is not installed"}
	}
	return err
}

// isMissing reports that an object does not exist, as opposed to its whole API: for
// that the API server answers with a bare page, which client-go marks as unexpected.
func isMissing(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// pools reads NodePools.
type pools struct {
	client dynamic.Interface
	named  *readcache.Cache[*nodePool]   // nil for a pool that does not exist
	all    *readcache.Cache[[]*nodePool] // under the key ""
	away   *readcache.Cache[struct{}]    // why nothing can be done for any node, under the key ""; only kept
}

func newPools(client dynamic.Interface) *pools {
	p := &pools{client: client, away: newReadCache[struct{}](0, nil)}
	p.named, p.all = newReadCache(poolTTL, p.read), newReadCache(poolTTL, p.readAll)
	return p
}

// get is the NodePool, or nil if there is none.
func (p *pools) get(ctx context.Context, name string) (*nodePool, error) {
	if err := p.standing(); err != nil {
		return nil, err
	}
	return p.named.Get(ctx, name)
}

// list is every NodePool, by name. If we may not list them, named pools are read anyway.
func (p *pools) list(ctx context.Context) ([]*nodePool, error) {
	if err := p.standing(); err != nil {
		return nil, err
	}
	return p.all.Get(ctx, "")
}

func (p *pools) read(ctx context.Context, name string) (*nodePool, error) {
	// "0" is answered from the API server's watch cache.
	u, err := p.client.Resource(nodePoolResource).Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
	switch {
	case isMissing(err):
		return nil, nil
	case err != nil:
		return nil, p.note(asUnavailable("get NodePools", fmt.Errorf("get NodePool %q: %w", name, err)))
	}
	return decodePool(u), nil
}

func (p *pools) readAll(ctx context.Context, _ string) ([]*nodePool, error) {
	asked := time.Now()
	list, err := p.client.Resource(nodePoolResource).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, asUnavailable("list NodePools", fmt.Errorf("list NodePools: %w", err))
	}
	all := make([]*nodePool, len(list.Items))
	for i := range list.Items {
		all[i] = decodePool(&list.Items[i])
		p.named.Put(all[i].Name, readcache.Answer[*nodePool]{Value: all[i], Asked: asked})
	}
	slices.SortFunc(all, func(a, b *nodePool) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// note remembers an unavailableError: then nothing can be done for any node.
func (p *pools) note(err error) error {
	p.away.Put("", readcache.Answer[struct{}]{Err: err, Asked: time.Now()})
	return err
}

// standing is the unavailableError that was noted last, while it counts.
func (p *pools) standing() error {
	if last, fresh := p.away.Last(""); fresh {
		return last.Err
	}
	return nil
}

// RebalanceAnnotation on a NodePool says what to do on a rebalance recommendation for its
// nodes. It overrides the operator's choice for all nodes.
const RebalanceAnnotation = "spot-handler/rebalance"

// RebalancePolicy is what the node's NodePool asks for on a rebalance recommendation: one of
// allowed, or nothing. Another value counts as nothing, and is complained about once. The
// NodePool is read at most every 10 s, however many ask. If it cannot be read, its last
// known value counts; without one there is a transient error. If Karpenter is not installed,
// or we have no permission to ask, there are no policies.
func (b *Backend) RebalancePolicy(node *corev1.Node, allowed []string) (string, error) {
	name := node.Labels[nodePoolLabel]
	if name == "" {
		return "", nil
	}
	pool, err := b.policies.Get(context.Background(), name)
	if pool == nil {
		return "", err
	}
	value := pool.Annotations[RebalanceAnnotation]
	if value == "" || slices.Contains(allowed, value) {
		return value, nil
	}
	text := fmt.Sprintf("annotation %s is %q: want one of %s; --rebalance counts", RebalanceAnnotation, value, strings.Join(allowed, ", "))
	if b.said.First(name + ": " + text) {
		b.event("NodePool", pool.ObjectMeta, true, reasonWrongPolicy, text)
		b.log.Warn().Str("nodepool", name).Str("reason", text).Msg("rebalance policy of NodePool not understood")
	}
	return "", nil
}

// readPolicy reads the NodePool whose annotation says what to do; nil if NodePools are not available.
func (b *Backend) readPolicy(ctx context.Context, name string) (*nodePool, error) {
	pool, err := b.pools.get(ctx, name)
	if err == nil {
		return pool, nil
	}
	if _, away := unavailable(err); away {
		return nil, nil
	}
	if last, _ := b.policies.Last(name); !last.Asked.IsZero() && last.Err == nil {
		return last.Value, nil
	}
	return nil, fmt.Errorf("read NodePool %q: %w", name, err)
}
