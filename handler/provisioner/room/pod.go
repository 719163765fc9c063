package room

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// intricate is why a pod's place cannot be told from nodes and sums alone, or "".
func intricate(pod *corev1.Pod) string {
	for _, rule := range []struct {
		holds func(*corev1.Pod) bool
		why   string
	}{
		{isTied, "has required affinity, or must be spread, among pods"},
		{hasHostPort, "has a port of its node"},
		{func(p *corev1.Pod) bool { return len(p.Spec.ResourceClaims) > 0 }, "claims devices"},
		{func(p *corev1.Pod) bool {
			return p.Spec.SchedulerName != "" && p.Spec.SchedulerName != corev1.DefaultSchedulerName
		}, "has a scheduler of its own"},
	} {
		if rule.holds(pod) {
			return rule.why
		}
	}
	return ""
}

func isTied(pod *corev1.Pod) bool {
	if slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool {
		return c.WhenUnsatisfiable == corev1.DoNotSchedule
	}) {
		return true
	}
	return len(NearTerms(pod))+len(AntiTerms(pod)) > 0
}

func hasHostPort(pod *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers), func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.HostPort != 0 })
	})
}

// Term is which pods a pod has to be near, or keeps away.
type Term struct {
	Key        string   // of the label in which their nodes are alike
	namespaces []string // nil: all
	selector   labels.Selector
}

// AntiTerms are whom a pod keeps away.
func AntiTerms(pod *corev1.Pod) []Term {
	if a := pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		return termsOf(pod, a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	return nil
}

// NearTerms are whom a pod has to be near.
func NearTerms(pod *corev1.Pod) []Term {
	if a := pod.Spec.Affinity; a != nil && a.PodAffinity != nil {
		return termsOf(pod, a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	return nil
}

func termsOf(pod *corev1.Pod, required []corev1.PodAffinityTerm) (terms []Term) {
	for _, t := range required {
		selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
		if err != nil {
			continue // the API server takes none such
		}
		namespaces := t.Namespaces
		if len(namespaces) == 0 && t.NamespaceSelector == nil {
			namespaces = []string{pod.Namespace}
		}
		if t.NamespaceSelector != nil {
			namespaces = nil
		}
		terms = append(terms, Term{t.TopologyKey, namespaces, selector})
	}
	return terms
}

// Matches reports whether the term is about the pod.
func (t Term) Matches(pod *corev1.Pod) bool {
	return (t.namespaces == nil || slices.Contains(t.namespaces, pod.Namespace)) && t.selector.Matches(labels.Set(pod.Labels))
}
