package audit

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/cmd/spot-handler/internal/cluster"
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
