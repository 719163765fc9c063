// Package memapi is a Kubernetes API server in memory, reached without a network. It has what
// spot-handler rests on: one resource version for all objects, lists in pages, watches that resume,
// stream the initial objects, send bookmarks, expire and end; merge, strategic and JSON patches;
// preconditions; status subresources; deletion with grace periods and finalizers; and eviction with
// disruption budgets, in the steps of the real one.
//
// It has no admission but what [Server.Admit] does, and no validation, no defaults and no fields that
// nobody here reads. It speaks JSON and, for Kubernetes' own kinds, protobuf.
//
// Who calls the methods of a Server that read or write objects holds its lock, see [Server.Do]. That
// is how controllers see and change the cluster. Clients come through [Server.Client].
package memapi

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Change is one that has been made.
type Change struct {
	Kind          *Kind
	Key           string // NAMESPACE/NAME, or the name
	By            string // the client or controller
	Before, After Object // nil: there was none, or there is none any more
}

// Server is an API server. Its fields are set before its first request.
type Server struct {
	// Changed is called after each change, with the lock held; nil: nobody asks.
	Changed func(Change)
	// Requested is called after each request of a client, with the lock held; nil: nobody asks.
	Requested func(Request)
	// Admit may refuse a client's request; nil: all are admitted. It is called without the lock, and may wait.
	Admit func(context.Context, *Request) error
	// Ahead is how far the server's clock, and those of its controllers, are ahead of the clients'.
	Ahead time.Duration

	mu      sync.Mutex
	version int64
	uids    int
	byPath  map[string]*collection // by group/plural
	tokens  map[string]*page       // of lists that go on
	watches map[*watch]bool        // all of them
}

// collection holds the objects of one kind.
type collection struct {
	*Kind
	objects map[string]*stored
	keys    []string // sorted
	history []*event
	// onNode indexes pods by node, as the real server does: sorted keys; "" has the pods without a node.
	onNode map[string][]string
	// watches are by the node that their selection names; "" has those that name none.
	watches map[string]map[*watch]bool
	expired int64 // events up to this version are forgotten

	caught chan struct{} // closed when its watch cache has caught up; nil: it is not behind
	cached int64         // the last version that the cache has while it is behind
}

// stored is one version of an object. It does not change.
type stored struct {
	obj Object
	raw []byte // its JSON, once somebody has asked for it

	binary []byte // its protobuf, likewise
}

func (s *stored) json() []byte {
	if s.raw == nil {
		raw, err := json.Marshal(s.obj)
		if err != nil {
			panic(fmt.Sprintf("encode %T %s: %v", s.obj, s.obj.GetName(), err))
		}
		s.raw = raw
	}
	return s.raw
}

// New returns a server without objects.
func New() *Server {
	s := &Server{version: 1000, byPath: map[string]*collection{}, tokens: map[string]*page{}, watches: map[*watch]bool{}}
	for _, k := range all {
		s.byPath[k.Group+"/"+k.Plural] = &collection{
			Kind: k, objects: map[string]*stored{}, onNode: map[string][]string{}, watches: map[string]map[*watch]bool{},
		}
	}
	return s
}

// Do calls f with the lock held.
func (s *Server) Do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *Server) of(k *Kind) *collection { return s.byPath[k.Group+"/"+k.Plural] }

// Key is the key of an object.
func Key(obj metav1.Object) string { return keyOf(obj.GetNamespace(), obj.GetName()) }

