package stories

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/controlplane"
)

// Surge is of no use to two services: a quota forbids the successors of one, and the pod of the
// other must be alone in its zone. Both go back to their ReplicaSets, the first at once and the
// second when its successor has had its time, wait for the replacement and leave well before
// their latest safe start; neither is surged again.
func TestPodsThatAreSurgedInVainAreHeld(t *testing.T) {
	s := tell(t, controlplane.Options{Karpenter: true, Audit: true})
	s.pools(15 * time.Second)
	node := s.node("batch")
	s.must(s.cluster.CreateNamespace(s.ctx, "small"))
	spec := controlplane.DeploymentSpec{Namespace: "small", Name: "full", Replicas: 2}
	surge(2, nil)(&spec)
	_, err := s.cluster.RunDeployment(s.ctx, spec)
	s.must(err)
	full, err := s.cluster.WaitReady(s.ctx, "small", "full", 2)
	s.must(err)
	s.quota("small", 2)
	alone := s.service("alone", 1, surge(1, func(d *controlplane.DeploymentSpec) {
		d.NodeSelector = map[string]string{corev1.LabelTopologyZone: node.Labels[corev1.LabelTopologyZone]}
		d.Change = func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
					TopologyKey: corev1.LabelTopologyZone, LabelSelector: d.Spec.Selector,
				}},
			}}
		}
	}))
	d, queue := s.drill()

	interrupt(queue, node.Name, 110*time.Second)
	s.waitLine(d, "surge is of no use; pods go back into their ReplicaSet and are held")
	s.within("return of the pods whose successors a quota forbids", 10*time.Second, func() bool { return s.settled(full) }, func() string { return "" })
	if n := len(s.evictions()); n != 0 {
		t.Errorf("%d pods were evicted before the replacement was Ready", n)
	}
	line := s.wantResults(d, map[string]result{node.Name: {graceful: 3}})[node.Name]
	if slack, _ := line["slack_seconds"].(float64); slack < 25 {
		t.Errorf("drained %v s before the deadline: something waited for its latest safe start", slack)
	}
	s.wantEachOnce(uids(append(full, alone...)))
	s.wantNoneSurged()
	s.wantPods("small", "full", 2)
	s.wantPods("default", "alone", 1)
	patched := map[string]int{}
	for _, r := range s.requests(func(r request) bool {
		return r.Verb == "patch" && r.ObjectRef.Resource == "pods" && r.ObjectRef.Subresource == ""
	}) {
		patched[r.ObjectRef.Name]++
	}
	for _, pod := range append(full, alone...) {
		if patched[pod.Name] != 2 {
			t.Errorf("pod %s was patched %d times, want once to surge it and once to put it back", pod.Name, patched[pod.Name])
		}
	}
}

// quota bounds the pods of a namespace, and returns when that is in force.
func (s *story) quota(namespace string, pods int) {
	s.Helper()
	quotas := s.cluster.Client.CoreV1().ResourceQuotas(namespace)
	_, err := quotas.Create(s.ctx, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "pods"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(int64(pods), resource.DecimalSI)}},
	}, metav1.CreateOptions{})
	s.must(err)
	s.eventually("count of the quota", func() bool {
		q, err := quotas.Get(s.ctx, "pods", metav1.GetOptions{})
		s.must(err)
		used := q.Status.Used[corev1.ResourcePods]
		return used.Value() == int64(pods)
	})
}
