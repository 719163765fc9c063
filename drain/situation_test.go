package drain

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// A pod is not surged before it is known whether its budget would lose it.
func TestNoSurgeBeforeTheBudgetsAreKnown(t *testing.T) {
	stage(t, surgePolicy, 120*time.Second, PendingCapacity, func(f *fakeAPI) {
		surgeScene(1)(f)
		b := budget("web", 1)
		b.Spec.Selector.MatchLabels[hashLabel] = "abc12"
		f.budget(b)
		f.hold = func(r *http.Request) error {
			if strings.HasSuffix(r.URL.Path, "/poddisruptionbudgets") {
				time.Sleep(5 * time.Second)
			}
			return nil
		}
	}, func(s *scene) {
		s.until(20 * time.Second)
		if n := s.api.count("PATCH", "/pods/a"); n != 0 {
			s.Error("surged, and its budget does not count it any more")
		}
		if d := s.now().Plan[0]; !strings.Contains(d.NoSurge, "disruption budget web") {
			s.Errorf("not surged because %q", d.NoSurge)
		}
	})
}
