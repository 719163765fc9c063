package controlplane

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// waitTimeout limits waiting if the caller's context does not. It is longer than any step
// takes; a test with longer boot times sets a deadline itself.
const waitTimeout = 5 * time.Minute

func withWaitTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, waitTimeout, fmt.Errorf("not within %s", waitTimeout))
}

// WaitPods watches the pods of the namespace ("" for all) that match the label selector
// ("" for all) until done returns true for all of them. It then returns the pods, sorted
// by name; with an error, it returns those that it saw last.
func (c *Cluster) WaitPods(ctx context.Context, namespace, selector string, done func(pods []*corev1.Pod) bool) ([]*corev1.Pod, error) {
	ctx, cancel := withWaitTimeout(ctx)
	defer cancel()
	factory := informers.NewSharedInformerFactoryWithOptions(c.Client, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = selector }))
	pods := factory.Core().V1().Pods()
	var seen []*corev1.Pod
	err := waitInformer(ctx, factory, pods.Informer(), nil, func() (bool, error) {
		var err error
		if seen, err = pods.Lister().List(labels.Everything()); err != nil {
			return false, err
		}
		slices.SortFunc(seen, func(a, b *corev1.Pod) int {
			return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
		})
		return done(seen), nil
	})
	if err != nil {
		return seen, fmt.Errorf("wait for pods %q in namespace %q, last seen %s: %w", selector, namespace, describe(seen), err)
	}
	return seen, nil
}

// WaitNode watches the named Node until done returns true. It calls done for every
// version that the watch shows. A node that does not exist is nil: to wait for its end,
// test node == nil.
func (c *Cluster) WaitNode(ctx context.Context, name string, done func(node *corev1.Node) bool) (*corev1.Node, error) {
	ctx, cancel := withWaitTimeout(ctx)
	defer cancel()
	factory := informers.NewSharedInformerFactoryWithOptions(c.Client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=" + name }))
	var mu sync.Mutex
	var shown []*corev1.Node
	see := func(obj any) {
		mu.Lock()
		defer mu.Unlock()
		version, _ := obj.(*corev1.Node) // nil: it is gone
		shown = append(shown, version)
	}
	var node *corev1.Node
	first := true
	err := waitInformer(ctx, factory, factory.Core().V1().Nodes().Informer(), see, func() (bool, error) {
		mu.Lock()
		versions := shown
		shown = nil
		mu.Unlock()
		if first && len(versions) == 0 {
			versions = []*corev1.Node{nil}
		}
		first = false
		for _, node = range versions {
			if done(node) {
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		return node, fmt.Errorf("wait for node %q: %w", name, err)
	}
	return node, nil
}

// waitNodes watches all nodes until done returns true for them.
func (c *Cluster) waitNodes(ctx context.Context, done func(nodes []*corev1.Node) bool) error {
	factory := informers.NewSharedInformerFactory(c.Client, 0)
	nodes := factory.Core().V1().Nodes()
	err := waitInformer(ctx, factory, nodes.Informer(), nil, func() (bool, error) {
		all, err := nodes.Lister().List(labels.Everything())
		return err == nil && done(all), err
	})
	if err != nil {
		return fmt.Errorf("wait for nodes: %w", err)
	}
	return nil
}

// betweenChecks keeps a waiting test from hogging the processors while thousands of
// objects change.
const betweenChecks = 10 * time.Millisecond

// waitInformer calls check once the informer is complete, and again after each change,
// until it returns true. A burst of changes is one call. Before that, each change goes to
// see, which may be nil: as the object, or nil if one is gone.
func waitInformer(ctx context.Context, factory informers.SharedInformerFactory, informer cache.SharedIndexInformer, see func(obj any), check func() (bool, error)) error {
	changed := make(chan struct{}, 1)
	notify := func(obj any) {
		if see != nil {
			see(obj)
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    notify,
		UpdateFunc: func(_, obj any) { notify(obj) },
		DeleteFunc: func(any) { notify(nil) },
	})
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer cancel()
	select {
	case <-handler.HasSyncedChecker().Done():
	case <-ctx.Done():
		return fmt.Errorf("list: %w", context.Cause(ctx))
	}
	for {
		if ok, err := check(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(betweenChecks):
		}
	}
}

// describe counts pods by what they are doing, for errors.
func describe(pods []*corev1.Pod) string {
	var ready, pending, terminating int
	for _, pod := range pods {
		switch {
		case pod.DeletionTimestamp != nil:
			terminating++
		case Ready(pod):
			ready++
		case pod.Spec.NodeName == "":
			pending++
		}
	}
	return fmt.Sprintf("%d pods, of which %d ready, %d terminating, %d without a node", len(pods), ready, terminating, pending)
}

// Ready reports whether the pod is Ready and not being deleted.
func Ready(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil {
		return false
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// NodeReady reports whether the Node is Ready and pods can be scheduled to it, as far as
// the taints go that the control plane and Karpenter set at the start.
func NodeReady(node *corev1.Node) bool {
	if node == nil {
		return false
	}
	for _, taint := range node.Spec.Taints {
		switch taint.Key {
		case corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, "karpenter.sh/unregistered":
			return false
		}
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// waitBudget watches a disruption budget until done returns true for it.
func (c *Cluster) waitBudget(ctx context.Context, namespace, name string, done func(budget *policyv1.PodDisruptionBudget) bool) error {
	factory := informers.NewSharedInformerFactoryWithOptions(c.Client, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=" + name }))
	budgets := factory.Policy().V1().PodDisruptionBudgets()
	err := waitInformer(ctx, factory, budgets.Informer(), nil, func() (bool, error) {
		budget, err := budgets.Lister().PodDisruptionBudgets(namespace).Get(name)
		return err == nil && done(budget), nil // the only error is that there is none
	})
	if err != nil {
		return fmt.Errorf("wait for disruption budget %s/%s: %w", namespace, name, err)
	}
	return nil
}
