package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"spot-handler/handler/interruption"
)

// startOf is when the eviction of a pod with that eviction deadline starts at the latest, for its own
// sake, its budget's and, unless that is zero, with its gang.
func (s *Situation) startOf(pod *corev1.Pod, latest, withGang time.Time) time.Time {
	at := interruption.Earlier(latest, withGang)
	if wave, ok := s.Starts[pod.UID]; ok && wave.Before(at) && !IsSurged(pod) {
		return wave
	}
	return at
}

// evictionTakes is how long before the end of a drain a pod without a grace period is evicted. At the
// end itself there would be no time to request the eviction.
const evictionTakes = time.Second

// evictionDeadline is when the pod's eviction has to start at the latest, to give it its whole
// grace period before the deadline less the margin.
func evictionDeadline(pod *corev1.Pod, deadline time.Time, margin time.Duration) time.Time {
	if deadline.IsZero() {
		return time.Time{}
	}
	return deadline.Add(-margin - max(evictionTakes, Grace(pod)))
}

// lateBy is how late an eviction can be for its eviction deadline. Timers and queues take
// their time, and grace periods are whole seconds: a millisecond would cost one.
const lateBy = 2 * time.Second

// clampedGrace is how much of the pod's grace period still fits, in whole seconds; nil
// where all of it does. It is never below one second: zero would delete the pod before the
// kubelet has stopped it, and a StatefulSet's pod could run twice.
// https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination-forced
func clampedGrace(now time.Time, pod *corev1.Pod, deadline time.Time, margin time.Duration) *int64 {
	if deadline.IsZero() {
		return nil
	}
	remains := deadline.Add(-margin).Sub(now)
	if remains >= Grace(pod)-min(lateBy, margin) {
		return nil
	}
	seconds := max(1, int64(remains/time.Second))
	if seconds >= int64(Grace(pod)/time.Second) {
		return nil
	}
	return &seconds
}

// longestGrace bounds what is read from a pod: some ask for more seconds than a
// time.Duration can hold, meaning forever.
const longestGrace = 365 * 24 * time.Hour

// Grace is how long the pod asks to have between its eviction and its end.
func Grace(pod *corev1.Pod) time.Duration {
	seconds := ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	return time.Duration(min(seconds, int64(longestGrace/time.Second))) * time.Second
}
