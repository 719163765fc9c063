package watch

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"spot-handler/drain/plan"
)

// PodsOn reads the pods of a node.
func PodsOn(ctx context.Context, client rest.Interface, node string) ([]*corev1.Pod, error) {
	list := &corev1.PodList{}
	// "0" is answered from the watch cache's index of nodes, and is no quorum read.
	err := client.Get().Resource("pods").Param("fieldSelector", "spec.nodeName="+node).Param("resourceVersion", "0").Do(ctx).Into(list)
	if err != nil {
		return nil, fmt.Errorf("list pods on node %q: %w", node, err)
	}
	pods := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[i] = &list.Items[i]
	}
	return pods, nil
}

// Survey reads once what a drain of the node is planned from. It watches nothing and changes nothing. Pods of other
// nodes under the same budgets are not included.
//
// If something cannot be read, that is an error here, where the daemon would try again or do without: a plan must not
// say what would only be true of half a cluster.
func Survey(ctx context.Context, c Clients, node string, in plan.NodeState, policy plan.Policy) (*plan.Survey, error) {
	return plan.NewSurvey(time.Now(), policy, node, in, func(s plan.Subject) ([]plan.Event, error) { return c.all(ctx, s) })
}

// all reads all that there is of a subject.
func (c Clients) all(ctx context.Context, s plan.Subject) ([]plan.Event, error) {
	switch s.Kind {
	case plan.PodsOfNode:
		pods, err := PodsOn(ctx, c.Pods, s.Name.Name)
		if err != nil {
			return nil, err
		}
		for i, pod := range pods {
			pods[i] = plan.Lean(pod)
		}
		return plan.AllPods(s.Name.Name, pods), nil
	case plan.Budgets:
		return c.budgets(ctx, s.Name.Namespace)
	case plan.DeploymentOfPod:
		return c.deployment(ctx, s.Name)
	}
	value, err := c.lookUp(ctx, s)
	if err != nil {
		return nil, err
	}
	return []plan.Event{plan.LookedUp{Subject: s, Value: value}}, nil
}

func (c Clients) budgets(ctx context.Context, namespace string) (shown []plan.Event, err error) {
	list := &policyv1.PodDisruptionBudgetList{}
	if err := c.Budgets.Get().Namespace(namespace).Resource("poddisruptionbudgets").Do(ctx).Into(list); err != nil {
		return nil, fmt.Errorf("list PDBs of namespace %q: %w", namespace, err)
	}
	sizes := newBudgetSizes()
	for i := range list.Items {
		shown = append(shown, plan.BudgetSeen{After: sizes.keep(&list.Items[i])})
	}
	return append(shown, plan.BudgetsListed{Namespace: namespace}), nil
}

func (c Clients) deployment(ctx context.Context, name types.NamespacedName) ([]plan.Event, error) {
	u, err := c.Dynamic.Resource(deploymentResource).Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{ResourceVersion: "0"})
	if apierrors.IsNotFound(err) {
		return []plan.Event{plan.DeploymentSeen{Name: name}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read Deployment %s: %w", name, err)
	}
	d, list := asDeployment(u), &corev1.PodList{}
	if err := d.Unreadable(); err != nil {
		return []plan.Event{plan.DeploymentUnreadable{Name: name, Reason: err.Error()}}, nil
	}
	err = c.Pods.Get().Namespace(name.Namespace).Resource("pods").Param("labelSelector", metav1.FormatLabelSelector(d.Spec.Selector)).
		Param("resourceVersion", "0").Do(ctx).Into(list)
	if err != nil {
		return nil, fmt.Errorf("list pods of Deployment %s: %w", name, err)
	}
	shown := []plan.Event{plan.DeploymentSeen{Name: name, Deployment: d}}
	for i := range list.Items {
		shown = append(shown, plan.ReplicaSeen{Name: name, After: plan.ReplicaOf(&list.Items[i])})
	}
	return append(shown, plan.ReplicasListed{Name: name}), nil
}
