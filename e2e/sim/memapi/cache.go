package memapi

import (
	"context"
	"slices"
	"strconv"
	"time"
)

// The watch cache of the API server that answers now can be behind: that of an instance to which the load balancer has
// just turned, or that etcd tells nothing for a while. What is asked of it then is what the real one answers:
//
//   - Without a resource version, a get is answered from etcd, and a list waits for the cache and is then answered from
//     etcd all the same.
//   - With version 0, both are answered from the cache, as old as it is. So is a watch that begins at version 0.
//   - With another version, both wait for the cache to have that one, and fail if it takes too long.
//   - A watch that resumes is accepted, and silent until the cache has something newer than what it resumes from.
//   - A watch that is to send the initial objects waits as a list does; but it fails.
//
// https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/staging/src/k8s.io/apiserver/pkg/storage/cacher/delegator.go
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/staging/src/k8s.io/apiserver/pkg/storage/cacher/cacher.go
const cacheWaits = 3 * time.Second // blockTimeout, in watch_cache.go there

// FallBehind has the watch caches of the kinds that pick names stay as they were that long ago, or as long ago as the
// past is known, until CatchUp. The lock is held.
func (s *Server) FallBehind(by time.Duration, pick func(*Kind) bool) {
	since := time.Now().Add(-by)
	for _, c := range s.byPath {
		if c.caught != nil || !pick(c.Kind) {
			continue
		}
		c.caught, c.cached = make(chan struct{}), s.version
		at := slices.IndexFunc(c.history, func(e *event) bool { return e.at.After(since) })
		if at >= 0 {
			c.cached = c.history[at].version - 1
		}
	}
}

// CatchUp has all watch caches be as new as the objects again. The lock is held.
func (s *Server) CatchUp() {
	for _, c := range s.byPath {
		if c.caught != nil {
			close(c.caught)
		}
		c.caught = nil
	}
	for w := range s.watches {
		w.poke()
	}
}

// cacheVersion is the last change's that the watch cache has.
func (s *Server) cacheVersion(c *collection) int64 {
	if c.caught == nil {
		return s.version
	}
	return max(c.cached, c.expired) // what is forgotten cannot be told
}

// inCache are the objects, and their keys in order, as the watch cache has them.
func (c *collection) inCache(version int64) (objects map[string]*stored, keys []string) {
	if c.caught == nil {
		return c.objects, c.keys
	}
	objects = map[string]*stored{}
	for key, obj := range c.objects {
		objects[key] = obj
	}
	for _, e := range slices.Backward(c.history) {
		switch {
		case e.version <= version:
		case e.before != nil:
			objects[Key(e.before.obj)] = e.before
		default:
			delete(objects, Key(e.after.obj))
		}
	}
	for key := range objects {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return objects, keys
}

// needs is the version that the watch cache must have to answer the request; 0: any will do.
func (s *Server) needs(q *Request) int64 {
	version, initial := q.Query.Get("resourceVersion"), q.Query.Get("sendInitialEvents") == "true"
	asked, _ := strconv.ParseInt(version, 10, 64)
	switch {
	case q.Query.Get("continue") != "", q.Verb == "watch" && !initial:
		return 0
	case version == "" && q.Verb != "get":
		return s.version
	}
	return asked
}

// awaitCache waits until the watch cache is as new as the request needs it, or has waited long enough.
func (s *Server) awaitCache(ctx context.Context, q *Request) {
	if q.Kind == nil || q.Verb != "list" && q.Verb != "get" && q.Verb != "watch" {
		return
	}
	s.mu.Lock()
	c := s.of(q.Kind)
	q.needs = s.needs(q)
	caught, fresh := c.caught, s.cacheVersion(c) >= q.needs
	s.mu.Unlock()
	if fresh {
		return
	}
	timer := time.NewTimer(cacheWaits)
	defer timer.Stop()
	select {
	case <-caught:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// read is how the request sees the objects of its kind, and as of which version; f: the watch cache does not have what
// it asks for.
func (s *Server) read(
	c *collection, q *Request,
) (objects map[string]*stored, keys []string, version int64, f *Failure) {
	cached := s.cacheVersion(c)
	switch {
	case q.Query.Get("resourceVersion") == "" && q.Verb != "watch":
		return c.objects, c.keys, s.version, nil
	case q.needs > cached:
		return nil, nil, 0, tooLargeVersion(q.needs, cached)
	}
	objects, keys = c.inCache(cached)
	return objects, keys, cached, nil
}
