package karpenter

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
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
