package reality

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/sim"
)

const (
	namespace = "shop"
	appLabel  = "app"
)

// real is a scene on a real control plane.
type real struct {
	*testing.T
	*controlplane.Cluster
	scene sim.Scene
	began time.Time // of the scene

	karpenter bool
}

func (r *real) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// build makes the cluster. Its pods come up on spot nodes; those that find no room there wait for the others.
func (r *real) build(ctx context.Context) {
	r.Helper()
	r.must(r.CreateNamespace(ctx, namespace))
	if r.karpenter {
		r.pools(ctx)
	} else {
		r.nodes(ctx, sim.PoolSpot)
	}
	for i := range r.scene.Workloads {
		r.workload(ctx, &r.scene.Workloads[i])
	}
	r.settle(ctx)
	if r.karpenter {
		r.takeStock(ctx)
	} else {
		r.nodes(ctx, sim.PoolFallback)
		r.settle(ctx)
	}
	r.change(ctx)
	r.settle(ctx)
}

func (r *real) nodes(ctx context.Context, pool string) {
	r.Helper()
	for _, n := range r.scene.Nodes {
		if n.Pool != pool {
			continue
		}
		capacity := map[string]string{sim.PoolSpot: controlplane.Spot, sim.PoolFallback: controlplane.OnDemand}[pool]
		_, err := r.CreateBareNodes(ctx, controlplane.BareNodes{Count: 1, Instances: []string{controlplane.InstanceID(n.Name)}, Change: func(_ int, node *corev1.Node) {
			node.Name = n.Name
			maps.Copy(node.Labels, map[string]string{
				corev1.LabelHostname: n.Name, corev1.LabelTopologyZone: n.Zone,
				"karpenter.sh/nodepool": pool, "karpenter.sh/capacity-type": capacity,
			})
			room := corev1.ResourceList{
				corev1.ResourceCPU: *resource.NewMilliQuantity(n.CPU, resource.DecimalSI), corev1.ResourcePods: resource.MustParse("58"),
				corev1.ResourceMemory: *resource.NewQuantity(n.CPU/1000*4<<30, resource.BinarySI),
			}
			node.Status.Capacity, node.Status.Allocatable = room, room
			node.Spec.Unschedulable = n.Cordoned
		}})
		r.must(err)
	}
}

// startsIn is how long a pod takes to become Ready once it has a node, as in the simulator.
func startsIn(w *sim.Workload) time.Duration { return time.Second + w.Start }

func template(w *sim.Workload) corev1.PodTemplateSpec {
	starts := startsIn(w)
	stops := w.Stop
	t := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels: map[string]string{appLabel: w.Name}, Annotations: controlplane.Behaviour{ReadyAfter: &starts, StopAfter: &stops}.Annotations(),
		},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &w.Grace,
			Containers: []corev1.Container{{Name: "main", Image: "fake", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: *resource.NewMilliQuantity(w.CPU, resource.DecimalSI),
			}}}},
		},
	}
	maps.Copy(t.Annotations, w.Annotations)
	if w.Gang {
		t.Labels["spot-handler/gang"] = w.Name
	}
	return t
}

func (r *real) workload(ctx context.Context, w *sim.Workload) {
	r.Helper()
	n, t := int32(w.Replicas), template(w)
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{appLabel: w.Name}}
	meta := metav1.ObjectMeta{Namespace: namespace, Name: w.Name}
	var obj runtime.Object
	switch w.Kind {
	case "Deployment":
		surge, down := intstr.Parse(w.MaxSurge), intstr.FromInt32(0)
		if w.MaxSurge == "0" {
			down = intstr.FromInt32(1)
		}
		obj = &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
			Replicas: &n, Selector: selector, Template: t, Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &down},
			},
		}}
	case "ReplicaSet":
		obj = &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Replicas: &n, Selector: selector, Template: t}}
	case "StatefulSet":
		obj = &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: &n, Selector: selector, Template: t, ServiceName: w.Name}}
	case "Job":
		t.Spec.RestartPolicy = corev1.RestartPolicyNever
		often := int32(1000)
		obj = &batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Parallelism: &n, BackoffLimit: &often, Template: t}}
	case "DaemonSet":
		t.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		obj = &appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: t}}
	case "Pod":
		meta.Labels, meta.Annotations = t.Labels, t.Annotations
		obj = &corev1.Pod{ObjectMeta: meta, Spec: t.Spec}
	default:
		r.Fatalf("workload %s is of kind %q", w.Name, w.Kind)
	}
	r.must(controlplane.Create(ctx, r.Client, obj))
	if w.Budget == "" {
		return
	}
	what, value, _ := strings.Cut(w.Budget, "=")
	amount := intstr.Parse(value)
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: meta, Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector}}
	if what == "maxUnavailable" {
		budget.Spec.MaxUnavailable = &amount
	} else {
		budget.Spec.MinAvailable = &amount
	}
	r.must(controlplane.Create(ctx, r.Client, budget))
}

