package plan

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// PreferencesOf are what a namespace asks for with its annotations.
func PreferencesOf(said map[string]string) Preferences {
	return Preferences{
		When:    When(said[WhenAnnotation]),
		Blocked: BlockedPolicy(said[BlockedAnnotation]),
		Silent:  said[NoticeAnnotation] == NoticeOff,
	}
}

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
func (s *Situation) ownPreference(pod *corev1.Pod) When {
	for _, w := range []When{s.Answers[pod.UID], When(pod.Annotations[WhenAnnotation])} {
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
