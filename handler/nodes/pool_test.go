package nodes

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPoolSelector(t *testing.T) {
	for want, labels := range map[string]map[string]string{
		"karpenter.sh/nodepool=a":                                                             {"karpenter.sh/nodepool": "a", "eks.amazonaws.com/nodegroup": "b"},
		"!karpenter.sh/nodepool,eks.amazonaws.com/nodegroup=b":                                {"eks.amazonaws.com/nodegroup": "b"},
		"!karpenter.sh/nodepool,!eks.amazonaws.com/nodegroup,!alpha.eksctl.io/nodegroup-name": nil,
	} {
		if got := PoolOf(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}}).Selector(); got != want {
			t.Errorf("%v: %s, want %s", labels, got, want)
		}
	}
}
