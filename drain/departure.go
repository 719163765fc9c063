package drain

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// A gang that loses one pod loses its work, so its pods on draining nodes stay to the last moment
// that is safe for all of them, and leave together. The others have nothing to wait for once one of
// them leaves. What a pod asks for itself overrides its gang, and its gang overrides its namespace.
//
// From a node that is only at risk they leave when one of them asks to, and for nothing else: an
// operator that removes an idle worker there has no use for the end of the others.

// Departure is when those pods of a gang leave that have to.
type Departure struct {
	// At is when the first of them has to; zero if the nodes of all of them are only at risk.
	At time.Time
	// Now: one of them leaves a node that ends, or asks to leave.
	Now bool
	// Asked: one of them asks to. That goes for nodes that are only at risk, too.
	Asked bool
}

// with is the departure of the pods of both.
func (d Departure) with(other Departure) Departure {
	d.At = interruption.Earlier(d.At, other.At)
	d.Now, d.Asked = d.Now || other.Now, d.Asked || other.Asked
	return d
}

// Departures are those of the gangs that the node's pods belong to, as far as these pods decide
// them; nil if they belong to none.
func (s Situation) Departures() map[Gang]Departure {
	p := planner{Situation: s}
	var found map[Gang]Departure
	for _, pod := range s.Pods {
		gang := GangOf(pod)
		if gang == (Gang{}) || p.notOurs(pod) != "" {
			continue
		}
		if found == nil {
			found = map[Gang]Departure{}
		}
		asks := p.ownWish(pod) == WhenNow
		found[gang] = found[gang].with(Departure{
			At: p.startOf(pod), Asked: asks, Now: asks || pod.DeletionTimestamp != nil && !p.Deadline.IsZero(),
		})
	}
	return found
}

// wishOfGang is when the pod is to leave for the sake of its gang; empty if it has none.
func (p *planner) wishOfGang(pod *corev1.Pod) When {
	if len(p.Gangs) == 0 {
		return ""
	}
	departure, ok := p.Gangs[GangOf(pod)]
	switch {
	case !ok:
		return ""
	case departure.Asked, departure.Now && !p.Deadline.IsZero():
		return WhenNow
	}
	return WhenLast
}

// asksWithGang reports whether the pod's gang is asked to leave now, by the pod itself or by another,
// and the pod does not ask for anything else.
func (p *planner) asksWithGang(pod *corev1.Pod) bool {
	return p.wishOf(pod).When == WhenNow && p.Gangs[GangOf(pod)].Asked
}

// startWithGang is when the pod leaves with its gang at the latest; zero if it does not, or has no
// deadline.
func (p *planner) startWithGang(pod *corev1.Pod) time.Time {
	if p.Deadline.IsZero() || !p.wishOf(pod).gang {
		return time.Time{}
	}
	return p.Gangs[GangOf(pod)].At
}
