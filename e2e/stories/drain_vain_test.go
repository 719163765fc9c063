package stories

import (
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/controlplane"
)

// Surge is of no use to three services: the namespace of one has a full quota, which can be seen
// beforehand; a LimitRange forbids the replacement pods of the second; and the pod of the third must be
// alone in its zone. The first is not surged. The others go back to their ReplicaSets, the second
// at once and the third when its replacement pod has had its time, and are not surged again. All wait
// for the replacement and leave well before their latest safe start.
func TestPodsThatAreSurgedInVainAreHeld(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true, Audit: true})
	s.pools(15 * time.Second)
	node := s.node("batch")
	elsewhere := func(namespace, name string) []*corev1.Pod {
		spec := controlplane.DeploymentSpec{Namespace: namespace, Name: name, Replicas: 2}
		surge(2, nil)(&spec)
		s.must(s.cluster.CreateNamespace(s.ctx, namespace))
		_, err := s.cluster.RunDeployment(s.ctx, spec)
		s.must(err)
		pods, err := s.cluster.WaitReady(s.ctx, namespace, name, 2)
		s.must(err)
		return pods
	}
	full, tight := elsewhere("small", "full"), elsewhere("limited", "tight")
	s.quota("small", 2)
	limits := s.cluster.Client.CoreV1().LimitRanges("limited")
	_, err := limits.Create(s.ctx, &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "large"}, Spec: corev1.LimitRangeSpec{
		Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Min: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}},
	}}, metav1.CreateOptions{})
	s.must(err)
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
	s.within("return of the pods whose replacement pods are forbidden", 10*time.Second, func() bool { return s.settled(tight) }, func() string { return "" })
	s.must(limits.Delete(s.ctx, "large", metav1.DeleteOptions{}))
	if n := len(s.evictions()); n != 0 {
		t.Errorf("%d pods were evicted before the replacement was Ready", n)
	}
	line := s.wantResults(d, map[string]result{node.Name: {graceful: 5}})[node.Name]
	if slack, _ := line["slack_seconds"].(float64); slack < 25 {
		t.Errorf("drained %v s before the deadline: something waited for its latest safe start", slack)
	}
	s.wantEachOnce(uids(slices.Concat(full, tight, alone)))
	s.wantNoneSurged()
	s.wantPods("small", "full", 2)
	s.wantPods("limited", "tight", 2)
	s.wantPods("default", "alone", 1)
	patched := map[string]int{}
	for _, r := range s.requests(func(r request) bool {
		return r.Verb == "patch" && r.ObjectRef.Resource == "pods" && r.ObjectRef.Subresource == ""
	}) {
		patched[r.ObjectRef.Name]++
	}
	for times, pods := range map[int][]*corev1.Pod{0: full, 2: append(tight, alone...)} {
		for _, pod := range pods {
			if patched[pod.Name] != times {
				t.Errorf("pod %s was patched %d times, want %d: once to surge it and once to put it back, or not at all", pod.Name, patched[pod.Name], times)
			}
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
