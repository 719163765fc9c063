package watch

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/plan"
	"spot-handler/drain/rewatch"
)

var (
	deploymentResource = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	replicaSetResource = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}
)

// watchDeployment watches a Deployment, and its pods as soon as its selector is known. It returns when it is
// known whether there is one.
func (c *Cluster) watchDeployment(ctx context.Context, name types.NamespacedName, report func(plan.Event)) {
	deployments := c.opts.Dynamic.Resource(deploymentResource).Namespace(name.Namespace)
	byName := fields.OneTermEqualSelector(metav1.ObjectNameField, name.Name).String()
	unreadable := func(err error) {
		c.opts.Logger.Warn().Err(err).Str("deployment", name.String()).Msg("read deployment; its pods are not surged")
		report(plan.DeploymentUnreadable{Name: name, Reason: err.Error()})
	}
	seen, podsWatched := false, false // of what the watch calls one after the other
	watch := rewatch.New(rewatch.Options[*unstructured.Unstructured, *plan.Deployment]{
		Source: rewatch.Of(deployments, func(o *metav1.ListOptions) { o.FieldSelector = byName }),
		Keep:   asDeployment,
		Changed: func(_, d *plan.Deployment) {
			seen = d != nil
			if seen {
				if err := d.Unreadable(); err != nil {
					unreadable(err)
					return
				}
			}
			report(plan.DeploymentSeen{Name: name, Deployment: d})
			if seen && !podsWatched {
				podsWatched = true
				c.watchReplicas(ctx, name, d.Spec.Selector, report)
			}
		},
		Synced: func() {
			if !seen {
				report(plan.DeploymentSeen{Name: name}) // there is none of that name
			}
		},
		Refused: unreadable,
		Logger:  c.opts.Logger,
	})
	go watch.Run(ctx)
	select {
	case <-watch.Known():
	case <-ctx.Done():
	}
}

// watchReplicas watches the pods that the Deployment selects, surged ones among them.
// The selector of a Deployment never changes.
func (c *Cluster) watchReplicas(ctx context.Context, name types.NamespacedName, by *metav1.LabelSelector, report func(plan.Event)) {
	selector := metav1.FormatLabelSelector(by)
	replicas := rewatch.New(rewatch.Options[*corev1.Pod, *plan.Replica]{
		Source: cache.NewFilteredListWatchFromClient(c.opts.Pods, "pods", name.Namespace, func(o *metav1.ListOptions) {
			o.LabelSelector = selector
		}),
		Keep:    plan.ReplicaOf,
		Changed: func(before, after *plan.Replica) { report(plan.ReplicaSeen{Name: name, Before: before, After: after}) },
		Synced:  func() { report(plan.ReplicasListed{Name: name}) },
		Logger:  c.opts.Logger,
	})
	go replicas.Run(ctx)
}

// asDeployment drops the rest of it. Of one that cannot be read it keeps the metadata.
func asDeployment(u *unstructured.Unstructured) *plan.Deployment {
	d := &plan.Deployment{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, d); err != nil {
		return &plan.Deployment{ObjectMeta: metav1.ObjectMeta{
			Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion(),
		}}
	}
	return d
}
