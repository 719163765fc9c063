package drain

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// sharedWatch is what draining nodes watch together: a T for each key, from when the first node
// uses it until the last has left.
type sharedWatch[K comparable, T any] struct {
	begin  func(ctx context.Context, key K) T // watches until ctx ends
	notify func(node string)

	mu   sync.Mutex
	used map[K]*sharedUse[T]
}

type sharedUse[T any] struct {
	watched T
	stop    context.CancelFunc
	nodes   map[string]struct{}
}

func newSharedWatch[K comparable, T any](notify func(string), begin func(context.Context, K) T) sharedWatch[K, T] {
	return sharedWatch[K, T]{begin: begin, notify: notify, used: map[K]*sharedUse[T]{}}
}

// use watches on behalf of the node, until leave.
func (s *sharedWatch[K, T]) use(ctx context.Context, node string, key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return // the node's drain has ended
	}
	of := s.used[key]
	if of == nil {
		of = &sharedUse[T]{nodes: map[string]struct{}{}}
		ctx, of.stop = context.WithCancel(context.WithoutCancel(ctx))
		of.watched = s.begin(ctx, key)
		s.used[key] = of
	}
	of.nodes[node] = struct{}{}
}

// leave ends the watches that only this node has used.
func (s *sharedWatch[K, T]) leave(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, of := range s.used {
		delete(of.nodes, node)
		if len(of.nodes) == 0 {
			of.stop()
			delete(s.used, key)
		}
	}
}

// get is what is watched, or zero.
func (s *sharedWatch[K, T]) get(key K) (watched T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of := s.used[key]; of != nil {
		watched = of.watched
	}
	return watched
}

// all is everything that is watched.
func (s *sharedWatch[K, T]) all() []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []T
	for _, of := range s.used {
		list = append(list, of.watched)
	}
	return list
}

// usersOf names the nodes on whose behalf it is watched.
func (s *sharedWatch[K, T]) usersOf(key K) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of := s.used[key]; of != nil {
		return slices.Collect(maps.Keys(of.nodes))
	}
	return nil
}

// notifyUsers has those nodes planned again.
func (s *sharedWatch[K, T]) notifyUsers(key K) {
	for _, node := range s.usersOf(key) {
		s.notify(node)
	}
}
