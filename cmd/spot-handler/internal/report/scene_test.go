package report

import (
	"fmt"
	"math/rand/v2"
	"time"

	"spot-handler/cmd/spot-handler/internal/observe"
	"spot-handler/cmd/spot-handler/internal/plan"
	"spot-handler/cmd/spot-handler/internal/status"
	"spot-handler/handler/interruption"
)

var noticed = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func after(seconds float64) time.Time {
	return noticed.Add(time.Duration(seconds * float64(time.Second)))
}

func at(seconds float64) *time.Time {
	t := after(seconds)
	return &t
}

func value[T any](v T) *T { return &v }

// pod is one of deployment/web that is surged, evicted and ends gracefully.
func pod(name string, evicted, gone float64) observe.Pod {
	return observe.Pod{
		Namespace: "default", Name: name, UID: name, Workload: "deployment/web", GraceSeconds: 30, GivenSeconds: value(int64(30)),
		Steps: []observe.Step{
			{State: status.Waiting, For: "the replacement", From: noticed, To: after(.4)},
			{State: status.Surging, For: "its replacement pod", From: after(.4), To: after(evicted)},
			{State: status.Ending, From: after(evicted), To: after(gone)},
		},
		Surged: at(.4), Evicted: at(evicted), Gone: at(gone), Outcome: plan.Graceful,
	}
}

// one is a good interruption of one node.
func one() observe.Recording {
	return observe.Recording{
		From: after(-5), To: after(42),
		Nodes: []observe.Node{{
			Name: "ip-10-0-1-2.eu-west-1.compute.internal", Pool: "batch", Kind: interruption.SpotInterruption, Action: "terminate",
			Noticed: noticed, Deadline: at(120), Cordoned: at(.2),
			Phases: []observe.PhaseAt{
				{Phase: interruption.Noticed, At: after(.2)}, {Phase: interruption.Replacing, At: after(.4)},
				{Phase: interruption.Draining, At: after(20.5)}, {Phase: interruption.Drained, At: after(35)}, {Phase: interruption.Released, At: after(35.2)},
			},
			Replacement: &observe.Replacement{Replacement: interruption.Replacement{Name: "batch-fallback-0a1b2c", Pool: "batch-fallback", State: "Ready"}, Requested: after(.4), Launched: at(1.1), Ready: at(20.4)},
			Drained:     at(35), Ended: at(35), SlackSeconds: value(85.0), End: observe.Gone, EndAt: at(39),
			Pods:    []observe.Pod{pod("web-7d4b9c-1", 26, 29), pod("web-7d4b9c-2", 26.5, 29.4), pod("web-7d4b9c-3", 31, 35)},
			Counted: &interruption.Pods{Total: 3, Graceful: 3},
		}},
		Workloads: []observe.Workload{{
			Namespace: "default", Name: "deployment/web", Fewest: 6,
			Samples: []observe.Sample{{At: after(-5), Ready: 6, Desired: 6}, {At: after(25.8), Ready: 8, Desired: 6}, {At: after(26), Ready: 6, Desired: 6}, {At: after(30.9), Ready: 7, Desired: 6}, {At: after(31), Ready: 6, Desired: 6}},
		}},
		Budgets: []observe.Budget{{Namespace: "default", Name: "web", Workloads: []string{"deployment/web"}, Needed: 5, Fewest: 6}},
	}
}

// forecastOf is what was forecast of one, right but for the last pod.
func forecastOf() *plan.Forecast {
	second := func(s float64) *plan.Seconds { return value(plan.Seconds(s)) }
	f := &plan.Forecast{
		Assumptions: plan.Assumed(),
		Nodes: []plan.Node{{
			Name: "ip-10-0-1-2.eu-west-1.compute.internal", Kind: interruption.SpotInterruption, Deadline: second(120), Ended: second(34),
			Slack: second(86), Replacement: &plan.Replacement{Ready: second(19)},
		}},
		Workloads: []plan.Workload{{Namespace: "default", Name: "deployment/web", Replicas: 6, Ready: 6, FewestReady: 6}},
	}
	for i, gone := range []float64{28, 28, 34} {
		f.Pods = append(f.Pods, plan.Pod{
			Namespace: "default", Name: fmt.Sprintf("web-7d4b9c-%d", i+1), Node: f.Nodes[0].Name, Gone: second(gone), Outcome: plan.Graceful,
		})
	}
	f.Pods[2].Outcome, f.Pods[2].Reason = plan.Truncated, "its grace period does not fit"
	return f
}

