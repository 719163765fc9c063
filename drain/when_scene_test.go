package drain

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/drain/plan"
)

// Whatever a pod preferences, and however often it is refused, no budget is passed before its eviction
// deadline has come, and by then it is, if that is asked for.
func TestPreferencesPassNoBudget(t *testing.T) {
	for _, when := range plan.Whens() {
		stage(t, deleting, 2*time.Minute, plan.PendingCapacity, func(f *fakeAPI) {
			f.pod(pod("a", withGrace(30), annotated(plan.WhenAnnotation, string(when))))
			f.answer = refuseEvictions
		}, func(s *scene) {
			s.d.Answer("node-a", "uid-a", when)
			s.until(80*time.Second - time.Millisecond)
			if tried, deleted := s.api.count("POST", "/eviction"), s.api.count("DELETE", "/pods/a"); deleted != 0 || (tried > 0) != (when == plan.WhenNow) {
				t.Errorf("%s: %d attempts, %d deletions before its latest start", when, tried, deleted)
			}
			s.until(81 * time.Second)
			if n := s.api.count("DELETE", "/pods/a"); n != 1 {
				t.Errorf("%s: deleted %d times at its latest start, want once", when, n)
			}
		})
	}
}

// What a namespace asks for is read before its pods are moved, and what means nothing gets an Event
// once: of the pod, or of the namespace for all of its pods.
func TestWhenOfTheNamespace(t *testing.T) {
	stage(t, holding, 2*time.Minute, plan.PendingCapacity, func(f *fakeAPI) {
		f.put("/api/v1/namespaces/shop", corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{plan.WhenAnnotation: "now", plan.BlockedAnnotation: "never"}},
		})
		f.pod(pod("a", withGrace(30)))
		f.pod(pod("b", withGrace(30)))
		f.pod(pod("c", withGrace(30), annotated(plan.WhenAnnotation, "last")))
		f.pod(pod("d", withGrace(30), annotated(plan.WhenAnnotation, "later")))
	}, func(s *scene) {
		s.pass(time.Second)
		if got := s.api.count("POST", "/eviction"); got != 3 {
			t.Errorf("%d evicted, want all but the one that asks to be last", got)
		}
		s.change(func(in *plan.NodeState) { in.Capacity = plan.ReadyCapacity })
		s.pass(time.Second)
		var ofPod, ofNamespace int
		for _, line := range s.events.all() {
			switch {
			case line == `meaningless d: spot-handler/when="later", want one of ["now" "hold" "last"]`:
				ofPod++
			case strings.HasSuffix(line, `: spot-handler/blocked-pods="never", want one of ["leave" "delete"]`):
				ofNamespace++
			default:
				t.Errorf("Event %q", line)
			}
		}
		if ofPod != 1 || ofNamespace != 1 {
			t.Errorf("Events %q, want each once", s.events.all())
		}
	})
}
