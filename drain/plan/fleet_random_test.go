package plan

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// randomScene is a cluster of some nodes, with all kinds of pods.
func randomScene(t *testing.T, seed uint64) *scene {
	r := rand.New(rand.NewPCG(seed, 2))
	policy := Policy{Strategy: Strategies()[r.IntN(3)], Blocked: BlockedPolicies()[r.IntN(2)], Margin: 10 * time.Second}
	s := newScene(t, seed, policy)
	s.watches, s.replies, s.faults = s.upTo(time.Second), s.upTo(500*time.Millisecond), []int{0, 0, 10, 40}[r.IntN(4)]
	s.startup = time.Duration(1+r.IntN(15)) * time.Second
	s.ready = s.start.Add(time.Duration(20+r.IntN(100)) * time.Second)
	nodes := 1 + r.IntN(4)
	node := func() string { return fmt.Sprint("node-", r.IntN(nodes)) }
	for i := range r.IntN(4) {
		app := fmt.Sprint("web-", i)
		replicas := 1 + r.IntN(12)
		s.web(app, replicas, r.IntN(4))
		if r.IntN(2) == 0 {
			b := budget(app, 0)
			b.UID = types.UID(app)
			b.Status.ExpectedPods, b.Status.DesiredHealthy = int32(replicas), int32(max(0, replicas-r.IntN(3)))
			s.budgets[app] = b
		}
		for j := range replicas {
			on := node()
			if r.IntN(3) == 0 {
				on = "safe"
			}
			s.add(pod(fmt.Sprint(app, "-", j), of(app), readyAfter(s.startup), withGrace(int64(r.IntN(60))), createdAt(s.start.Add(-time.Hour))), app, on, s.upTo(time.Minute))
		}
		s.recount(app)
	}
	for i := range r.IntN(10) {
		change := []func(*corev1.Pod){
			func(*corev1.Pod) {}, inGang, annotated(WhenAnnotation, "now"), annotated(WhenAnnotation, "last"), tolerating(""), ownedBy("Job"),
		}[r.IntN(6)]
		s.add(pod(fmt.Sprint("bare-", i), withGrace(int64(r.IntN(200))), createdAt(s.start.Add(-time.Hour)), change), "", node(), s.upTo(time.Minute))
	}
	for i := range nodes {
		name := fmt.Sprint("node-", i)
		s.drain(name, s.upTo(20*time.Second), []time.Duration{2 * time.Minute, 2 * time.Minute, time.Minute, 0}[r.IntN(4)])
		switch r.IntN(6) {
		case 0:
			s.in(s.upTo(2*time.Minute), func() { s.cancel(name, r.IntN(2) == 0) })
		case 1: // interrupted again before that was done
			s.in(s.upTo(2*time.Minute), func() {
				s.fleet.Apply(s.now, Set{name, Wanted{Goal: Cancel}})
				s.fleet.Apply(s.now, Remove{name})
				s.begin(name)
			})
		}
	}
	return s
}

// Whatever happens to any of the pods, there are never more pods surged than maxSurge allows, no pod is evicted
// twice or deleted past its budget, and each whose eviction was granted in time has started by its latest start.
func TestRandomScenes(t *testing.T) {
	scenes := 1000
	if testing.Short() {
		scenes = 300
	}
	for seed := range uint64(scenes) {
		s := randomScene(t, seed)
		s.until(5 * time.Minute)
		for _, p := range s.pods {
			state, drained := s.nodes[p.Spec.NodeName]
			if !drained || state.Deadline.IsZero() || s.faults > 0 || s.fleet.nodes[p.Spec.NodeName] == nil {
				continue
			}
			sit := Situation{NodeState: state}
			if sit.notOurs(p.Pod) == "" && s.first[p.UID].IsZero() && p.DeletionTimestamp == nil {
				t.Errorf("%s was never asked to leave", p.Name)
			}
		}
		for uid, n := range s.evicted {
			if n > 1 {
				t.Errorf("%s was evicted %d times", uid, n)
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
