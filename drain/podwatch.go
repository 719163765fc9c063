package drain

import (
	"context"
	"maps"
	"slices"
	"sync"

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
	cache.NewReflectorWithOptions(listedFirst{rewatch.Soon(lw, logger)}, &corev1.Pod{}, w, cache.ReflectorOptions{}).RunWithContext(ctx)
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
