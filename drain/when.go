package drain

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// When says when a pod is to leave. Whatever it says, the pod leaves at its eviction deadline,
// and never past its disruption budget.
type When string

const (
	WhenNow  When = "now"  // at once, as soon as the replacement has been requested
	WhenHold When = "hold" // when the replacement is ready
	WhenLast When = "last" // at the eviction deadline
)

// Whens lists every When.
func Whens() []When { return []When{WhenNow, WhenHold, WhenLast} }

// WhenAnnotation on a pod or its namespace says when the pod is to leave; the pod's own
// overrides its namespace's.
const WhenAnnotation = "spot-handler/when"

// Preferences are what a namespace asks for its pods; empty is nothing. The texts are somebody
// else's: one that means nothing counts as empty.
type Preferences struct {
	When    When
	Blocked BlockedPolicy
	Silent  bool // none of them is notified of anything, see NoticeOff
}

// preference is when a pod is to leave; the zero value is whenever the strategy says.
type preference struct {
	When
	own  bool // said of this very pod or of its gang, and not of its namespace
	gang bool // said of its gang
}

// reason says who prefers what; an answer reads like the annotation that it stands for.
func (w preference) reason() string {
	switch {
	case w.gang && w.When == WhenNow:
		return "a pod of its gang leaves now"
	case w.gang:
		return withGang
	case w.own:
		return WhenAnnotation + "=" + string(w.When)
	}
	return WhenAnnotation + "=" + string(w.When) + " of its namespace"
}

const withGang = "leaves with its gang"

// preferenceOf is what is said nearest to the pod: of itself, of its gang, of its namespace.
func (p *planner) preferenceOf(pod *corev1.Pod) preference {
	if own := p.ownPreference(pod); own != "" {
		return preference{When: own, own: true}
	}
	if theirs := p.preferenceOfGang(pod); theirs != "" {
		return preference{When: theirs, own: true, gang: true}
	}
	if theirs := p.Namespaces[pod.Namespace].When; slices.Contains(Whens(), theirs) {
		return preference{When: theirs}
	}
	return preference{}
}

// ownPreference is what the pod has answered, or else its annotation; empty if it says nothing.
func (p *planner) ownPreference(pod *corev1.Pod) When {
	for _, w := range []When{p.Answers[pod.UID], When(pod.Annotations[WhenAnnotation])} {
		if slices.Contains(Whens(), w) {
			return w
		}
	}
	return ""
}

// meaningless is what is asked for the pod in words that mean nothing, or empty; ofNamespace
// says that its namespace asks it for all of its pods.
func (p *planner) meaningless(pod *corev1.Pod) (text string, ofNamespace bool) {
	theirs := p.Namespaces[pod.Namespace]
	own := cmp.Or(
		unknown(WhenAnnotation, When(pod.Annotations[WhenAnnotation]), Whens()),
		unknown(BlockedAnnotation, BlockedPolicy(pod.Annotations[BlockedAnnotation]), BlockedPolicies()))
	if own != "" {
		return own, false
	}
	text = cmp.Or(unknown(WhenAnnotation, theirs.When, Whens()), unknown(BlockedAnnotation, theirs.Blocked, BlockedPolicies()))
	return text, text != ""
}

