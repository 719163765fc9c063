package drain

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// Survey reads once what a plan for the node is made from, for a dry run. It watches nothing
// and changes nothing. Pods of other nodes under the same budgets are not included.
func Survey(ctx context.Context, pods, budgets rest.Interface, objects dynamic.Interface, node string, in Interruption, policy Policy) (Situation, error) {
	sit := Situation{
		Interruption: in, Policy: policy,
		Workloads: map[types.NamespacedName]Workload{}, Shared: map[types.NamespacedName]bool{},
		Surroundings: map[string]Surroundings{}, Namespaces: map[string]Wishes{},
	}
	list := &corev1.PodList{}
	// "0" is answered from the watch cache's index of nodes, and is no quorum read.
	err := pods.Get().Resource("pods").Param("fieldSelector", "spec.nodeName="+node).Param("resourceVersion", "0").Do(ctx).Into(list)
	if err != nil {
		return sit, fmt.Errorf("list pods on node %q: %w", node, err)
	}
	read := readClaim(objects)
	p := planner{Situation: sit}
	namespaces := map[string]bool{}
	for i := range list.Items {
		pod := &list.Items[i]
		sit.Pods = append(sit.Pods, pod)
		if p.notOurs(pod) != "" {
			continue
		}
		if !namespaces[pod.Namespace] {
			namespaces[pod.Namespace] = true
			theirs := &policyv1.PodDisruptionBudgetList{}
			if err := budgets.Get().Namespace(pod.Namespace).Resource("poddisruptionbudgets").Do(ctx).Into(theirs); err != nil {
				return sit, fmt.Errorf("list disruption budgets of namespace %q: %w", pod.Namespace, err)
			}
			for j := range theirs.Items {
				sit.Budgets = append(sit.Budgets, &theirs.Items[j])
			}
			if sit.Namespaces[pod.Namespace], err = readWishes(objects)(ctx, types.NamespacedName{Name: pod.Namespace}); err != nil {
				return sit, err
			}
		}
		name := DeploymentOf(pod)
		if _, known := sit.Workloads[name]; known || policy.Strategy != Surge || noSurgeByItself(pod, time.Now()) != "" {
			continue
		}
		if sit.Workloads[name], err = surveyDeployment(ctx, pods, objects, name); err != nil {
			return sit, err
		}
		if _, known := sit.Surroundings[pod.Namespace]; !known {
			in := types.NamespacedName{Namespace: pod.Namespace}
			if sit.Surroundings[pod.Namespace], err = readSurroundings(objects)(ctx, in); err != nil {
				return sit, err
			}
		}
		for _, name := range claimsOf(pod) {
			c, err := read(ctx, name)
			if err != nil {
				return sit, err
			}
			sit.Shared[name] = c.shared
		}
	}
	sit.Waves = PlanWaves(time.Now(), []Situation{sit}, sit.Budgets)
	return sit, nil
}

func surveyDeployment(ctx context.Context, pods rest.Interface, objects dynamic.Interface, name types.NamespacedName) (Workload, error) {
	u, err := objects.Resource(deploymentResource).Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{ResourceVersion: "0"})
	if apierrors.IsNotFound(err) {
		return Workload{}, nil
	}
	if err != nil {
		return Workload{}, fmt.Errorf("read Deployment %s: %w", name, err)
	}
	d, err := decodeDeployment(u)
	if err != nil {
		return Workload{}, err
	}
	list := &corev1.PodList{}
	err = pods.Get().Namespace(name.Namespace).Resource("pods").Param("labelSelector", metav1.FormatLabelSelector(d.Spec.Selector)).
		Param("resourceVersion", "0").Do(ctx).Into(list)
	if err != nil {
		return Workload{}, fmt.Errorf("list pods of Deployment %s: %w", name, err)
	}
	var theirs []*member
	for i := range list.Items {
		theirs = append(theirs, memberOf(&list.Items[i]))
	}
	w, _ := newTally().count(time.Now(), d, theirs)
	return w, nil
}
