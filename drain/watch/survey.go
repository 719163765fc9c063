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

// Survey reads once what a plan for the node is made from, for a dry run. It watches nothing
// and changes nothing. Pods of other nodes under the same budgets are not included.
func Survey(ctx context.Context, c Clients, node string, in plan.NodeState, policy plan.Policy) (plan.Situation, error) {
	sit := plan.Situation{NodeState: in, Policy: policy}
	var err error
	if sit.Pods, err = PodsOn(ctx, c.Pods, node); err != nil {
		return sit, err
	}
	sit.Gather(time.Now(), plan.Sources{
		Preferences: atOnce(ctx, &err, c.preferences),
		Constraints: atOnce(ctx, &err, c.constraints),
		Claim:       atOnce(ctx, &err, c.claim),
		Budgets:     atOnce(ctx, &err, c.budgets),
		Deployment:  atOnce(ctx, &err, c.deployment),
		AllReady:    func(types.NamespacedName) time.Time { return time.Time{} },
	})
	if err != nil {
		return sit, err
	}
	sit.Gangs = sit.Departures()
	sit.Waves = plan.PlanWaves(time.Now(), []plan.Situation{sit}, sit.Budgets)
	return sit, nil
}

// atOnce reads when it is asked, until the first error.
func atOnce[T any](
	ctx context.Context, failed *error, read func(context.Context, types.NamespacedName) (T, error),
) func(types.NamespacedName) (T, bool) {
	return func(name types.NamespacedName) (value T, ok bool) {
		if *failed == nil {
			value, *failed = read(ctx, name)
		}
		return value, *failed == nil
	}
}

func (c Clients) budgets(ctx context.Context, in types.NamespacedName) (found []*policyv1.PodDisruptionBudget, err error) {
	list := &policyv1.PodDisruptionBudgetList{}
	if err := c.Budgets.Get().Namespace(in.Namespace).Resource("poddisruptionbudgets").Do(ctx).Into(list); err != nil {
		return nil, fmt.Errorf("list PDBs of namespace %q: %w", in.Namespace, err)
	}
	for i := range list.Items {
		found = append(found, &list.Items[i])
	}
	return found, nil
}

func (c Clients) deployment(ctx context.Context, name types.NamespacedName) (plan.DeploymentState, error) {
	u, err := c.Dynamic.Resource(deploymentResource).Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{ResourceVersion: "0"})
	if apierrors.IsNotFound(err) {
		return plan.DeploymentState{}, nil
	}
	if err != nil {
		return plan.DeploymentState{}, fmt.Errorf("read Deployment %s: %w", name, err)
	}
	d, list := asDeployment(u), &corev1.PodList{}
	if d.Spec.Selector == nil {
		return plan.DeploymentState{}, fmt.Errorf("read Deployment %s: %w", name, d.Unreadable())
	}
	err = c.Pods.Get().Namespace(name.Namespace).Resource("pods").Param("labelSelector", metav1.FormatLabelSelector(d.Spec.Selector)).
		Param("resourceVersion", "0").Do(ctx).Into(list)
	if err != nil {
		return plan.DeploymentState{}, fmt.Errorf("list pods of Deployment %s: %w", name, err)
	}
	var theirs []*plan.Replica
	for i := range list.Items {
		theirs = append(theirs, plan.ReplicaOf(&list.Items[i]))
	}
	state, _ := plan.NewReplicaLedger().Count(time.Now(), d, theirs)
	return state, nil
}