// pods are those of the scene but of DaemonSets, by name.
func (r *real) pods(all []*corev1.Pod) (pods []*corev1.Pod) {
	for _, pod := range all {
		if workloadOf(r.scene, pod.Labels[appLabel]).Kind != "DaemonSet" {
			pods = append(pods, pod)
		}
	}
	return pods
}

const neverReady = "e2e.spot-handler/never-ready"

// settle waits until each pod is Ready, or finds no room, or is one that never becomes Ready, and until the budgets
// count them.
func (r *real) settle(ctx context.Context) {
	r.Helper()
	_, err := r.WaitPods(ctx, namespace, "", func(all []*corev1.Pod) bool {
		have := map[string]int{}
		for _, pod := range r.pods(all) {
			homeless := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Reason == corev1.PodReasonUnschedulable
			})
			if !controlplane.Ready(pod) && !homeless && pod.Annotations[neverReady] == "" {
				return false
			}
			have[pod.Labels[appLabel]]++
			if homeless && pod.Labels[appLabel] != "" && workloadOf(r.scene, pod.Labels[appLabel]).Kind == "StatefulSet" {
				have[pod.Labels[appLabel]] = 1000 // the next ones wait for it
			}
		}
		for _, w := range r.scene.Workloads {
			if w.Kind != "DaemonSet" && have[w.Name] < w.Replicas {
				return false
			}
		}
		return true
	})
	r.must(err)
}

// change has the pods behave each in its own way: as long as the simulator draws they take to end, and the first of
// some workloads fail.
func (r *real) change(ctx context.Context) {
	r.Helper()
	all, err := r.WaitPods(ctx, namespace, "", func([]*corev1.Pod) bool { return true })
	r.must(err)
	broken := map[string]int{}
	for _, pod := range r.pods(all) {
		w := workloadOf(r.scene, pod.Labels[appLabel])
		notes := map[string]any{"e2e.spot-handler/stop-after": r.scene.StopsAfter(w, pod.Name).String()}
		fails := broken[w.Name] < w.Broken && pod.Spec.NodeName != ""
		if fails {
			broken[w.Name]++
			notes[neverReady] = "true"
		}
		r.patch(ctx, pod.Name, map[string]any{"metadata": map[string]any{"annotations": notes}})
		if fails {
			no := map[string]any{"type": "Ready", "status": "False", "lastTransitionTime": time.Now().UTC().Format(time.RFC3339)}
			r.patch(ctx, pod.Name, map[string]any{"status": map[string]any{"conditions": []any{no}}}, "status")
		}
	}
}

func (r *real) patch(ctx context.Context, pod string, change map[string]any, subresource ...string) {
	r.Helper()
	text, err := json.Marshal(change)
	r.must(err)
	_, err = r.Client.CoreV1().Pods(namespace).Patch(ctx, pod, types.StrategicMergePatchType, text, metav1.PatchOptions{}, subresource...)
	r.must(err)
}

// standing is how the pods stand, for the simulator.
func (r *real) standing(ctx context.Context) (pods []sim.Standing) {
	r.Helper()
	all, err := r.WaitPods(ctx, namespace, "", func([]*corev1.Pod) bool { return true })
	r.must(err)
	for _, pod := range r.pods(all) {
		p := sim.Standing{
			Name: pod.Name, Workload: pod.Labels[appLabel], Node: pod.Spec.NodeName, Ready: controlplane.Ready(pod),
			Created: pod.CreationTimestamp.Sub(r.began),
		}
		for _, c := range pod.Status.Conditions {
			switch c.Type {
			case corev1.PodScheduled:
				p.Scheduled = c.LastTransitionTime.Sub(r.began)
			case corev1.PodReady:
				p.Turned = c.LastTransitionTime.Sub(r.began)
			}
		}
		pods = append(pods, p)
	}
	return pods
}
