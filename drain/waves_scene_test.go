package drain

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"spot-handler/drain/plan"
)

// underBudget has evictions obey a budget that lets some go. A pod's replacement pod is Ready again when the
// callback says so. What is evicted when, and with which grace period, is added to the list.
func underBudget(f *fakeAPI, app string, expected, desired, current int32, replace func(name string, ready func())) *[]string {
	var got []string
	start, now := time.Now(), current
	show := func() {
		f.mu.Lock()
		healthy := now
		f.mu.Unlock()
		f.budget(shopBudget(app, expected, desired, healthy))
	}
	show()
	f.answer = func(_, path string, body map[string]any) (int, any) {
		if !strings.HasSuffix(path, "/eviction") {
			return 0, nil
		}
		if now <= desired {
			return http.StatusTooManyRequests, refusal(0)
		}
		now--
		opts, _ := body["deleteOptions"].(map[string]any)
		name := strings.Split(path, "/")[6]
		got = append(got, fmt.Sprintf("%s at %d with %v", name, time.Since(start)/time.Second, opts["gracePeriodSeconds"]))
		go show()
		replace(name, func() {
			f.mu.Lock()
			now++
			f.mu.Unlock()
			show()
		})
		return 0, nil
	}
	return &got
}

// Two of three pods of a StatefulSet are on the node, under maxUnavailable 1. Each has 45 s of grace, of which it
// takes 30, and its replacement, which the StatefulSet makes when the pod has gone, 10 s to be Ready. The
// replacement node is Ready after 45 s.
func TestWavesOfAStatefulSet(t *testing.T) {
	const grace, ends, starts, boot = 45, 30 * time.Second, 10 * time.Second, 45 * time.Second
	var got *[]string
	stage(t, holding, 120*time.Second, plan.PendingCapacity, func(f *fakeAPI) {
		start := time.Now()
		for _, n := range []string{"db-0", "db-1"} {
			p := pod(n, withGrace(grace), readyAfter(starts), ownedBy("StatefulSet"))
			p.Labels = map[string]string{"app": "db"}
			f.pod(p)
		}
		got = underBudget(f, "db", 3, 2, 3, func(name string, ready func()) {
			time.AfterFunc(ends, func() {
				f.gone(name)
				time.AfterFunc(max(0, boot-time.Since(start))+starts, ready)
			})
		})
	}, func(s *scene) {
		s.until(boot)
		s.change(func(in *plan.NodeState) { in.Capacity = plan.ReadyCapacity })
		s.until(119 * time.Second)
		if len(*got) != 2 || !strings.HasSuffix((*got)[0], "with <nil>") || !strings.HasSuffix((*got)[1], "with <nil>") {
			t.Errorf("evicted %q, want both with their whole grace", *got)
		}
		s.pass(2 * time.Minute)
	})
}

// A budget of ten pods lets two go, but some of them, on other nodes, are not Ready and never will be.
func TestWavesWithPodsThatAreBrokenElsewhere(t *testing.T) {
	for broken := range int32(2) {
		t.Run(fmt.Sprint(broken), func(t *testing.T) {
			var got *[]string
			stage(t, holding, 120*time.Second, plan.PendingCapacity, func(f *fakeAPI) {
				for i := range 4 {
					f.pod(pod(fmt.Sprint("p", i), of("web"), withGrace(30), readyAfter(10*time.Second)))
				}
				got = underBudget(f, "web", 10, 8, 10-broken, func(_ string, ready func()) { time.AfterFunc(10*time.Second, ready) })
			}, func(s *scene) {
				s.until(119 * time.Second)
				if len(*got) != 4 || slices.ContainsFunc(*got, func(e string) bool { return !strings.HasSuffix(e, "with <nil>") }) {
					t.Errorf("evicted %q, want all with their whole grace", *got)
				}
				s.pass(2 * time.Minute)
			})
		})
	}
}
