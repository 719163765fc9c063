package drain

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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

// leavesAsPreferred: the pod has its own idea of when. One that is to be held is held like any
// other that is not surged. One that was surged before it said so keeps its place in line.
func leavesAsPreferred(p *planner, _ *corev1.Pod, d *Decision) (Action, string) {
	switch {
	case d.preference.When == WhenNow:
		return Evict, d.preference.reason()
	case d.preference.When == WhenLast && !p.Deadline.IsZero():
		return Later, d.preference.reason()
	}
	return "", ""
}

// isOfUnknownNamespace: until it is known what the namespace asks for, the pod might have to stay to
// its eviction deadline, or for good if it has none.
func isOfUnknownNamespace(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	_, known := p.Namespaces[pod.Namespace]
	return when(!known && p.Namespaces != nil && !d.preference.own, Later, "what its namespace asks for is being looked up")
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

// Silent reads whether a namespace forbids that its pods be notified.
func (d *Drainer) Silent(ctx context.Context, namespace string) (bool, error) {
	preferences, err := d.preferences.read(ctx, types.NamespacedName{Namespace: namespace})
	return preferences.Silent, err
}

// Leaves reports whether the gang's pods on the node have to leave it by a deadline.
func (d *Drainer) Leaves(node string, gang Gang) bool {
	return d.gangs.leaves(node, gang)
}

// Answer takes in what a pod has answered to a notice: it overrides what is annotated. It does
// nothing for a node that is not being drained.
func (d *Drainer) Answer(node string, pod types.UID, when When) {
	d.mu.Lock()
	s := d.sessions[node]
	d.mu.Unlock()
	if s == nil {
		return
	}
	s.note(func() { s.answers[pod] = when })
	d.opts.Notify(node)
}
