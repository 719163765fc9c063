package karpenter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
)

const (
	// poolTTL is how long a NodePool is used after it was read. Interruptions come in bursts
	// within one pool. Karpenter itself updates the status every 5 s: a fresher copy would say
	// no more.
	poolTTL = 10 * time.Second

	// poolTimeout bounds the read that a burst waits for together.
	poolTimeout = 5 * time.Second

	// recheck is how long we believe that Karpenter is not available to us, which only an
	// installation or new RBAC rules change.
	recheck = time.Minute
)

// unavailableError says that Karpenter's API is not available to us: it is not installed, or
// RBAC forbids it. Trying again at once is of no use.
type unavailableError struct{ reason string }

func (e *unavailableError) Error() string { return e.reason }

// pools reads NodePools, each at most once per poolTTL, however many ask.
type pools struct {
	client dynamic.Interface
	reads  singleflight.Group

	mu    sync.Mutex
	read  map[string]*nodePool // last copies; a pool that does not exist has one without a name
	all   []*nodePool          // the last list, by name
	asked time.Time            // of all
	noAll *unavailableError    // why there is no list; named pools are read anyway
	away  *unavailableError
	until time.Time // of away
}

func newPools(client dynamic.Interface) *pools {
	return &pools{client: client, read: map[string]*nodePool{}}
}

// get is the NodePool, or nil if there is none. The error is an unavailableError, or
// transient. The pool is shared and must not be changed.
func (p *pools) get(ctx context.Context, name string) (*nodePool, error) {
	pool, err := p.cached(name)
	if pool == nil && err == nil {
		// The read is shared: if the first caller gives up, the others must not fail.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), poolTimeout)
		defer cancel()
		var v any
		v, err, _ = p.reads.Do(name, func() (any, error) { return p.fetch(ctx, name) })
		pool, _ = v.(*nodePool)
	}
	if err != nil || pool.Name == "" {
		return nil, err
	}
	return pool, nil
}

// list is every NodePool, by name, under the same conditions as get.
func (p *pools) list(ctx context.Context) ([]*nodePool, error) {
	p.mu.Lock()
	all, err := p.freshList()
	p.mu.Unlock()
	if all != nil || err != nil {
		return all, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), poolTimeout)
	defer cancel()
	v, err, _ := p.reads.Do("", func() (any, error) { return p.fetchAll(ctx) }) // no pool has an empty name
	all, _ = v.([]*nodePool)
	return all, err
}

// freshList is the last list while it is fresh, or why there is none.
func (p *pools) freshList() ([]*nodePool, error) {
	now := time.Now()
	switch {
	case p.away != nil && now.Before(p.until):
		return nil, p.away
	case p.noAll != nil && now.Before(p.asked.Add(recheck)):
		return nil, p.noAll
	case p.noAll == nil && now.Before(p.asked.Add(poolTTL)):
		return p.all, nil
	}
	return nil, nil
}

func (p *pools) fetchAll(ctx context.Context) ([]*nodePool, error) {
	p.mu.Lock()
	all, err := p.freshList() // by an earlier flight
	p.mu.Unlock()
	if all != nil || err != nil {
		return all, err
	}
	asked := time.Now()
	list, err := p.client.Resource(nodePoolResource).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		err = asUnavailable("list NodePools", fmt.Errorf("list NodePools: %w", err))
		if away, ok := errors.AsType[*unavailableError](err); ok {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.noAll, p.asked = away, asked
		}
		return nil, err
	}
	all = make([]*nodePool, len(list.Items))
	for i := range list.Items {
		all[i] = decodePool(&list.Items[i])
		all[i].read = asked
	}
	slices.SortFunc(all, func(a, b *nodePool) int { return strings.Compare(a.Name, b.Name) })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all, p.asked, p.noAll = all, asked, nil
	for _, pool := range all {
		p.read[pool.Name] = pool
	}
	return all, nil
}

func (p *pools) cached(name string) (*nodePool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.away != nil && now.Before(p.until) {
		return nil, p.away
	}
	if pool := p.read[name]; pool != nil && now.Before(pool.read.Add(poolTTL)) {
		return pool, nil
	}
	return nil, nil
}

func (p *pools) fetch(ctx context.Context, name string) (*nodePool, error) {
	// An earlier flight might have landed just before this one began.
	if pool, err := p.cached(name); pool != nil || err != nil {
		return pool, err
	}
	pool, asked := &nodePool{}, time.Now()
	// "0" is answered from the API server's watch cache.
	u, err := p.client.Resource(nodePoolResource).Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
	switch {
	case err == nil:
		pool = decodePool(u)
	case isMissing(err):
	default:
		return nil, p.noteUnavailable("get NodePools", fmt.Errorf("get NodePool %q: %w", name, err))
	}
	pool.read = asked
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read[name] = pool
	return pool, nil
}

// noteUnavailable turns the error of an action into an unavailableError, and remembers it, if
// it is one: then nothing can be done for any node.
func (p *pools) noteUnavailable(action string, err error) error {
	err = asUnavailable(action, err)
	if away, ok := errors.AsType[*unavailableError](err); ok {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.away, p.until = away, time.Now().Add(recheck)
	}
	return err
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

// unavailable is the reason of an unavailableError.
func unavailable(err error) (string, bool) {
	if e, ok := errors.AsType[*unavailableError](err); ok {
		return e.reason, true
	}
	return "", false
}
