package stories

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
)

// While their pods are surged, and before there is room for replacement pods, Deployments are deleted
// in each of the three ways, scaled to nothing and to less, and somebody restores the label of
// one's pods. What the ReplicaSets would have ended is ended at once, whatever the budgets say;
// what they would have kept is back with them, and waits for the replacement.
func TestSurgedPodsFollowTheirDeployments(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true, Audit: true})
	s.pools(25 * time.Second)
	node := s.node("batch")
	strict := func(d *controlplane.DeploymentSpec) { d.BudgetMaxUnavailable = never }
	total, pods := 0, map[string][]*corev1.Pod{}
	for name, more := range map[string]func(*controlplane.DeploymentSpec){
		"deleted": strict, "foreground": strict, "zeroed": strict, "shrunk": func(d *controlplane.DeploymentSpec) { d.BudgetMinAvailable = budget(2) },
		"orphaned": nil, "restored": nil,
	} {
		replicas := map[string]int{"shrunk": 4}[name] + 2
		pods[name] = s.service(name, replicas, surge(8, more))
		total += replicas
	}
	d, queue := s.drill()
	interrupt(queue, node.Name, 110*time.Second)
	s.waitSurged(total)

	deployments := s.cluster.Client.AppsV1().Deployments("default")
	for name, policy := range map[string]metav1.DeletionPropagation{
		"deleted": metav1.DeletePropagationBackground, "foreground": metav1.DeletePropagationForeground, "orphaned": metav1.DeletePropagationOrphan,
	} {
		s.must(deployments.Delete(s.ctx, name, metav1.DeleteOptions{PropagationPolicy: &policy}))
	}
	for name, replicas := range map[string]int{"zeroed": 0, "shrunk": 2} {
		_, err := deployments.Patch(s.ctx, name, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas), metav1.PatchOptions{}, "scale")
		s.must(err)
	}
	for _, pod := range pods["restored"] {
		_, err := s.cluster.Client.CoreV1().Pods("default").Patch(s.ctx, pod.Name, types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"labels":{"pod-template-hash":%q}}}`, pod.Labels["pod-template-hash"]), metav1.PatchOptions{})
		s.must(err)
	}

	soon := 15 * time.Second // for a loaded machine; less than the boot takes
	for name, left := range map[string]int{"deleted": 0, "foreground": 0, "zeroed": 0, "shrunk": 2} {
		s.within("end of what is left over of "+name, soon, func() bool { return len(s.podsOn(node.Name, name)) == left }, func() string { return "" })
	}
	for _, name := range []string{"orphaned", "restored"} {
		s.within("return of the pods of "+name, soon, func() bool { return s.settled(pods[name]) }, func() string { return "" })
	}
	if n := len(s.evictions()); n != 0 {
		t.Errorf("%d pods were evicted before there was room for replacement pods", n)
	}

	s.wantResults(d, map[string]result{node.Name: {graceful: total}})
	for name, replicas := range map[string]int{"deleted": 0, "foreground": 0, "zeroed": 0, "shrunk": 2, "orphaned": 2, "restored": 2} {
		s.wantPods("default", name, replicas)
	}
	s.wantNoneSurged()
	ended := s.requests(func(r request) bool { return r.Verb == "delete" && r.ObjectRef.Resource == "pods" })
	for _, r := range ended {
		if r.RequestObject.Preconditions.UID == "" || r.RequestObject.GracePeriodSeconds != nil {
			t.Errorf("pod %s deleted with %+v, want its own grace period, and only the pod that was meant", r.ObjectRef.Name, r.RequestObject)
		}
	}
	if want := 2 + 2 + 2 + 4; len(ended) != want {
		t.Errorf("%d pods ended without asking a budget, want the %d that no owner asks for", len(ended), want)
	}
	if n := s.metric(d, `spot_handler_evictions_total{code="429"}`); n != 0 {
		t.Errorf("%v evictions refused, want none", n)
	}
}

// settled reports whether the pods carry nothing of ours, and have an owner and no deletion.
func (s *story) settled(pods []*corev1.Pod) bool {
	s.Helper()
	for _, pod := range pods {
		now, err := s.cluster.Client.CoreV1().Pods(pod.Namespace).Get(s.ctx, pod.Name, metav1.GetOptions{})
		s.must(err)
		if isSurged(now) || metav1.GetControllerOf(now) == nil || now.DeletionTimestamp != nil {
			return false
		}
	}
	return true
}
