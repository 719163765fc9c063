package drain

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apicache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/fair"
	"spot-handler/drain/plan"
)

var (
	claimResource     = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}
	namespaceResource = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
)

const (
	// lookupTTL is after how long an answer is read again. Until that has been done it is used on, for
	// as long again: nothing becomes unknown in the middle of a drain.
	lookupTTL = 5 * time.Minute
	// lookupTimeout bounds one request.
	lookupTimeout = 5 * time.Second
	// lookupRetry is how long after a failure the next request is made.
	lookupRetry = 2 * time.Second
)

// objectCache reads single objects that few plans need, each only once in a while, however
// many pods ask.
type objectCache[T any] struct {
	kind   string
	read   func(ctx context.Context, name types.NamespacedName) (T, error)
	places *fair.Lane
	notify func(node string)
	known  *apicache.Expiring // each a lookedUp[T], by name

	mu    sync.Mutex
	asked map[types.NamespacedName]map[string]struct{} // which nodes wait for those that are being read
}

type lookedUp[T any] struct {
	value T
	at    time.Time
}

func newObjectCache[T any](kind string, places *fair.Lane, notify func(string), read func(context.Context, types.NamespacedName) (T, error)) *objectCache[T] {
	return &objectCache[T]{
		kind: kind, read: read, places: places, notify: notify, known: apicache.NewExpiring(), asked: map[types.NamespacedName]map[string]struct{}{},
	}
}

// get is the answer, or false while it is being read for the first time. It does not block: the node
// is notified when to ask again, once it has been read, and once it can be read again after it could
// not. That is no time of a plan, as a node can be waiting that has none yet.
func (l *objectCache[T]) get(ctx context.Context, name types.NamespacedName, node string) (value T, ok bool) {
	found, _ := l.known.Get(name)
	known, ok := found.(lookedUp[T])
	if ok && time.Since(known.at) < lookupTTL {
		return known.value, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asked[name] == nil {
		l.asked[name] = map[string]struct{}{}
		ctx = context.WithoutCancel(ctx)
		l.places.Do(ctx, fair.Task{Tenant: name.Namespace, Who: types.UID(l.kind + "/" + name.Name), Run: func() { l.fill(ctx, name) }})
	}
	l.asked[name][node] = struct{}{}
	return known.value, ok
}

// fill reads the object.
func (l *objectCache[T]) fill(ctx context.Context, name types.NamespacedName) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	value, err := l.read(ctx, name)
	if err != nil {
		time.AfterFunc(lookupRetry, func() { l.notifyAsked(name) })
		return
	}
	l.known.Set(name, lookedUp[T]{value, time.Now()}, 2*lookupTTL)
	l.notifyAsked(name)
}

// notifyAsked notifies the nodes that have asked.
func (l *objectCache[T]) notifyAsked(name types.NamespacedName) {
	l.mu.Lock()
	asked := l.asked[name]
	delete(l.asked, name)
	l.mu.Unlock()
	for node := range asked {
		l.notify(node)
	}
}

func readClaim(client dynamic.Interface) func(context.Context, types.NamespacedName) (plan.Claim, error) {
	return func(ctx context.Context, name types.NamespacedName) (plan.Claim, error) {
		u, err := readObject(ctx, client, claimResource, name)
		if u == nil {
			return plan.Claim{}, err // not shared, to be on the safe side
		}
		return claimOf(u), nil
	}
}

// readObject reads one from the API server's cache; nil if there is none, or it must not be read.
func readObject(ctx context.Context, client dynamic.Interface, kind schema.GroupVersionResource, name types.NamespacedName) (*unstructured.Unstructured, error) {
	u, err := client.Resource(kind).Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{ResourceVersion: "0"})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %s %q: %w", kind.Resource, cache.ObjectName(name), err)
	}
	return u, nil
}

func claimOf(u *unstructured.Unstructured) plan.Claim {
	modes, _, _ := unstructured.NestedStringSlice(u.Object, "spec", "accessModes")
	volume, _, _ := unstructured.NestedString(u.Object, "spec", "volumeName")
	return plan.Claim{Shared: plan.Shared(modes), Volume: volume}
}

// readPreferences reads what a namespace asks for its pods. One that must not be read asks nothing.
func readPreferences(client dynamic.Interface) func(context.Context, types.NamespacedName) (plan.Preferences, error) {
	return func(ctx context.Context, in types.NamespacedName) (plan.Preferences, error) {
		u, err := readObject(ctx, client, namespaceResource, types.NamespacedName{Name: in.Namespace})
		if u == nil {
			return plan.Preferences{}, err
		}
		return plan.PreferencesOf(u.GetAnnotations()), nil
	}
}

// How many watches and look-ups are begun at the same moment: each has the API server read a node's
// pods, or a namespace's objects, and a thousand at once would hold up everything else. Of one
// namespace they are fewer, as its objects can be so many and so large that all of them take long: it
// can have a third, see [fair.Lane]. As many as there are wait for their turn.
const (
	startsAtOnce  = 32
	lookupsAtOnce = 48
	allCanWait    = 1 << 30
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
