package drain

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
)

var (
	now   = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	taint = corev1.Taint{Key: "spot-handler/interrupted", Value: "spot-interruption", Effect: corev1.TaintEffectNoSchedule}
)

func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", UID: types.UID("uid-" + name), Annotations: map[string]string{}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func withGrace(seconds int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &seconds }
}

func withClaim(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}}}
	}
}

func ownedBy(kind string) func(*corev1.Pod) {
	yes := true
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "x", Controller: &yes}}
	}
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[key] = value }
}

func tolerating(key string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: key, Operator: corev1.TolerationOpExists}}
	}
}

// of makes the pod one of a Deployment.
func of(app string) func(*corev1.Pod) {
	yes := true
	return func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": app, plan.HashLabel: "abc12"}
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: app + "-abc12", UID: "set", Controller: &yes}}
	}
}

// isSurgedPod is what the API server makes of a surge.
func isSurgedPod(p *corev1.Pod) {
	*p = *plan.AsSurged(p, time.Time{})
}

func readyAfter(d time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		scheduled := now.Add(-time.Hour)
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(scheduled)},
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(scheduled.Add(d))},
		}
	}
}

// budget lets atOnce of the app's ten pods go at a time.
func budget(app string, atOnce int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: app},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		Status:     policyv1.PodDisruptionBudgetStatus{ExpectedPods: 10, DesiredHealthy: 10 - atOnce, CurrentHealthy: 10, DisruptionsAllowed: atOnce},
	}
}

func webPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	return pod(name, append([]func(*corev1.Pod){of("web"), readyAfter(time.Second)}, change...)...)
}

func createdAt(at time.Time) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(at) }
}

func labelled(keysAndValues ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		for i := 0; i < len(keysAndValues); i += 2 {
			p.Labels[keysAndValues[i]] = keysAndValues[i+1]
		}
	}
}

func inNamespace(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Namespace = name }
}

func shopBudget(app string, expected, desired, current int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: app, UID: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		Status: policyv1.PodDisruptionBudgetStatus{
			ExpectedPods: expected, DesiredHealthy: desired, CurrentHealthy: current, DisruptionsAllowed: max(0, current-desired),
		},
	}
}

func apartBy(key, app string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
			}},
		}}
	}
}

func onNode(name string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = name } }

var inGang = labelled(plan.GangLabel, "g")
