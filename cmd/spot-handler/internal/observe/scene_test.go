package observe

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/notify"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/karpenter"
)

var noticed = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func after(seconds float64) time.Time {
	return noticed.Add(time.Duration(seconds * float64(time.Second)))
}

// scene shows an observer one node with pods of Deployment web.
type scene struct {
	*Observer
	asked []need
	bare  *corev1.Node
	rev   int
}

func newScene(wanted ...string) *scene {
	s := &scene{Observer: New(after(-10), wanted...), bare: &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "lost-1", Labels: map[string]string{"karpenter.sh/nodepool": "batch"}},
		Spec:       corev1.NodeSpec{ProviderID: "aws:///eu-west-1a/i-0123456789abcdef0"},
	}}
	s.need = func(n need) { s.asked = append(s.asked, n) }
	s.begin()
	s.node(after(-10), s.bare, false)
	s.follow(s.new("web-1", "lost-1", true))
	s.workload(after(-10), web, labels.SelectorFromSet(labels.Set{"app": "web"}), 3)
	return s
}

var web = types.NamespacedName{Namespace: "default", Name: "deployment/web"}

// recorded shows the node with a record in this phase.
func (s *scene) recorded(at time.Time, phase interruption.Phase, change ...func(*interruption.Record)) {
	deadline := after(120)
	rec := interruption.Record{
		Kind: interruption.SpotInterruption, Event: "e", Instance: "i-0123456789abcdef0", Noticed: noticed, Received: noticed, Deadline: deadline, Phase: phase,
	}
	for _, c := range change {
		c(&rec)
	}
	node := s.bare.DeepCopy()
	node.Spec.Unschedulable = true
	node.Annotations = map[string]string{interruption.Annotation: rec.String()}
	s.node(at, node, false)
}

func replacement(state string) func(*interruption.Record) {
	return func(r *interruption.Record) {
		r.Replacement = &interruption.Replacement{Backend: provisioner.Karpenter, Name: "fallback-1", Pool: "fallback", State: state}
	}
}

func ended(at time.Time, pods interruption.Pods) func(*interruption.Record) {
	return func(r *interruption.Record) { r.Ended, r.Pods = at, &pods }
}

// new is a pod of web.
func (s *scene) new(name, node string, ready bool) *corev1.Pod {
	grace := int64(30)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "web", "pod-template-hash": "abc"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web-abc", Controller: new(bool)}},
		},
		Spec: corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: &grace},
	}
	*pod.OwnerReferences[0].Controller = true
	if ready {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return pod
}

// show shows a pod by the watch of its node.
func (s *scene) show(at time.Time, pod *corev1.Pod) {
	s.rev++
	pod.ResourceVersion = fmt.Sprint(s.rev)
	s.pod(at, pod, false)
}

func surged(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Labels[plan.SurgedLabel], pod.Labels["pod-template-hash"], pod.OwnerReferences = "abc", "surged-abc", nil
	pod.Annotations = map[string]string{plan.SurgedAnnotation: `{"replicaSet":"web-abc"}`}
	return pod
}

func stopping(pod *corev1.Pod, grace int64) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: noticed}, &grace
	return pod
}

func blocked(pod *corev1.Pod, at time.Time) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: pod.Namespace},
		InvolvedObject: corev1.ObjectReference{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, Reason: notify.ReasonEvictionBlocked, Count: 2,
		Message: "cannot leave interrupted node lost-1 yet: The disruption budget web needs 3 healthy pods\n", FirstTimestamp: metav1.Time{Time: at},
	}
}

func pdb(needed, healthy int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
		Status:     policyv1.PodDisruptionBudgetStatus{DesiredHealthy: needed, CurrentHealthy: healthy},
	}
}

// fallback is the replacement's node.
func fallback() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "fallback-node", Labels: map[string]string{karpenter.ReplacesLabel: "i-0123456789abcdef0"}}}
}
