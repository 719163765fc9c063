package plan

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
)

// Whatever is on the nodes, every pod that has to leave has an outcome, ends after it leaves and before its node does, and
// is evicted no earlier than its node's notice.
func TestRandomForecasts(t *testing.T) {
	r := rand.New(rand.NewPCG(39, 1))
	kinds := []string{"ReplicaSet", "ReplicaSet", "StatefulSet", "Job", "DaemonSet", ""}
	whens := []string{"", "", "now", "hold", "last", "sometime"}
	for round := range 300 {
		s := newScene(t)
		s.Policy.Strategy = plan.Strategies()[r.IntN(3)]
		s.Policy.Blocked = plan.BlockedPolicies()[r.IntN(2)]
		s.Nodes, s.Lost = s.Nodes[1:], nil
		var lost []string
		for i := range 1 + r.IntN(4) {
			name := fmt.Sprint("lost-", i)
			lost = append(lost, name)
			l := s.lose(name, plan.Capacity(r.IntN(3)))
			l.after(time.Duration(r.IntN(20)) * time.Second)
			switch r.IntN(5) {
			case 0:
				l.Kind, l.Deadline = interruption.RebalanceRecommendation, time.Time{}
			case 1:
				l.Underway = true
			}
		}
		for i := range 1 + r.IntN(6) {
			name, kind := fmt.Sprint("app-", i), kinds[r.IntN(len(kinds))]
			when, gang, grace, unready := whens[r.IntN(len(whens))], r.IntN(6) == 0, int64(r.IntN(150)), r.IntN(5) == 0
			change := func(p *corev1.Pod) {
				p.Spec.TerminationGracePeriodSeconds = &grace
				if when != "" {
					annotated(plan.WhenAnnotation, when)(p)
				}
				if gang {
					p.Labels[plan.GangLabel] = "g"
				}
				if unready {
					p.Status.Conditions = p.Status.Conditions[:1]
				}
			}
			if kind == "ReplicaSet" && r.IntN(2) == 0 {
				s.deploymentOf(name, 8, int64(r.IntN(4)))
			}
			for range 1 + r.IntN(8) {
				node := "other"
				if r.IntN(3) > 0 {
					node = lost[r.IntN(len(lost))]
				}
				s.pods(kind, name, node, 1, change)
			}
			if r.IntN(2) == 0 {
				s.budget(name, name, r.IntN(3))
			}
		}
		deadlines := map[string]time.Duration{}
		for _, l := range s.Lost {
			if !l.Deadline.IsZero() {
				deadlines[l.Node.Name] = l.Deadline.Sub(at)
			}
		}
		for _, p := range forecastOf(s.Input).Pods {
			ends := Seconds(deadlines[p.Node].Seconds())
			switch {
			case p.Outcome == "",
				p.Leaves != nil && p.Gone != nil && *p.Gone < *p.Leaves,
				p.Leaves != nil && *p.Leaves < 0,
				p.Gone != nil && ends > 0 && *p.Gone > ends,
				p.Outcome == Graceful && p.Gone == nil,
				p.Outcome == Left && p.Leaves != nil:
				t.Errorf("round %d: %+v, its node's deadline %v", round, p, ends)
			}
		}
	}
}
