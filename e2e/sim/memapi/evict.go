package memapi

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// DefaultGrace is the grace period of a pod that names none.
const DefaultGrace = 30

// GraceOf is the pod's own grace period in seconds.
func GraceOf(pod *corev1.Pod) int64 {
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		return *pod.Spec.TerminationGracePeriodSeconds
	}
	return DefaultGrace
}

// Finished reports whether no container of the pod will run again.
func Finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Ready reports whether the pod's condition says so.
func Ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// deletePod begins the end of a pod, or brings it nearer. One that no kubelet runs, or that has no grace
// period, is gone at once.
func (s *Server) deletePod(key string, grace *int64, by string) {
	pod := Get[*corev1.Pod](s, Pods, key)
	seconds := GraceOf(pod)
	if grace != nil {
		seconds = max(0, *grace)
	}
	if pod.Spec.NodeName == "" || Finished(pod) || seconds == 0 {
		s.Remove(Pods, key, by)
		return
	}
	now := s.Now().Time
	if at := pod.DeletionTimestamp; at != nil {
		if seconds >= *pod.DeletionGracePeriodSeconds {
			return
		}
		now = at.Add(-time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second)
	}
	going := pod.DeepCopy()
	end := metav1.NewTime(now.UTC().Truncate(time.Second).Add(time.Duration(seconds) * time.Second))
	going.DeletionTimestamp, going.DeletionGracePeriodSeconds = &end, &seconds
	s.Put(Pods, going, by)
}

// BudgetsOf are the disruption budgets that cover the pod.
func (s *Server) BudgetsOf(pod *corev1.Pod) (covering []*policyv1.PodDisruptionBudget) {
	for _, budget := range List[*policyv1.PodDisruptionBudget](s, Budgets) {
		if budget.Namespace == pod.Namespace && Covers(budget, pod) {
			covering = append(covering, budget)
		}
	}
	return covering
}

// Covers reports whether the budget, which is of the pod's namespace, selects it.
func Covers(budget *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	return Selects(budget.Spec.Selector, pod)
}

// Selects reports whether the selector matches the pod's labels. One without expressions need not be compiled.
func Selects(selector *metav1.LabelSelector, pod *corev1.Pod) bool {
	if selector == nil || len(selector.MatchExpressions) > 0 {
		s, err := metav1.LabelSelectorAsSelector(selector)
		return err == nil && s.Matches(labels.Set(pod.Labels))
	}
	for key, value := range selector.MatchLabels {
		if got, has := pod.Labels[key]; !has || got != value {
			return false
		}
	}
	return true
}

// Evict evicts a pod, or says why it is not evicted.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/registry/core/pod/storage/eviction.go
func (s *Server) Evict(key string, options *metav1.DeleteOptions, by string) *Failure {
	pod := Get[*corev1.Pod](s, Pods, key)
	if pod == nil {
		return notFound(Pods, key)
	}
	if Finished(pod) || pod.Status.Phase == corev1.PodPending || pod.DeletionTimestamp != nil {
		return s.markAndDelete(key, options, by)
	}
	budgets := s.BudgetsOf(pod)
	switch {
	case len(budgets) > 1:
		f := &Failure{}
		f.Code, f.Message = 500, "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
		return f
	case len(budgets) == 0:
		return s.markAndDelete(key, options, by)
	}
	budget := budgets[0]
	if !Ready(pod) {
		policy := budget.Spec.UnhealthyPodEvictionPolicy
		always := policy != nil && *policy == policyv1.AlwaysAllow
		if always || budget.Status.CurrentHealthy >= budget.Status.DesiredHealthy && budget.Status.DesiredHealthy > 0 {
			return s.markAndDelete(key, options, by)
		}
	}
	switch {
	case budget.Status.ObservedGeneration < budget.Generation:
		return refusal(budget, true)
	case budget.Status.DisruptionsAllowed <= 0:
		return refusal(budget, false)
	}
	charged := budget.DeepCopy()
	charged.Status.DisruptionsAllowed--
	charged.Status.DisruptedPods = maps.Clone(charged.Status.DisruptedPods)
	if charged.Status.DisruptedPods == nil {
		charged.Status.DisruptedPods = map[string]metav1.Time{}
	}
	charged.Status.DisruptedPods[pod.Name] = s.Now()
	s.Put(Budgets, charged, by)
	return s.markAndDelete(key, options, by)
}

func (s *Server) markAndDelete(key string, options *metav1.DeleteOptions, by string) *Failure {
	pod := Get[*corev1.Pod](s, Pods, key)
	if f := s.meets(Pods, pod, options.Preconditions); f != nil {
		return f
	}
	marked := pod.DeepCopy()
	others := slices.DeleteFunc(marked.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.DisruptionTarget })
	marked.Status.Conditions = append(others, corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting",
		LastTransitionTime: s.Now(),
	})
	s.Put(Pods, marked, by)
	s.deletePod(key, options.GracePeriodSeconds, by)
	return nil
}

// meets holds an object to preconditions.
func (s *Server) meets(k *Kind, obj Object, p *metav1.Preconditions) *Failure {
	switch {
	case p == nil:
	case p.UID != nil && *p.UID != obj.GetUID():
		return conflict(k, obj.GetName(), "the UID in the precondition (%s) does not match the UID in record (%s). "+
			"The object might have been deleted and then recreated", *p.UID, obj.GetUID())
	case p.ResourceVersion != nil && *p.ResourceVersion != obj.GetResourceVersion():
		return conflict(k, obj.GetName(), "the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). "+
			"The object might have been modified", *p.ResourceVersion, obj.GetResourceVersion())
	}
	return nil
}

// GrantOnly does the first step of an eviction and not the second, as of a request that is cut short in
// between: the budget is charged, and the pod lives on.
func (s *Server) GrantOnly(key string, uid *types.UID, by string) bool {
	pod := Get[*corev1.Pod](s, Pods, key)
	if pod == nil || uid != nil && pod.UID != *uid || !Ready(pod) || pod.DeletionTimestamp != nil {
		return false
	}
	budgets := s.BudgetsOf(pod)
	if len(budgets) != 1 || budgets[0].Status.DisruptionsAllowed <= 0 || budgets[0].Status.ObservedGeneration < budgets[0].Generation {
		return false
	}
	charged := budgets[0].DeepCopy()
	charged.Status.DisruptionsAllowed--
	if charged.Status.DisruptedPods == nil {
		charged.Status.DisruptedPods = map[string]metav1.Time{}
	}
	charged.Status.DisruptedPods[pod.Name] = s.Now()
	s.Put(Budgets, charged, by)
	return true
}
