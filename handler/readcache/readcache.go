// Package readcache keeps what was read of a service for a while, so many who need the same at
// once cost it one request.
package readcache

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	// crowded is how much a cache keeps before it drops what is no longer fresh.
	crowded = 1000

	// most bounds what a cache keeps: whatever is fresh, it begins again with nothing.
	most = 10_000
)

// A Cache keeps what was read under each key. It is safe for concurrent use.
type Cache[V any] struct {
	// Read makes one request, bounded in time. Its context does not end with that of a caller, as
	// all who ask meanwhile share the answer.
	Read func(ctx context.Context, key string) (V, error)

	// Lifetime is how long an answer is fresh that came with this error, which can be nil. Zero:
	// it is not kept.
	Lifetime func(err error) time.Duration

	reads singleflight.Group

	mu   sync.Mutex
	kept map[string]Answer[V]
}

// For returns a Lifetime that keeps answers for good, and errors that wrap one for failed; if one is
// nil, all errors. Other errors are not kept.
func For(good, failed time.Duration, one error) func(error) time.Duration {
	return func(err error) time.Duration {
		switch {
		case err == nil:
			return good
		case one == nil, errors.Is(err, one):
			return failed
		}
		return 0
	}
}

// An Answer is what came of a read.
type Answer[V any] struct {
	Value V
	Err   error
	Asked time.Time
}

// Get is the answer, which is shared and must not be changed. If ctx ends before it comes, the
// error is the cause.
func (c *Cache[V]) Get(ctx context.Context, key string) (V, error) {
	if a, fresh := c.Last(key); fresh {
		return a.Value, a.Err
	}
	return c.share(ctx, key)
}

// share reads, or waits for the read that is under way.
func (c *Cache[V]) share(ctx context.Context, key string) (V, error) {
	unbound := context.WithoutCancel(ctx)
	read := c.reads.DoChan(key, func() (any, error) {
		// An earlier read may have ended since the caller found nothing.
		if a, fresh := c.Last(key); fresh {
			return a, nil
		}
		a := Answer[V]{Asked: time.Now()}
		a.Value, a.Err = c.Read(unbound, key)
		c.Put(key, a)
		return a, nil
	})
	select {
	case r := <-read:
		a, _ := r.Val.(Answer[V])
		return a.Value, a.Err
	case <-ctx.Done():
		var none V
		return none, context.Cause(ctx)
	}
}

// Last is the last answer that was kept, and whether it is still fresh.
func (c *Cache[V]) Last(key string) (a Answer[V], fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a = c.kept[key]
	return a, c.isFresh(a)
}

func (c *Cache[V]) isFresh(a Answer[V]) bool {
	return !a.Asked.IsZero() && time.Since(a.Asked) < c.Lifetime(a.Err)
}

// Put keeps an answer, unless it has no lifetime.
func (c *Cache[V]) Put(key string, a Answer[V]) {
	if c.Lifetime(a.Err) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.kept) >= crowded {
		maps.DeleteFunc(c.kept, func(_ string, a Answer[V]) bool { return !c.isFresh(a) })
	}
	if c.kept == nil || len(c.kept) >= most {
		c.kept = map[string]Answer[V]{}
	}
	c.kept[key] = a
}
