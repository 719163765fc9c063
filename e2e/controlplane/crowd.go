package controlplane

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Crowd describes many pods that nothing replaces, for when only their departure matters.
type Crowd struct {
	Name    string // the pods' label app, and the beginning of their names
	PerNode int
	Behaviour
	Annotations map[string]string

	// Budgets is how many disruption budgets cover the pods: all of the same size, each
	// across all nodes. They allow all of the pods to go.
	Budgets int
}

// CreateCrowd puts the pods on the nodes, bypassing the scheduler, and returns them when
// all are Ready and the budgets have counted them.
func (c *Cluster) CreateCrowd(ctx context.Context, spec Crowd, nodes []*corev1.Node) ([]*corev1.Pod, error) {
	ctx, cancel := withWaitTimeout(ctx)
	defer cancel()
	n := len(nodes) * spec.PerNode
	annotations := spec.Behaviour.Annotations()
	maps.Copy(annotations, spec.Annotations)
	err := inParallel(n, func(i int) error {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace:   metav1.NamespaceDefault,
				Name:        fmt.Sprintf("%s-%04d", spec.Name, i),
				Labels:      app(spec.Name),
				Annotations: annotations,
			},
			Spec: corev1.PodSpec{
				NodeName:   nodes[i%len(nodes)].Name,
				Containers: []corev1.Container{{Name: "app", Image: "fake"}},
			},
		}
		if spec.Budgets > 0 {
			pod.Labels["budget"] = fmt.Sprint(i / len(nodes) % spec.Budgets)
		}
		return Create(ctx, c.Client, pod)
	})
	if err != nil {
		return nil, err
	}
	pods, err := c.WaitReady(ctx, "", spec.Name, n)
	if err != nil {
		return nil, err
	}
	// Only now: earlier, they would count every pod that becomes ready.
	for i := range spec.Budgets {
		if err := c.openBudget(ctx, spec.Name, i, n/spec.Budgets); err != nil {
			return nil, err
		}
	}
	return pods, nil
}

// openBudget creates a budget that lets all of its pods go, and waits until it does.
func (c *Cluster) openBudget(ctx context.Context, name string, i, pods int) error {
	none := intstr.FromInt32(0)
	labels := app(name)
	labels["budget"] = fmt.Sprint(i)
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("%s-%d", name, i)},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &none, Selector: &metav1.LabelSelector{MatchLabels: labels}},
	}
	if err := Create(ctx, c.Client, budget); err != nil {
		return err
	}
	return c.waitBudget(ctx, budget.Namespace, budget.Name, func(b *policyv1.PodDisruptionBudget) bool {
		return int(b.Status.DisruptionsAllowed) == pods
	})
}
