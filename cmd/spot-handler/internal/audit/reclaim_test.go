package audit

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/cmd/spot-handler/internal/cluster"
	"spot-handler/drain/plan"
	"spot-handler/handler/nodes"
)

// A pod counts if EC2 can take back its node, or if it is not known which node that is.
func TestPodsAtRisk(t *testing.T) {
	const instance = "aws:///eu-west-1a/i-0123456789abcdef0"
	for name, tt := range map[string]struct {
		provider string
		labels   map[string]string
		found    bool
	}{
		"spot":          {instance, map[string]string{"karpenter.sh/capacity-type": "spot"}, true},
		"nobody labels": {instance, nil, true},
		"on demand":     {instance, map[string]string{"node-lifecycle": "on-demand"}, false},
		"Fargate": {
			"aws:///eu-west-1a/0123456789-abcdef/fargate-ip-10-0-1-2.eu-west-1.compute.internal",
			map[string]string{"eks.amazonaws.com/compute-type": "fargate"}, false,
		},
		"hybrid":        {"eks-hybrid:///eu-west-1/cluster/mi-0123456789abcdef0", nil, false},
		"control plane": {instance, map[string]string{"node-role.kubernetes.io/control-plane": ""}, false},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: tt.labels}, Spec: corev1.NodeSpec{ProviderID: tt.provider}}
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "shop", Name: "db-0", UID: "u", Labels: map[string]string{"app": "db"},
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "s", Controller: new(true)}},
				},
				Spec:   corev1.PodSpec{NodeName: node.Name},
				Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
			}
			budget := &policyv1.PodDisruptionBudget{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"},
				Spec: policyv1.PodDisruptionBudgetSpec{
					MaxUnavailable: new(intstr.FromInt32(0)),
					Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
				},
				Status: policyv1.PodDisruptionBudgetStatus{ExpectedPods: 1, DesiredHealthy: 1, CurrentHealthy: 1},
			}
			read := cluster.Cluster{At: time.Now(), Nodes: []*corev1.Node{node}, Pods: []*corev1.Pod{pod}, Budgets: []*policyv1.PodDisruptionBudget{budget}}
			found := Of(NewSnapshot(read, Options{Margin: 10 * time.Second, MaxShare: 50}))
			if (len(found) > 0) != tt.found {
				t.Errorf("findings %+v; want some: %v", found, tt.found)
			}
		})
	}
}

// Of a cluster it is kept which pods on nodes at risk would be surged, how many pods each workload has on all nodes, and
// by which label its nodes say that they are on demand.
func TestSnapshot(t *testing.T) {
	node := func(name string, labels map[string]string) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec:       corev1.NodeSpec{ProviderID: "aws:///eu-west-1a/i-0123456789abcdef" + name},
		}
	}
	pod := func(name, app, on string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: name, UID: types.UID(name), Labels: map[string]string{"app": app, "pod-template-hash": "abc"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: app + "-abc", UID: "s", Controller: new(true)}},
			},
			Spec: corev1.PodSpec{NodeName: on},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue},
			}},
		}
	}
	deployment := func(app string, surge int32) *plan.Deployment {
		d := &plan.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: app}}
		d.Spec.Replicas, d.Spec.MinReadySeconds = new(int32(3)), 7
		d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
		d.Spec.Strategy.Type = "RollingUpdate"
		d.Spec.Strategy.RollingUpdate = &struct {
			MaxSurge *intstr.IntOrString `json:"maxSurge"`
		}{new(intstr.FromInt32(surge))}
		return d
	}
	in := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "shop", Name: name} }
	s := NewSnapshot(cluster.Cluster{
		At:    time.Now(),
		Nodes: []*corev1.Node{node("1", map[string]string{"karpenter.sh/capacity-type": "spot"}), node("2", map[string]string{"karpenter.sh/capacity-type": "on-demand"})},
		Pods: []*corev1.Pod{
			pod("web-1", "web", "1"), pod("web-2", "web", "2"), pod("web-3", "web", ""), pod("never-1", "never", "1"), pod("none-1", "none", "1"),
		},
		Deployments: map[types.NamespacedName]*plan.Deployment{in("web"): deployment("web", 1), in("never"): deployment("never", 0)},
	}, Options{Margin: 10 * time.Second, MaxShare: 50})
	if s.Grace != 100*time.Second {
		t.Errorf("there is time for a grace period of %v, want 100s: two minutes without the margin, and ten seconds to begin", s.Grace)
	}
	got := map[string]bool{}
	for _, p := range s.Pods {
		got[p.Name] = p.Surges
	}
	if diff := cmp.Diff(map[string]bool{"web-1": true, "never-1": false, "none-1": false}, got); diff != "" {
		t.Errorf("which pods would be surged (-want +got):\n%s", diff)
	}
	web := Owned{"shop", "deployment/web"}
	if d := s.Deployments[web]; d == nil || d.Replicas != 3 || d.MinReady != 7 || d.Refuses != "" || s.Deployments[Owned{"shop", "deployment/never"}].Refuses == "" {
		t.Errorf("Deployments %+v", s.Deployments)
	}
	if s.Replicas[web] != 3 || s.OnDemand != (nodes.Label{Key: "karpenter.sh/capacity-type", Value: "on-demand"}) {
		t.Errorf("%d pods of web, on demand by %s", s.Replicas[web], s.OnDemand)
	}
	if got := NewSnapshot(cluster.Cluster{}, Options{}).OnDemand; got != (nodes.Label{Key: "karpenter.sh/capacity-type", Value: "on-demand"}) {
		t.Errorf("where no node says so, on demand is by %s", got)
	}
}
