package drain

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/rewatch"
)

// podWatch keeps the pods of one node. Every draining node has one, so thousands can run at a
// time: client-go's reflector writes to it directly. An informer puts a queue and two more
// goroutines in between, a third of what a watch costs.
type podWatch struct {
	// changed is called after every change, one at a time: before is nil if the pod is new, after
	// if it has gone. The first pods are no change.
	changed func(before, after *corev1.Pod)
	// known is called once, when the first pods are there.
	known func()

	mu     sync.Mutex
	synced bool
	pods   map[types.NamespacedName]*corev1.Pod
}

var _ cache.ReflectorStore = (*podWatch)(nil)

func newPodWatch(changed func(before, after *corev1.Pod), known func()) *podWatch {
	return &podWatch{changed: changed, known: known, pods: map[types.NamespacedName]*corev1.Pod{}}
}

// run watches until ctx ends.
func (w *podWatch) run(ctx context.Context, client rest.Interface, node string, logger zerolog.Logger) {
	lw := cache.NewFilteredListWatchFromClient(client, "pods", metav1.NamespaceAll, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	})
	cache.NewReflectorWithOptions(listedFirst{rewatch.Soon(lw, nil, logger)}, &corev1.Pod{}, w, cache.ReflectorOptions{}).RunWithContext(ctx)
}

// listedFirst has a reflector list before it watches. The API server finds the pods of one node by
// an index for a list, but not for a watch that begins with them: there it copies and sorts all pods
// of the cluster, under a lock.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/staging/src/k8s.io/apiserver/pkg/storage/cacher/watch_cache_interval.go
type listedFirst struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is what client-go asks, by this name.
func (listedFirst) IsWatchListSemanticsUnSupported() bool { return true }

// hasSynced reports whether the node's pods are known.
func (w *podWatch) hasSynced() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.synced
}

// list returns the pods. They are shared and must not be changed.
func (w *podWatch) list() []*corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Values(w.pods))
}

// current returns the pod as it is now; false if it has gone, even if another has its name.
func (w *podWatch) current(pod *corev1.Pod) (*corev1.Pod, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.pods[nameOf(pod)]
	return now, now != nil && now.UID == pod.UID
}

func nameOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// Add and the other exported methods are for the reflector.
func (w *podWatch) Add(obj any) error { return w.Update(obj) }

func (w *podWatch) Update(obj any) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	slim := Lean(pod)
	w.mu.Lock()
	before := w.pods[nameOf(pod)]
	w.pods[nameOf(pod)] = slim
	w.mu.Unlock()
	w.changed(before, slim)
	return nil
}

func (w *podWatch) Delete(obj any) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	w.mu.Lock()
	before := w.pods[nameOf(pod)]
	delete(w.pods, nameOf(pod))
	w.mu.Unlock()
	if before != nil {
		w.changed(before, nil)
	}
	return nil
}

// Replace takes in a whole list: the first one, and one after every gap in the watch.
func (w *podWatch) Replace(objects []any, _ string) error {
	now := make(map[types.NamespacedName]*corev1.Pod, len(objects))
	for _, obj := range objects {
		if pod, ok := obj.(*corev1.Pod); ok {
			now[nameOf(pod)] = Lean(pod)
		}
	}
	w.mu.Lock()
	first, before := !w.synced, w.pods
	w.synced, w.pods = true, now
	w.mu.Unlock()
	if first {
		w.known()
		return nil
	}
	for name, pod := range before {
		if now[name] == nil {
			w.changed(pod, nil)
		}
	}
	for name, pod := range now {
		w.changed(before[name], pod)
	}
	return nil
}

func (w *podWatch) Resync() error { return nil }

// A pod that leaves is seen three or four times on its way out, and most of that does not
// matter, as it was we who sent it away. When each change had the node planned again, two
// thousand pods that left a hundred nodes cost as much processor time for plans as for
// everything else.

// quietFor is how long a change that does not concern the node's other pods waits until the
// node is planned again. It delays what is reported of the drain, never an eviction or the
// drain's end.
const quietFor = 500 * time.Millisecond

// changed has the node planned again after a pod has come, changed or gone: at once, in a moment if the
// pod only goes on leaving, or not at all if no plan reads what has changed.
func (s *session) changed(was, is *corev1.Pod) {
	switch {
	case is == nil:
		s.departed()
	case was == nil || was.UID != is.UID:
		s.drainer.opts.Notify(s.node)
	case same(was, is):
	case is.DeletionTimestamp == nil || IsSurged(was) != IsSurged(is):
		s.drainer.opts.Notify(s.node)
	case Finished(is) && !Finished(was):
		s.departed()
	default:
		s.notifySoon()
	}
}

// same reports whether nothing that Lean keeps has changed.
func same(a, b *corev1.Pod) bool {
	as := *a
	as.ResourceVersion = b.ResourceVersion
	return reflect.DeepEqual(&as, b)
}

// departed has the node planned again after a pod has gone: in a moment, or at once if it
// was the last, or the last besides our own.
func (s *session) departed() {
	s.mu.Lock()
	in := s.in
	s.mu.Unlock()
	if p := (planner{Situation: Situation{Interruption: in, Policy: s.drainer.opts.Policy, Pods: s.pods()}}); p.others() {
		s.notifySoon()
		return
	}
	s.drainer.opts.Notify(s.node)
}

// notifySoon calls Notify in a moment, once for everything that happens until then.
func (s *session) notifySoon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.soon {
		return
	}
	s.soon = true
	time.AfterFunc(quietFor, func() {
		s.note(func() { s.soon = false })
		if s.ctx.Err() == nil {
			s.drainer.opts.Notify(s.node)
		}
	})
}
