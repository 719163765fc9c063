package odds

import (
	"slices"
	"time"
)

// The rule, set before: act earns its place if, for slow services and on traces to which it was not
// fitted, it gains this share of what the oracle gains, at no more than this share of additional
// node-minutes, and makes nothing worse for a calm fleet.
const (
	wantGain = 0.5
	maxExtra = 0.1
)

// How long services take to become ready: in time after a notice, in time if a node has booted, and
// only if they have moved before.
const (
	fast   = 10 * time.Second
	medium = time.Minute
	slow   = 10 * time.Minute
)

// result compares the policies on a trace.
type result struct {
	trace            *trace
	off, act, oracle cost
}

// gain is the share of the pod-seconds that act saves of those that the oracle saves.
func (r result) gain() float64 {
	if r.off.unavailable == r.oracle.unavailable {
		return 0
	}
	return (r.off.unavailable - r.act.unavailable) / (r.off.unavailable - r.oracle.unavailable)
}

// extra is how many node-minutes act has on fallback nodes beyond those of off, as a share of the
// fleet's. The spot nodes that it gives up meanwhile are not set off against them: fallback nodes cost
// more, and giving up spot nodes for good would gain everything without any odds.
func (r result) extra() float64 { return (r.act.fallback - r.off.fallback) / r.off.all }

// worse reports whether act costs more than off: in pod-seconds, or at least 1% in node-minutes or
// moves.
func (r result) worse() bool {
	return r.act.unavailable > r.off.unavailable || r.extra() >= 0.01 || r.act.moves >= 1.01*r.off.moves
}

func compare(t *trace, prior Prior, ready time.Duration, p policy) result {
	return result{t, replay(t, prior, ready, policy{}), replay(t, prior, ready, p), replay(t, prior, ready, policy{kind: oracle})}
}

// settings are those of act among which the best is chosen.
func settings() (all []policy) {
	for _, from := range []float64{0.05, 0.1, 0.15, 0.2, 0.3, 0.4} {
		for _, nodes := range []float64{0.25, 0.5, 1} {
			for _, hours := range []float64{0.1, 1} {
				all = append(all, policy{act, from, nodes, hours})
			}
		}
	}
	return all
}

// choose returns the settings with the largest mean gain on the traces, of those that stay within the
// rule's node-minutes on each, and that gain.
func choose(traces []*trace, prior Prior, ready time.Duration) (best policy, most float64) {
	most = -1
	var bounds []result
	for _, t := range traces {
		bounds = append(bounds, compare(t, prior, ready, policy{}))
	}
	for _, p := range settings() {
		var sum float64
		within := true
		for _, r := range bounds {
			r.act = replay(r.trace, prior, ready, p)
			sum += r.gain() / float64(len(bounds))
			if within = r.extra() <= maxExtra; !within {
				break
			}
		}
		if within && sum > most+1e-9 {
			best, most = p, sum
		}
	}
	return best, most
}

// fitted is what was found on other traces than those that it is judged on.
type fitted struct {
	prior  Prior
	medium policy // for services that are ready after a minute
	slow   policy // after 10 min
}

// found is what find returns, by the trace that was left out. The benchmark takes a minute to find it.
var found = map[string]fitted{
	"g4dn us-east-1c":   {Prior{0.4, 1, 8, 40, 20 * time.Minute}, policy{act, 0.1, 0.25, 1}, policy{act, 0.1, 0.25, 1}},
	"g4dn us-east-1d":   {Prior{0.1, 2, 4, 40, 20 * time.Minute}, policy{act, 0.1, 0.25, 1}, policy{act, 0.4, 0.25, 0.1}},
	"p2, several zones": {Prior{0.4, 2, 16, 40, 20 * time.Minute}, policy{act, 0.2, 0.5, 1}, policy{act, 0.2, 0.25, 1}},
	"p3":                {Prior{0.2, 2, 8, 40, 20 * time.Minute}, policy{act, 0.15, 0.5, 1}, policy{act, 0.3, 0.25, 1}},
	"none":              {Prior{0.2, 2, 8, 40, 20 * time.Minute}, policy{act, 0.15, 0.5, 1}, policy{act, 0.4, 0.25, 0.1}},
}

// foundWithout returns what was found on the other recorded traces.
func foundWithout(t *trace) fitted {
	if f, ok := found[t.name]; ok {
		return f
	}
	return found["none"]
}

// find fits to the traces.
func find(others []*trace) fitted {
	f := fitted{prior: fit(others)}
	f.medium, _ = choose(others, f.prior, medium)
	f.slow, _ = choose(others, f.prior, slow)
	return f
}

// without are all traces but one.
func without(all []*trace, i int) []*trace { return slices.Delete(slices.Clone(all), i, i+1) }
