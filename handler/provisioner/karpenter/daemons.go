package karpenter

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

var daemonSetResource = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}

// daemons knows the cluster's DaemonSets, which are read at most once per poolTTL, however
// many ask. Some will run on the new node that do not run on the interrupted one, such as
// those for on-demand nodes only.
type daemons struct {
	client dynamic.Interface
	reads  singleflight.Group

	mu    sync.Mutex
	pods  []*corev1.Pod // one of each, as its template has it
	until time.Time
	away  bool // forbidden
}

// withDaemons are the pods of the DaemonSets that can run on a new node: those of the
// interrupted node as they are, and one of each DaemonSet that has none there. If we have no
// right to read DaemonSets, which is said once, they are the interrupted node's only.
func (b *Backend) withDaemons(ctx context.Context, here []*corev1.Pod) ([]*corev1.Pod, error) {
	all, away, err := b.daemons.get(ctx)
	if err != nil {
		return nil, err
	}
	if away && b.sayOnce("daemonsets") {
		b.log.Warn().Msg("the API server forbids us to list DaemonSets: replacements are sized with those of the interrupted nodes")
	}
	seen := map[types.NamespacedName]bool{}
	pods := make([]*corev1.Pod, 0, max(len(here), len(all)))
	for _, pod := range here {
		pods = append(pods, pod)
		if owner := metav1.GetControllerOf(pod); owner != nil {
			seen[types.NamespacedName{Namespace: pod.Namespace, Name: owner.Name}] = true
		}
	}
	for _, pod := range all {
		if !seen[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] {
			pods = append(pods, pod)
		}
	}
	return pods, nil
}

// get returns shared pods, which must not be changed.
func (d *daemons) get(ctx context.Context) (pods []*corev1.Pod, away bool, err error) {
	if pods, away, ok := d.known(); ok {
		return pods, away, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), poolTimeout) // shared, as in pools.get
	defer cancel()
	_, err, _ = d.reads.Do("", func() (any, error) {
		if _, _, ok := d.known(); ok {
			return nil, nil
		}
		return nil, d.read(ctx)
	})
	if err != nil {
		return nil, false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pods, d.away, nil
}

func (d *daemons) known() (pods []*corev1.Pod, away, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pods, d.away, time.Now().Before(d.until)
}

func (d *daemons) read(ctx context.Context) error {
	asked := time.Now()
	// "0" is answered from the API server's watch cache.
	list, err := d.client.Resource(daemonSetResource).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil && !apierrors.IsForbidden(err) {
		return fmt.Errorf("list DaemonSets: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pods, d.until, d.away = nil, asked.Add(poolTTL), false
	if err != nil {
		d.until, d.away = asked.Add(recheck), true
		return nil
	}
	for i := range list.Items {
		if pod := podOf(&list.Items[i]); pod != nil {
			d.pods = append(d.pods, pod)
		}
	}
	return nil
}

// podOf is a pod of the DaemonSet, named after it; nil if it cannot be read.
func podOf(set *unstructured.Unstructured) *corev1.Pod {
	template, _, err := unstructured.NestedMap(set.Object, "spec", "template")
	if err != nil {
		return nil
	}
	pod := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, pod); err != nil {
		return nil
	}
	yes := true
	pod.Namespace, pod.Name = set.GetNamespace(), set.GetName()
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: set.GetName(), Controller: &yes}}
	return pod
}
