package stories

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/controlplane"
)

// A pod that tolerates every taint says nothing of interruptions. It is evicted like any
// other, once and at its latest safe start, and has its grace period. Its replacement pod, which
// the scheduler puts back on the very node, since it tolerates the cordon too, is not
// chased, and the drain ends. A pod that names our taint stays.
func TestBlanketTolerationsLeaveOnce(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	node := s.bare("node", 1, 8)[0]
	everything := corev1.Toleration{Operator: corev1.TolerationOpExists}
	operator := s.service("operator", 1, func(d *controlplane.DeploymentSpec) {
		quick(d)
		d.Tolerations = []corev1.Toleration{everything}
		d.NodeSelector = map[string]string{corev1.LabelHostname: node.Name} // it can go nowhere else
	})[0]
	stays := s.service("stays", 1, func(d *controlplane.DeploymentSpec) {
		quick(d)
		d.Tolerations = []corev1.Toleration{{Key: "spot-handler/interrupted", Operator: corev1.TolerationOpExists}}
	})[0]
	web := s.service("web", 1, quick)[0]
	s.bare("spare", 1, 8)
	d, queue := s.drill()

	deadline := interrupt(queue, node.Name, 40*time.Second)
	s.wantResults(d, map[string]result{node.Name: {graceful: 2}})
	s.wantEachOnce(uids([]*corev1.Pod{operator, web}))
	latest := deadline.Add(-10*time.Second - 5*time.Second)
	for _, r := range s.evicted() {
		if r.ObjectRef.Name == operator.Name && r.RequestReceivedTimestamp.Before(latest) {
			t.Errorf("evicted %s before its latest safe start", latest.Sub(r.RequestReceivedTimestamp))
		}
	}
	back := s.podsOn(node.Name, "operator")
	if len(back) != 1 || back[0].UID == operator.UID {
		t.Errorf("%d pods of the operator are back on the node, want its replacement pod", len(back))
	}
	if left := s.podsOn(node.Name, "stays"); len(left) != 1 || left[0].UID != stays.UID {
		t.Errorf("%d pods that tolerate interruptions by name, want the one to stay", len(left))
	}
}