// massInterruption is a bad one: 20 nodes with 300 pods of 24 workloads, of which some are refused
// and not evicted.
func massInterruption() (observe.Recording, *plan.Forecast) {
	random := rand.New(rand.NewPCG(1, 2))
	r := observe.Recording{From: after(-2), To: after(150)}
	f := &plan.Forecast{Assumptions: plan.Assumed()}
	f.Assumptions.ReadyOf = map[string]plan.Assumption{"shop/deployment/checkout-03": {Value: 22, From: "12 pods, median"}}
	for w := range 24 {
		workload := observe.Workload{Namespace: "shop", Name: fmt.Sprintf("deployment/checkout-%02d", w), Fewest: 12}
		n := 12
		workload.Samples = append(workload.Samples, observe.Sample{At: after(-2), Ready: n, Desired: 12})
		for t := 20.0; t < 110; t += 4 + 8*random.Float64() {
			ready := 12 + random.IntN(3)
			if w < 3 {
				ready -= 3
			}
			workload.Samples = append(workload.Samples, observe.Sample{At: after(t), Ready: ready, Desired: 12})
			workload.Fewest = min(workload.Fewest, ready)
			workload.Missing = max(workload.Missing, 12-ready)
			workload.UnavailableSeconds += float64(max(0, 12-ready)) * 8
		}
		workload.Samples = append(workload.Samples, observe.Sample{At: after(115), Ready: 12, Desired: 12})
		r.Workloads = append(r.Workloads, workload)
	}
	r.Budgets = []observe.Budget{{Namespace: "shop", Name: "checkout-00-budget", Workloads: []string{"deployment/checkout-00"}, Needed: 10, Fewest: 9}}
	for i := range 20 {
		start := float64(i) * 1.5
		n := observe.Node{
			Name: fmt.Sprintf("ip-10-0-%d-%d.eu-west-1.compute.internal", i/8, 17+i*11), Pool: "batch", Kind: interruption.SpotInterruption,
			Noticed: after(start), Deadline: at(start + 120), Cordoned: at(start + .3),
			Phases: []observe.PhaseAt{
				{Phase: interruption.Noticed, At: after(start + .3)}, {Phase: interruption.Replacing, At: after(start + 1)}, {Phase: interruption.Draining, At: after(start + 41)},
			},
			Replacement: &observe.Replacement{Replacement: interruption.Replacement{Name: fmt.Sprintf("batch-fallback-%04x", i*977), Pool: "batch-fallback", State: "Ready"}, Requested: after(start + 1), Ready: at(start + 40)},
		}
		ended := 0.0
		for j := range 15 {
			p := pod(fmt.Sprintf("checkout-%02d-5f7c8d9b44-%05x", (i*15+j)%24, i*7919+j*104729), start+45+20*random.Float64(), 0)
			p.Namespace, p.Workload = "shop", fmt.Sprintf("deployment/checkout-%02d", (i*15+j)%24)
			gone := p.Evicted.Sub(noticed).Seconds() + 3 + 4*random.Float64()
			p.Gone, p.Steps[2].To = at(gone), after(gone)
			if i%7 == 3 && j < 2 {
				p.Outcome, p.Evicted, p.Gone, p.GivenSeconds = plan.Left, nil, nil, nil
				p.Refusal = &observe.Refusal{From: after(start + 60), Times: 14, Reason: "Cannot evict pod as it would violate the pod's disruption budget. The disruption budget checkout-00-budget needs 10 healthy pods and has 10 currently"}
				p.Steps = append(p.Steps[:2], observe.Step{State: status.Refused, For: p.Refusal.Reason, From: after(start + 60), To: after(start + 120)})
				p.Steps[1].To, gone = after(start+60), start+115
			}
			ended = max(ended, gone)
			n.Pods = append(n.Pods, p)
			s := plan.Seconds(gone + 4*random.Float64())
			f.Pods = append(f.Pods, plan.Pod{Namespace: p.Namespace, Name: p.Name, Node: n.Name, Outcome: plan.Graceful, Gone: &s})
		}
		last := interruption.Drained
		if ended == start+115 {
			last = interruption.DeadlineReached
		} else {
			n.Drained = at(ended)
		}
		n.Ended, n.SlackSeconds = at(ended), value(start+120-ended)
		n.Phases = append(n.Phases, observe.PhaseAt{Phase: last, At: after(ended)})
		n.End, n.EndAt = observe.Gone, at(ended+5)
		r.Nodes = append(r.Nodes, n)
	}
	return r, f
}
