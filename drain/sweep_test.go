package drain

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Surged pods that nobody drains are looked for every ten minutes, and ten seconds after an error.
func TestSweepRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at []time.Duration
		api := newFakeAPI()
		api.hold = func(r *http.Request) error {
			// From the API server's cache: what matters is that somebody looks, not that nothing is missed.
			if q := r.URL.Query(); q.Get("fieldSelector") != "spec.nodeName=node-a" || q.Get("resourceVersion") != "0" {
				t.Errorf("looks at %s", r.URL)
			}
			if at = append(at, time.Since(began)); len(at) == 2 {
				return errors.New("API server is unreachable")
			}
			return nil
		}
		s := &scene{T: t, api: api, events: &podEvents{}, atOnce: 4}
		s.d = s.drainer(holding, func(string) {})
		s.d.opts.Drained, s.d.opts.Node = func(string) bool { return false }, "node-a"
		ctx, stop := context.WithTimeout(t.Context(), 25*time.Minute)
		defer stop()
		if err := s.d.Run(ctx); err != nil {
			t.Error(err)
		}
		want := []time.Duration{0, 10 * time.Minute, 10*time.Minute + 10*time.Second, 20*time.Minute + 10*time.Second}
		if diff := cmp.Diff(want, at); diff != "" {
			t.Errorf("looked at (-want +got):\n%s", diff)
		}
	})
}
