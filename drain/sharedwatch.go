package drain

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/rs/zerolog"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/rewatch"
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

// informer is an informer with its store.
type informer struct {
	cache.Store
	cache.Controller
}

// startInformer runs one until ctx ends, and calls synced once it knows everything.
func startInformer(ctx context.Context, synced func(), options cache.InformerOptions) *informer {
	i := &informer{}
	i.Store, i.Controller = cache.NewInformerWithOptions(options)
	go i.RunWithContext(ctx)
	go func() {
		select {
		case <-i.HasSyncedChecker().Done():
			synced()
		case <-ctx.Done():
		}
	}()
	return i
}

// contents is what a store holds.
func contents[T any](store cache.Store) []T {
	var list []T
	for _, obj := range store.List() {
		if object, ok := obj.(T); ok {
			list = append(list, object)
		}
	}
	return list
}

// dynamicWatch lists and watches what pick selects, with the dynamic client: the generated
// informers would bring the types of whole API groups with them. If the API server forbids
// it, refused is called: an informer would only try again, forever, and whatever waits for it
// would wait as long.
func dynamicWatch(client dynamic.Interface, of dynamic.ResourceInterface, pick func(*metav1.ListOptions), refused func(error), logger zerolog.Logger) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(rewatch.Soon(rewatch.Of(of, pick), func(err error) {
		if apierrors.IsForbidden(err) {
			refused(err)
		}
	}, logger), client)
}
