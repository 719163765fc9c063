// Package donotdisrupt reads the annotation karpenter.sh/do-not-disrupt of pods, as Karpenter
// reads it.
package donotdisrupt

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Annotation asks that a pod not be disrupted: "true", or for a duration since the pod
// started, such as "4h".
const Annotation = "karpenter.sh/do-not-disrupt"

// Active reports whether the pod asks not to be disrupted at this moment, and until when;
// zero is for good. Anything but "true" and a positive duration asks for nothing. A pod that
// has not started is protected.
//
// The rule is Karpenter's own, IsDoNotDisruptActive in
// https://github.com/kubernetes-sigs/karpenter/blob/v1.14.1/pkg/utils/pod/scheduling.go
func Active(pod *corev1.Pod, now time.Time) (until time.Time, active bool) {
	value, ok := pod.Annotations[Annotation]
	if value == "true" {
		return time.Time{}, true
	}
	duration, err := time.ParseDuration(value)
	if !ok || err != nil || duration <= 0 {
		return time.Time{}, false
	}
	if pod.Status.StartTime == nil {
		return time.Time{}, true
	}
	until = pod.Status.StartTime.Add(duration)
	return until, now.Before(until)
}
