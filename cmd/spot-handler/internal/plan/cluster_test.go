package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/cmd/spot-handler/internal/cluster"
	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
)

// at is when the cluster of a test was read.
var at = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// scene is a cluster in the making, with the node "lost" that is taken in two minutes, and room on
// the node "other".
type scene struct {
	testing.TB
	Input
	had map[string]int // pods, by their app
}

func newScene(t testing.TB) *scene {
	s := &scene{t, Input{
		Cluster: cluster.Cluster{ // with what Read keeps of a namespace of which there is nothing to keep
			At: at, Deployments: map[types.NamespacedName]*plan.Deployment{}, Constraints: map[string]plan.NamespaceConstraints{}, Namespaces: map[string]plan.Preferences{},
		},
		Policy:      plan.Policy{Strategy: plan.StrategySurge, Blocked: plan.Leave, Margin: 10 * time.Second},
		Assumptions: Assumptions{Boot: Assume(40*time.Second, "test"), Ready: Assume(10*time.Second, "test"), Stop: Assume(5*time.Second, "test")},
	}, map[string]int{}}
	s.lose("lost", plan.NoCapacity)
	s.Nodes = append(s.Nodes, aNode("other", "8"))
	return s
}

func aNode(name, cpu string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: "a"}}}
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourcePods: resource.MustParse("110")}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

// forecastOf also brings the status of the budgets up to date, as the disruption controller would.
func forecastOf(in Input) Forecast {
	for _, b := range in.Budgets {
		expected := int32(0)
		for _, p := range in.Pods {
			if metav1.GetControllerOf(p) != nil && p.Labels["app"] == b.Spec.Selector.MatchLabels["app"] {
				expected++
			}
		}
		b.Status.ExpectedPods, b.Status.DesiredHealthy = expected, max(0, expected-b.Spec.MaxUnavailable.IntVal)
	}
	return newWorld(in).play()
}

// lose has a node taken. One whose replacement boots gets a Node of the same size.
func (s *scene) lose(name string, capacity plan.Capacity) *Lost {
	n := aNode(name, "8")
	s.Nodes = append(s.Nodes, n)
	lost := Lost{Node: n, Kind: interruption.SpotInterruption, Noticed: at, Deadline: at.Add(2 * time.Minute), Capacity: capacity}
	if capacity == plan.PendingCapacity {
		lost.Becomes = aNode("instead-of-"+name, "8")
	}
	s.Lost = append(s.Lost, lost)
	return &s.Lost[len(s.Lost)-1]
}

// after has the notice of a node come later.
func (l *Lost) after(d time.Duration) {
	l.Noticed, l.Deadline = l.Noticed.Add(d), l.Deadline.Add(d)
}

// pods makes pods of a controller on a node, with a grace period of 30 s.
func (s *scene) pods(kind, name, node string, n int, change ...func(*corev1.Pod)) {
	yes := true
	had := s.had[name]
	s.had[name] += n
	for i := had; i < had+n; i++ {
		grace := int64(30)
		started := metav1.NewTime(at.Add(-time.Hour))
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: fmt.Sprintf("%s-%d", name, i), UID: types.UID(fmt.Sprintf("%s-%d", name, i)), CreationTimestamp: started,
			GenerateName: name + "-", Labels: map[string]string{"app": name},
		}}
		owner := name
		if kind == "ReplicaSet" {
			owner = name + "-5d4f"
			p.Labels["pod-template-hash"] = "5d4f"
		}
		if kind != "" {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: owner, UID: types.UID("of-" + name), Controller: &yes}}
		}
		p.Spec = corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{
			Name: "app", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
		}}}
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: started},
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(started.Add(10 * time.Second))},
		}
		for _, f := range change {
			f(p)
		}
		s.Pods = append(s.Pods, p)
	}
}

// deployment makes a Deployment whose maxSurge is one pod, with its pods on a node.
func (s *scene) deployment(name, node string, n int, change ...func(*corev1.Pod)) {
	s.Helper()
	s.deploymentOf(name, int64(n), 1)
	s.pods("ReplicaSet", name, node, n, change...)
}

func (s *scene) deploymentOf(name string, replicas, maxSurge int64) {
	s.Helper()
	data, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"namespace": "shop", "name": name},
		"spec": map[string]any{
			"replicas": replicas, "selector": map[string]any{"matchLabels": map[string]any{"app": name}},
			"strategy": map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxSurge": maxSurge}},
		},
		"status": map[string]any{"replicas": replicas, "updatedReplicas": replicas},
	})
	d := &plan.Deployment{}
	if err := errors.Join(err, json.Unmarshal(data, d)); err != nil {
		s.Fatal(err)
	}
	s.Deployments[types.NamespacedName{Namespace: "shop", Name: name}] = d
}

func (s *scene) budget(name, app string, maxUnavailable int) {
	most := intstr.FromInt32(int32(maxUnavailable))
	s.Budgets = append(s.Budgets, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("pdb-" + name)},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &most, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
	})
}

func graceOf(seconds int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &seconds }
}

// startsSince has a pod been scheduled so long ago, and not be ready yet.
func startsSince(d time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.CreationTimestamp = metav1.NewTime(at.Add(-d))
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: p.CreationTimestamp},
			{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: p.CreationTimestamp},
		}
	}
}

func labelled(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[key] = value }
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{key: value} }
}
