package controlplane

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Behaviour is how a pod behaves on a node that kwok plays. Its annotations can go on any
// pod or pod template.
type Behaviour struct {
	// ReadyAfter is the time from its start on a node until it is Ready; nil: 1 s.
	ReadyAfter *time.Duration
	// StopAfter is the time from its deletion to its end; nil: 1 s. A pod ends no later
	// than its grace period, and at once if that is 0 or 1 s.
	StopAfter *time.Duration
	// CompleteAfter is the time from its start to the success of a pod of a Job; nil:
	// never.
	CompleteAfter *time.Duration
	// NeverReady makes pods run without becoming Ready.
	NeverReady bool
}

// Annotations tell kwok the behaviour.
func (b Behaviour) Annotations() map[string]string {
	annotations := map[string]string{}
	for name, value := range map[string]*time.Duration{"ready-after": b.ReadyAfter, "stop-after": b.StopAfter, "complete-after": b.CompleteAfter} {
		if value != nil {
			annotations["e2e.spot-handler/"+name] = value.String()
		}
	}
	if b.NeverReady {
		annotations["e2e.spot-handler/never-ready"] = "true"
	}
	return annotations
}

// DeploymentSpec describes a Deployment, and optionally its disruption budget. Only the
// name is required. Its pods have the label app: <name>.
type DeploymentSpec struct {
	Namespace string // "default" by default; made if there is none
	Name      string
	Replicas  int

	CPU    string // requested by each pod; 100m by default
	Memory string // requested by each pod; 64Mi by default

	Behaviour

	// Pool is the Karpenter NodePool that the pods must run on; any by default.
	Pool         string
	NodeSelector map[string]string
	Tolerations  []corev1.Toleration

	// Spread is a node label over which the pods must be spread evenly, such as
	// kubernetes.io/hostname.
	Spread string

	// Grace is the termination grace period, in whole seconds; 30 s by default.
	Grace time.Duration

	// MaxSurge and MaxUnavailable are the rolling update's, MinReadySeconds the
	// Deployment's, as in Kubernetes.
	MaxSurge, MaxUnavailable *intstr.IntOrString
	MinReadySeconds          int32

	// BudgetMinAvailable or BudgetMaxUnavailable makes a PodDisruptionBudget of the same
	// name.
	BudgetMinAvailable, BudgetMaxUnavailable *intstr.IntOrString

	// Labels and Annotations of the pods.
	Labels, Annotations map[string]string

	// Change may change the Deployment in any other way before it is created.
	Change func(deployment *appsv1.Deployment)
}

// Selector selects the pods of the Deployment of this name.
func Selector(name string) string { return "app=" + name }

// RunDeployment creates the Deployment and its budget. It does not wait, see
// WaitReady.
func (c *Cluster) RunDeployment(ctx context.Context, spec DeploymentSpec) (*appsv1.Deployment, error) {
	template, err := c.prepare(ctx, spec)
	if err != nil {
		return nil, err
	}
	replicas := int32(spec.Replicas)
	deployment := &appsv1.Deployment{
		ObjectMeta: spec.meta(),
		Spec: appsv1.DeploymentSpec{
			Replicas:        &replicas,
			MinReadySeconds: spec.MinReadySeconds,
			Selector:        &metav1.LabelSelector{MatchLabels: app(spec.Name)},
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: spec.MaxSurge, MaxUnavailable: spec.MaxUnavailable},
			},
			Template: template,
		},
	}
	if spec.Change != nil {
		spec.Change(deployment)
	}
	return deployment, Create(ctx, c.Client, deployment)
}

func (c *Cluster) createBudget(ctx context.Context, spec DeploymentSpec) error {
	if spec.BudgetMinAvailable == nil && spec.BudgetMaxUnavailable == nil {
		return nil
	}
	return Create(ctx, c.Client, &policyv1.PodDisruptionBudget{
		ObjectMeta: spec.meta(),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable:   spec.BudgetMinAvailable,
			MaxUnavailable: spec.BudgetMaxUnavailable,
			Selector:       &metav1.LabelSelector{MatchLabels: app(spec.Name)},
		},
	})
}

// meta is that of the workload's objects.
func (spec DeploymentSpec) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: cmp.Or(spec.Namespace, metav1.NamespaceDefault), Name: spec.Name}
}

func app(name string) map[string]string { return map[string]string{"app": name} }

// podTemplate is the spec's pod.
func podTemplate(spec DeploymentSpec) (corev1.PodTemplateSpec, error) {
	requests := corev1.ResourceList{}
	for name, text := range map[corev1.ResourceName]string{corev1.ResourceCPU: cmp.Or(spec.CPU, "100m"), corev1.ResourceMemory: cmp.Or(spec.Memory, "64Mi")} {
		quantity, err := resource.ParseQuantity(text)
		if err != nil {
			return corev1.PodTemplateSpec{}, fmt.Errorf("parse the request of %s of workload %q: %w", name, spec.Name, err)
		}
		requests[name] = quantity
	}
	labels, annotations, selector := app(spec.Name), spec.Behaviour.Annotations(), map[string]string{}
	maps.Copy(labels, spec.Labels)
	maps.Copy(annotations, spec.Annotations)
	maps.Copy(selector, spec.NodeSelector)
	if spec.Pool != "" {
		selector[nodePoolLabel] = spec.Pool
	}
	grace := int64(cmp.Or(spec.Grace, 30*time.Second).Seconds())
	pod := corev1.PodSpec{
		TerminationGracePeriodSeconds: &grace,
		NodeSelector:                  selector,
		Tolerations:                   spec.Tolerations,
		Containers: []corev1.Container{{
			Name: "app", Image: "fake", Resources: corev1.ResourceRequirements{Requests: requests},
		}},
	}
	if spec.Spread != "" {
		pod.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: spec.Spread, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: app(spec.Name)},
		}}
	}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations},
		Spec:       pod,
	}, nil
}

// WaitReady waits until exactly n pods with the label app: <name> are Ready, and returns
// them.
func (c *Cluster) WaitReady(ctx context.Context, namespace, name string, n int) ([]*corev1.Pod, error) {
	var ready []*corev1.Pod
	_, err := c.WaitPods(ctx, cmp.Or(namespace, metav1.NamespaceDefault), Selector(name), func(pods []*corev1.Pod) bool {
		ready = ready[:0]
		for _, pod := range pods {
			if Ready(pod) {
				ready = append(ready, pod)
			}
		}
		return len(ready) == n
	})
	if err != nil {
		return nil, fmt.Errorf("wait for %d ready pods of %q: %w", n, name, err)
	}
	return ready, nil
}

// CreateNamespace creates the namespace if it does not exist, and waits until pods can be
// created in it.
func (c *Cluster) CreateNamespace(ctx context.Context, name string) error {
	ctx, cancel := withWaitTimeout(ctx)
	defer cancel()
	err := Create(ctx, c.Client, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return c.waitServiceAccount(ctx, name, "default")
}
