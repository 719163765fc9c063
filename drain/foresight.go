package drain

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What a forecast needs of a drain besides Plan: it plays the cluster, and has the drain's own
// rules from here. Nothing below has a state or makes a call.

// Deployment is what plans read of one.
type Deployment struct{ *deployment }

// UnmarshalJSON reads it from the API's object.
func (d *Deployment) UnmarshalJSON(data []byte) error {
	d.deployment = &deployment{}
	err := json.Unmarshal(data, d.deployment)
	d.Annotations, d.ManagedFields = nil, nil
	return err
}

// Exists reports whether there is such a Deployment.
func (d Deployment) Exists() bool { return d.deployment != nil }

// Replicas is how many pods it asks for.
func (d Deployment) Replicas() int { return d.replicas() }

// Failing is the Deployment once its ReplicaSet cannot make pods, for the reason given; with an
// empty one, once it can again.
func (d Deployment) Failing(reason string) Deployment {
	c := *d.deployment
	c.Status.Conditions = slices.DeleteFunc(slices.Clone(c.Status.Conditions), func(c deploymentCondition) bool { return c.Type == replicaFailure })
	if reason != "" {
		c.Status.Conditions = append(c.Status.Conditions, deploymentCondition{Type: replicaFailure, Status: "True", Message: reason})
	}
	return Deployment{&c}
}

// Workload is what plans are made with, from all pods that it selects, surged ones among them,
// and when it changes by the clock alone; zero if it does not. The zero Deployment is one that
// does not exist.
func (d Deployment) Workload(now time.Time, pods []*corev1.Pod) (Workload, time.Time) {
	members := make([]*member, len(pods))
	for i, pod := range pods {
		members[i] = memberOf(pod)
	}
	return newTally().count(now, d.deployment, members)
}

// Specified is the part of a Workload that the specification alone decides: the selector, and why
// the owner does not let pods be surged.
func (d Deployment) Specified() (Workload, error) {
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	return Workload{Selector: selector, Refuses: d.forbids()}, err
}

// FailsFor is how long a ReplicaSet has to fail before Workload.Lacking counts.
const FailsFor = failsFor

// Offers reports whether the workload has for a decision what that takes of it.
func (w Workload) Offers(d Decision) bool { return !d.takes || w.offers(d.Action) > 0 }

// GivesUp reports whether a decision, once carried out, ends all surges of its pod's Deployment.
func (d Decision) GivesUp() bool { return d.takes && d.Action == Return }

// Lacks says which quota has no room for one more such pod, or is empty.
func (s Surroundings) Lacks(pod *corev1.Pod) string {
	for _, q := range s.quotas {
		if short := q.lacks(pod); short != "" {
			return fmt.Sprintf("ResourceQuota %s has no room: %s", q.name, short)
		}
	}
	return ""
}

// AsSurged is the pod once its surge has begun: without an owner, and out of its ReplicaSet's sight.
func AsSurged(pod *corev1.Pod, now time.Time) (*corev1.Pod, error) {
	note, err := noteSurge(pod, now)
	if err != nil {
		return nil, err
	}
	c := *pod
	c.Labels, c.OwnerReferences = labelsOnceSurged(pod.Labels), nil
	c.Annotations = maps.Clone(pod.Annotations)
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[SurgedAnnotation] = note
	return &c, nil
}

// AsReturned is a surged pod once its surge is undone, and its ReplicaSet has taken it back.
func AsReturned(pod *corev1.Pod) *corev1.Pod {
	note, yes := surgeNoteOf(pod), true
	c := *pod
	c.Labels, c.Annotations = maps.Clone(pod.Labels), maps.Clone(pod.Annotations)
	c.Labels[hashLabel] = pod.Labels[SurgedLabel]
	delete(c.Labels, SurgedLabel)
	delete(c.Annotations, SurgedAnnotation)
	c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: note.ReplicaSet, UID: note.UID, Controller: &yes}}
	return &c
}

// IsSurged reports whether the pod's surge has begun.
func IsSurged(pod *corev1.Pod) bool { return surged(pod) }

// Grace is how long the pod asks to have between its eviction and its end.
func Grace(pod *corev1.Pod) time.Duration { return grace(pod) }

// HasVolumes reports whether volumes have to be detached after the pod has gone.
func HasVolumes(pod *corev1.Pod) bool { return hasVolumes(pod) }

// Startup is how long the pod took from having a node to being Ready; false if it is not Ready.
func Startup(pod *corev1.Pod) (time.Duration, bool) { return startup(pod) }

// Finished reports whether the pod's containers will not run again.
func Finished(pod *corev1.Pod) bool { return finished(pod) }
