package drain

import (
	"maps"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/plan"
	"spot-handler/drain/rewatch"
)

// podsOfNamespace is how many pods of one namespace are known of one node, more than any node runs. With
// spec.nodeName, a tenant can put any number on a node whose kubelet no longer answers.
const podsOfNamespace = 1000

// newPodWatch is of the node's pods. Every draining node has one.
func newPodWatch(opts Options, node string, changed func(before, after *corev1.Pod), synced func()) *rewatch.Watch[*corev1.Pod] {
	known := map[string]int{} // by namespace
	return rewatch.New(rewatch.Options[*corev1.Pod, *corev1.Pod]{
		Source: listedFirst{cache.NewFilteredListWatchFromClient(opts.Pods, "pods", metav1.NamespaceAll, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
		})},
		Keep: plan.Lean, Synced: synced, Logger: opts.Logger,
		Admit: func(pod *corev1.Pod) bool {
			// What the kubelet has rejected stays, finished, by the thousand.
			over := plan.Finished(pod) && pod.DeletionTimestamp == nil
			return !over && known[pod.Namespace] < podsOfNamespace
		},
		Changed: func(before, after *corev1.Pod) {
			if before == nil {
				known[after.Namespace]++
			}
			if after == nil {
				if known[before.Namespace]--; known[before.Namespace] == 0 {
					delete(known, before.Namespace)
				}
			}
			changed(before, after)
		},
	})
}

// listedFirst has a reflector list before it watches. The API server finds the pods of one node by
// an index for a list, but not for a watch that begins with them: there it copies and sorts all pods
// of the cluster, under a lock.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/staging/src/k8s.io/apiserver/pkg/storage/cacher/watch_cache_interval.go
type listedFirst struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is what client-go asks, by this name.
func (listedFirst) IsWatchListSemanticsUnSupported() bool { return true }

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
	case !s.watch.HasSynced(): // the first list
	case is == nil:
		s.note(func() { delete(s.came, was.UID) })
		s.departed()
	case was == nil || was.UID != is.UID:
		s.note(func() {
			if was != nil {
				delete(s.came, was.UID)
			}
			s.came[is.UID] = time.Now()
		})
		s.drainer.opts.Notify(s.node)
	case same(was, is):
	case is.DeletionTimestamp == nil || plan.IsSurged(was) != plan.IsSurged(is):
		s.drainer.opts.Notify(s.node)
	case plan.Finished(is) && !plan.Finished(was):
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
	sit := plan.Situation{NodeState: s.in, Came: maps.Clone(s.came)}
	s.mu.Unlock()
	sit.Policy, sit.Pods = s.drainer.opts.Policy, s.watch.All()
	if sit.Others() {
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
