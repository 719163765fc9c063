package observe

import (
	"time"

	"spot-handler/handler/interruption"
)

const (
	// settled is how long after the drain a node is watched that nobody takes away or gives back,
	// and workloads that do not have their pods back.
	settled = 30 * time.Second
	// handedBack is how long one is watched that was handed back to what made it: Karpenter takes
	// some seconds, an Auto Scaling group until a hook ends.
	handedBack = 2 * time.Minute
)

// Over reports whether nothing more is to be seen: every node that was wanted has come to its
// end, and the workloads have their pods back, or have had time for it.
func (o *Observer) Over(now time.Time) bool {
	r := o.Recording(now)
	seen := map[string]bool{}
	for _, n := range r.Nodes {
		seen[n.Name] = true
	}
	for name := range o.wanted {
		if !seen[name] {
			return false
		}
	}
	return r.over()
}

func (r Recording) over() bool {
	var last time.Time
	for _, n := range r.Nodes {
		ended := n.EndAt
		if ended == nil {
			at, wait := n.overAt(), settled
			if n.Phase() == interruption.Released {
				wait = handedBack
			}
			if at.IsZero() || r.To.Before(at.Add(wait)) {
				return false
			}
			ended = &at
		}
		if ended.After(last) {
			last = *ended
		}
	}
	return len(r.Nodes) > 0 && (r.recovered() || r.To.After(last.Add(settled)))
}

// overAt is when the end of the drain was seen; zero if it goes on.
func (n Node) overAt() time.Time {
	for _, p := range n.Phases {
		if p.Phase.Over() {
			return p.At
		}
	}
	return time.Time{}
}

// recovered reports whether no workload misses a pod now.
func (r Recording) recovered() bool {
	for _, w := range r.Workloads {
		if n := len(w.Samples); n > 0 && w.Samples[n-1].missing(w.Samples[0].Ready) > 0 {
			return false
		}
	}
	return true
}

// missing is how many pods are missing that were there before.
func (s Sample) missing(before int) int { return max(0, min(s.Desired, before)-s.Ready) }
