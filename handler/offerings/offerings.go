// Package offerings remembers what EC2 takes back. It does so by offering: spot instances of a
// type in a zone go together, so what replaces one had better be another.
//
// What is known dies with the process, but for the records on Nodes that are still there: the
// next process reads those again.
package offerings

import (
	"cmp"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

const (
	// Lately is how long a loss counts. Of interruptions that come together, nine in ten fall within
	// 3 minutes of each other, and for as long Karpenter itself avoids an offering that it has seen
	// interrupted. Ten leave room for those that do not.
	Lately = 10 * time.Minute

	// maxLosses bounds what is remembered: more types and zones than that are in no cluster.
	maxLosses = 1000
)

// Offering is spot capacity that EC2 gives and takes as one.
type Offering struct{ Type, Zone string }

// Of is the offering of a spot node; false if it is none, or if its labels do not say which.
func Of(node *corev1.Node) (Offering, bool) {
	o := Offering{node.Labels[corev1.LabelInstanceTypeStable], node.Labels[corev1.LabelTopologyZone]}
	_, onDemand := nodes.OnDemand(node)
	return o, !onDemand && o.Type != "" && o.Zone != ""
}

// Loss is an offering of which a pool has lost a node, or is said to lose one soon.
type Loss struct {
	Offering
	Pool string
}

// Memory remembers losses. It is safe for concurrent use.
type Memory struct {
	mu sync.Mutex
	at map[Loss]time.Time
}

// New returns an empty memory.
func New() *Memory { return &Memory{at: map[Loss]time.Time{}} }

// Takes reports whether EC2 takes a node back because it needs the capacity, or might.
func Takes(rec interruption.Record) bool {
	return (rec.Kind == interruption.SpotInterruption || rec.Kind == interruption.RebalanceRecommendation) && !rec.Rehearsed()
}

// Note remembers what the record of a spot node says. It can be called again and again.
func (m *Memory) Note(node *corev1.Node, rec interruption.Record) {
	of, ok := Of(node)
	if !ok || !Takes(rec) || time.Since(rec.Received) >= Lately {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	loss := Loss{of, nodes.PoolOf(node).Name}
	if rec.Received.After(m.at[loss]) {
		m.at[loss] = rec.Received
	}
	if len(m.at) <= maxLosses {
		return
	}
	oldest := loss
	for other, at := range m.at {
		if at.Before(m.at[oldest]) {
			oldest = other
		}
	}
	delete(m.at, oldest)
}

// Lost are the losses that still count, in order.
func (m *Memory) Lost() []Loss {
	m.mu.Lock()
	defer m.mu.Unlock()
	var lost []Loss
	for loss, at := range m.at {
		if time.Since(at) >= Lately {
			delete(m.at, loss)
			continue
		}
		lost = append(lost, loss)
	}
	slices.SortFunc(lost, func(a, b Loss) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.Pool, b.Pool))
	})
	return lost
}
