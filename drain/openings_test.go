package drain

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"spot-handler/drain/plan"
)

// Of many nodes at once, the next is watched when one has its plan or its drain has ended, or
// after a moment.
func TestOpenings(t *testing.T) {
	const nodes = 10 * startsAtOnce
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		var mu sync.Mutex
		var known []string
		d := New(Options{
			Pods: api.client(t, corev1.SchemeGroupVersion), Budgets: api.client(t, policyv1.SchemeGroupVersion), Dynamic: api.dynamic(t),
			Policy: holding, Events: &told{}, Registerer: prometheus.NewRegistry(), Logger: zerolog.Nop(),
			Notify: func(node string) {
				mu.Lock()
				defer mu.Unlock()
				known = append(known, node)
			},
		})
		in := plan.NodeState{Taint: taint, Deadline: time.Now().Add(2 * time.Minute)}
		wantKnown := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(known) != want {
				t.Errorf("%s: the pods of %d nodes are known, want %d", when, len(known), want)
			}
		}
		api.hold = func(r *http.Request) error {
			if r.URL.Query().Has("sendInitialEvents") {
				t.Error("a watch that begins with the pods: the API server goes through those of all nodes")
			}
			return nil
		}
		for i := range nodes {
			d.session(t.Context(), fmt.Sprint("node-", i)) // not Look, which might be late enough to plan
		}
		wantKnown("at first", startsAtOnce)
		for _, node := range slices.Clone(known[:10]) {
			d.Look(t.Context(), node, in)
			d.Look(t.Context(), node, in) // a further plan makes no further place
		}
		wantKnown("with 10 plans", startsAtOnce+10)
		d.Forget(known[10])
		wantKnown("with a drain that has ended", startsAtOnce+11)
		time.Sleep(planWithin)
		wantKnown("after a moment", 2*startsAtOnce+11)
		time.Sleep(nodes / startsAtOnce * planWithin)
		wantKnown("in the end", nodes)
	})
}