func unknown[T ~string](key string, value T, known []T) string {
	if value == "" || slices.Contains(known, value) {
		return ""
	}
	return fmt.Sprintf("%s=%.40q, want one of %q", key, value, known)
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

// GangLabel on a pod, or on its template, names the gang that it belongs to, whatever else it
// carries. An empty value says that it belongs to none.
const GangLabel = "spot-handler/gang"

// gangLabels are those by which the pods of others belong together, the nearest first. All of
// them are labels of the pods, with which the rest of a gang can be listed.
var gangLabels = []string{
	// A JobSet starts all of its Jobs again when one fails. TrainJobs of Kubeflow are JobSets.
	// https://github.com/kubernetes-sigs/jobset/blob/main/api/jobset/v1alpha2/jobset_types.go
	"jobset.sigs.k8s.io/jobset-name",
	// One replica of a LeaderWorkerSet, a leader with its workers.
	// https://github.com/kubernetes-sigs/lws/blob/main/api/leaderworkerset/v1/leaderworkerset_types.go
	"leaderworkerset.sigs.k8s.io/group-key",
	// PyTorchJobs, TFJobs, MPIJobs and the others of Kubeflow's training operator.
	// https://github.com/kubeflow/trainer/blob/release-1.9/pkg/apis/kubeflow.org/v1/common_types.go
	"training.kubeflow.org/job-name",
	// The head and the workers of a Ray cluster.
	// https://github.com/ray-project/kuberay/blob/master/ray-operator/controllers/ray/utils/constant.go
	"ray.io/cluster",
	// Volcano's own Jobs. Its annotation scheduling.k8s.io/group-name says nothing: every pod has
	// it that Volcano schedules, those of Deployments too.
	// https://github.com/volcano-sh/volcano/blob/master/pkg/controllers/job/job_controller_util.go
	"volcano.sh/job-name",
	// Kueue's groups of plain pods.
	// https://github.com/kubernetes-sigs/kueue/blob/main/pkg/controller/jobs/pod/constants/constants.go
	"kueue.x-k8s.io/pod-group-name",
}

// podGroup stands for the field of Kubernetes 1.36 that names a pod's PodGroup.
// https://kubernetes.io/docs/concepts/workloads/pods/scheduling-group/
const podGroup = "spec.schedulingGroup.podGroupName"

// Gang is a set of pods that live and die together; the zero value is none. A pod can claim to
// belong to any gang of its own namespace, and to no other's.
type Gang struct{ Namespace, By, Name string }

// gangOf is the gang that the pod belongs to, or none.
func gangOf(pod *corev1.Pod) Gang {
	if name, own := pod.Labels[GangLabel]; own {
		return newGang(pod, GangLabel, name)
	}
	for _, label := range gangLabels {
		if name := pod.Labels[label]; name != "" {
			return newGang(pod, label, name)
		}
	}
	if group := pod.Spec.SchedulingGroup; group != nil && group.PodGroupName != nil {
		return newGang(pod, podGroup, *group.PodGroupName)
	}
	return Gang{}
}

func newGang(pod *corev1.Pod, by, name string) Gang {
	if name == "" {
		return Gang{}
	}
	return Gang{Namespace: pod.Namespace, By: by, Name: name}
}

// preferenceOfGang is when the pod is to leave for the sake of its gang; empty if it has none.
func (p *planner) preferenceOfGang(pod *corev1.Pod) When {
	if len(p.Gangs) == 0 {
		return ""
	}
	departure, ok := p.Gangs[gangOf(pod)]
	switch {
	case !ok:
		return ""
	case departure.Asked, departure.Now && !p.Deadline.IsZero():
		return WhenNow
	}
	return WhenLast
}

// startWithGang is when a pod with that preference leaves with its gang at the latest; zero if it
// does not, or has no deadline.
func (p *planner) startWithGang(pod *corev1.Pod, its preference) time.Time {
	if p.Deadline.IsZero() || !its.gang {
		return time.Time{}
	}
	return p.Gangs[gangOf(pod)].At
}

// How a pod asks to be notified of its node's end. A plan only says which pods ask; a drain notifies
// none of them.
const (
	// NoticeAnnotation on a pod asks for a notice: PORT or PORT/PATH of a server in the pod, or
	// NoticeFiles. On a namespace, NoticeOff shuts out all of its pods.
	NoticeAnnotation = "spot-handler/notice"
	NoticeFiles      = "files" // the annotations below alone
	NoticeOff        = "off"

	// NoticeReplacementAnnotation with the value "true" on such a pod asks for another notice
	// when the replacement is Ready.
	NoticeReplacementAnnotation = "spot-handler/notice-replacement"

	// DeadlineAnnotation and EvictByAnnotation are what such a pod gets: when its node ends, and
	// when its eviction begins at the latest, as of RFC 3339.
	DeadlineAnnotation = "spot-handler/deadline"
	EvictByAnnotation  = "spot-handler/evict-by"
)

// noticeOf is what the pod asks for, or empty. Nobody is notified before it is known whether the
// namespace forbids it.
func (p *planner) noticeOf(pod *corev1.Pod) string {
	asks := pod.Annotations[NoticeAnnotation]
	preferences, known := p.Namespaces[pod.Namespace]
	gone := pod.DeletionTimestamp != nil || Finished(pod) || pod.Annotations[corev1.MirrorPodAnnotationKey] != ""
	if !known || preferences.Silent || gone {
		return ""
	}
	return asks
}
