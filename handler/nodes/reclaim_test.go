package nodes

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const ec2 = "aws:///eu-west-1a/i-0123456789abcdef0"

func nodeOf(provider string, labels map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.NodeSpec{ProviderID: provider}}
}

func TestReclaimOf(t *testing.T) {
	for name, tt := range map[string]struct {
		provider string
		labels   map[string]string
		want     Reclaim
	}{
		"spot of Karpenter":        {ec2, map[string]string{"karpenter.sh/capacity-type": "spot"}, Reclaimable},
		"spot of EKS":              {ec2, map[string]string{"eks.amazonaws.com/capacityType": "SPOT"}, Reclaimable},
		"spot of eksctl":           {ec2, map[string]string{"node-lifecycle": "spot"}, Reclaimable},
		"on demand of Karpenter":   {ec2, map[string]string{"karpenter.sh/capacity-type": "on-demand"}, NotReclaimable},
		"reserved":                 {ec2, map[string]string{"karpenter.sh/capacity-type": "reserved"}, NotReclaimable},
		"on demand of EKS":         {ec2, map[string]string{"eks.amazonaws.com/capacityType": "ON_DEMAND"}, NotReclaimable},
		"capacity block of EKS":    {ec2, map[string]string{"eks.amazonaws.com/capacityType": "CAPACITY_BLOCK"}, NotReclaimable},
		"on demand of eksctl":      {ec2, map[string]string{"node-lifecycle": "on-demand"}, NotReclaimable},
		"labels that contradict":   {ec2, map[string]string{"karpenter.sh/capacity-type": "on-demand", "node-lifecycle": "spot"}, NotReclaimable},
		"it says nothing":          {ec2, nil, ReclaimUnsaid},
		"no provider ID":           {"", map[string]string{"karpenter.sh/capacity-type": "spot"}, NotReclaimable},
		"control plane of kubeadm": {ec2, map[string]string{"node-role.kubernetes.io/control-plane": ""}, NotReclaimable},
		"control plane of kOps":    {ec2, map[string]string{"node-role.kubernetes.io/master": ""}, NotReclaimable},
		"Fargate": {
			"aws:///eu-west-1a/0123456789-abcdef/fargate-ip-10-0-1-2.eu-west-1.compute.internal",
			map[string]string{"eks.amazonaws.com/compute-type": "fargate"}, NotReclaimable,
		},
		"hybrid":          {"eks-hybrid:///eu-west-1/cluster/mi-0123456789abcdef0", map[string]string{"eks.amazonaws.com/compute-type": "hybrid"}, NotReclaimable},
		"virtual kubelet": {"", map[string]string{"type": "virtual-kubelet"}, NotReclaimable},
	} {
		if got := ReclaimOf(nodeOf(tt.provider, tt.labels)); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

// One node that is labelled as spot shows that spot nodes are labelled: the others are none.
func TestAtRisk(t *testing.T) {
	spot := nodeOf(ec2, map[string]string{"node-lifecycle": "spot"})
	unsaid := nodeOf(ec2, nil)
	onDemand := nodeOf(ec2, map[string]string{"node-lifecycle": "on-demand"})
	fargate := nodeOf("aws:///eu-west-1a/fargate", nil)
	for name, tt := range map[string]struct {
		all  []*corev1.Node
		want []*corev1.Node
	}{
		"some are labelled": {[]*corev1.Node{spot, unsaid, onDemand, fargate}, []*corev1.Node{spot}},
		"none is labelled":  {[]*corev1.Node{unsaid, onDemand, fargate}, []*corev1.Node{unsaid}},
		"none can go":       {[]*corev1.Node{onDemand, fargate}, nil},
	} {
		at := AtRisk(tt.all)
		var got []*corev1.Node
		for _, n := range tt.all {
			if at(n) {
				got = append(got, n)
			}
		}
		if len(got) != len(tt.want) || len(got) > 0 && got[0] != tt.want[0] {
			t.Errorf("%s: %d are at risk, want %d", name, len(got), len(tt.want))
		}
	}
}