func keyOf(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// Get returns an object, or the zero value. It must not be changed.
func Get[T Object](s *Server, k *Kind, key string) (obj T) {
	if at := s.of(k).objects[key]; at != nil {
		obj, _ = at.obj.(T)
	}
	return obj
}

// List returns all objects of a kind, by key. They must not be changed.
func List[T Object](s *Server, k *Kind) []T {
	c := s.of(k)
	list := make([]T, 0, len(c.keys))
	for _, key := range c.keys {
		if obj, ok := c.objects[key].obj.(T); ok {
			list = append(list, obj)
		}
	}
	return list
}

// Now is the time as objects have it.
func (s *Server) Now() metav1.Time {
	return metav1.NewTime(time.Now().Add(s.Ahead).UTC().Truncate(time.Second))
}

// Put writes an object: it makes it, or replaces the one of that name. The object must not be changed
// afterwards. One whose finalizers are gone while it is being deleted is removed.
func (s *Server) Put(k *Kind, obj Object, by string) Object {
	c, key := s.of(k), Key(obj)
	before := c.objects[key]
	if before == nil {
		if obj.GetUID() == "" {
			s.uids++
			obj.SetUID(types.UID(fmt.Sprintf("%08x-0000-4000-8000-%012x", s.uids, s.uids)))
		}
		if stamp := obj.GetCreationTimestamp(); stamp.IsZero() {
			obj.SetCreationTimestamp(s.Now())
		}
	}
	if obj.GetDeletionTimestamp() != nil && len(obj.GetFinalizers()) == 0 && k != Pods {
		if before != nil {
			s.Remove(k, key, by)
		}
		return obj
	}
	s.version++
	obj.SetResourceVersion(strconv.FormatInt(s.version, 10))
	obj.GetObjectKind().SetGroupVersionKind(k.GroupVersionKind)
	if before == nil {
		c.keys = with(c.keys, key)
	}
	now := &stored{obj: obj}
	c.objects[key] = now
	c.index(key, before, now)
	s.note(c, key, before, now, by)
	return obj
}

// Remove takes an object away at once.
func (s *Server) Remove(k *Kind, key, by string) {
	c := s.of(k)
	before := c.objects[key]
	if before == nil {
		return
	}
	delete(c.objects, key)
	c.keys = without(c.keys, key)
	c.index(key, before, nil)
	s.version++
	last := before.obj.DeepCopyObject().(Object)
	last.SetResourceVersion(strconv.FormatInt(s.version, 10))
	s.note(c, key, before, nil, by, last)
}

// historyKept is how many changes of a kind are remembered, for watches that resume.
const historyKept = 4096

func (s *Server) note(c *collection, key string, before, after *stored, by string, last ...Object) {
	e := &event{version: s.version, at: time.Now(), before: before, after: after}
	if after == nil {
		e.last = &stored{obj: last[0]}
	}
	c.history = append(c.history, e)
	if len(c.history) > historyKept {
		c.expired = c.history[historyKept/2].version
		c.history = slices.Clone(c.history[historyKept/2+1:])
	}
	c.tell(e)
	if s.Changed != nil {
		change := Change{Kind: c.Kind, Key: key, By: by}
		if before != nil {
			change.Before = before.obj
		}
		if after != nil {
			change.After = after.obj
		}
		s.Changed(change)
	}
}

// Expire forgets the past of all kinds: watches that resume from before now have to list again.
func (s *Server) Expire() {
	for _, c := range s.byPath {
		c.history, c.expired = nil, s.version
	}
	clear(s.tokens)
}

// Delete deletes an object as a client's request would: a pod has its grace period, and an object with
// finalizers waits for them. grace is nil for the pod's own.
func (s *Server) Delete(k *Kind, key string, grace *int64, by string) {
	at := s.of(k).objects[key]
	if at == nil {
		return
	}
	obj := at.obj
	if k == Pods {
		s.deletePod(key, grace, by)
		return
	}
	if len(obj.GetFinalizers()) == 0 {
		s.Remove(k, key, by)
		return
	}
	if obj.GetDeletionTimestamp() == nil {
		going, now := obj.DeepCopyObject().(Object), s.Now()
		going.SetDeletionTimestamp(&now)
		s.Put(k, going, by)
	}
}

// Count is how many objects of a kind there are.
func (s *Server) Count(k *Kind) int { return len(s.of(k).keys) }

// Version is the last change's.
func (s *Server) Version() int64 { return s.version }
