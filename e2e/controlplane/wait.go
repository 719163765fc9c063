package controlplane

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
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
	err := waitInformer(ctx, factory, pods.Informer(), func() (bool, error) {
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
	nodes := c.Client.CoreV1().Nodes()
	absent := func(store cache.Store) (bool, error) { return len(store.List()) == 0 && done(nil), nil }
	node, err := until(ctx, named(name, nodes.List, nodes.Watch), absent, done)
	if err != nil {
		return node, fmt.Errorf("wait for node %q: %w", name, err)
	}
	return node, nil
}

// named lists and watches the object of that name, by a client's methods.
func named[L runtime.Object](
	name string,
	list func(context.Context, metav1.ListOptions) (L, error),
	follow func(context.Context, metav1.ListOptions) (watch.Interface, error),
) cache.ListerWatcher {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return list(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return follow(ctx, o)
		},
	}
}

// until watches one object until done returns true for it, or nil if it is gone, and returns it. An object that was
// never there is a matter for absent, which may be nil.
func until[T any, P interface {
	*T
	runtime.Object
}](ctx context.Context, from cache.ListerWatcher, absent watchtools.PreconditionFunc, done func(object P) bool) (P, error) {
	var last P
	_, err := watchtools.UntilWithSync(ctx, from, P(new(T)), absent, func(event watch.Event) (bool, error) {
		last, _ = event.Object.(P)
		if event.Type == watch.Deleted {
			last = nil
		}
		return done(last), nil
	})
	if ctx.Err() != nil && err != nil {
		err = context.Cause(ctx)
	}
	return last, err
}

// waitNodes watches all nodes until done returns true for them.
func (c *Cluster) waitNodes(ctx context.Context, done func(nodes []*corev1.Node) bool) error {
	factory := informers.NewSharedInformerFactory(c.Client, 0)
	nodes := factory.Core().V1().Nodes()
	err := waitInformer(ctx, factory, nodes.Informer(), func() (bool, error) {
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
// until it returns true. A burst of changes is one call.
func waitInformer(ctx context.Context, factory informers.SharedInformerFactory, informer cache.SharedIndexInformer, check func() (bool, error)) error {
	changed := make(chan struct{}, 1)
	notify := func(any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    notify,
		UpdateFunc: func(_, obj any) { notify(obj) },
		DeleteFunc: notify,
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
	budgets := c.Client.PolicyV1().PodDisruptionBudgets(namespace)
	_, err := until(ctx, named(name, budgets.List, budgets.Watch), nil, func(budget *policyv1.PodDisruptionBudget) bool {
		return budget != nil && done(budget)
	})
	if err != nil {
		return fmt.Errorf("wait for disruption budget %s/%s: %w", namespace, name, err)
	}
	return nil
}
