package watch

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/fair"
	"spot-handler/drain/plan"
	"spot-handler/drain/rewatch"
)

// podsOfNamespace is how many pods of one namespace are known of one node, more than any node runs. With
// spec.nodeName, a tenant can put any number on a node whose kubelet no longer answers.
const podsOfNamespace = 1000

// A node's watch keeps its place until it is known which of its pods leave, for planWithin once its pods are
// known, or until others have been patient. Where none leaves, it keeps its place until it ends, which is in a
// moment: so the watches of thousands of nodes without pods are not open at once.
const (
	planWithin = time.Second
	patience   = 3 * time.Second
)

// watchPods watches the pods of a node, in its turn.
func (c *Cluster) watchPods(ctx context.Context, node string, report func(plan.Event)) (opened func()) {
	open := make(chan struct{})
	opened = sync.OnceFunc(func() { close(open) })
	c.nodes.Do(ctx, fair.Task{Tenant: node, Run: func() {
		w := c.newPodWatch(node, func(before, after *corev1.Pod) {
			report(plan.PodSeen{Node: node, Before: before, After: after})
		}, func() {
			time.AfterFunc(planWithin, opened)
			report(plan.PodsListed{Node: node})
		})
		go w.Run(ctx)
		select {
		case <-open:
		case <-time.After(patience):
		case <-ctx.Done():
		}
	}})
	return opened
}

// newPodWatch is of the node's pods.
func (c *Cluster) newPodWatch(node string, changed func(before, after *corev1.Pod), synced func()) *rewatch.Watch[*corev1.Pod] {
	known := map[string]int{} // by namespace
	return rewatch.New(rewatch.Options[*corev1.Pod, *corev1.Pod]{
		Source: listedFirst{cache.NewFilteredListWatchFromClient(c.opts.Pods, "pods", metav1.NamespaceAll, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
		})},
		Keep:   plan.Lean,
		Synced: synced,
		Logger: c.opts.Logger,
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
