// Package offerings remembers what EC2 takes back. It does so by offering: spot instances of a
// type in a zone go together, so what replaces one had better be another.
//
// [Memory.Keep] keeps what is known in a ConfigMap, so the next leader and a restart know it too.
// Without it, it dies with the process, but for the records on Nodes that are still there.
package offerings

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

const (
	// Lately is how long a loss keeps others away. Of interruptions that come together, nine in ten
	// fall within 3 minutes of each other, and for as long Karpenter itself avoids an offering that it
	// has seen interrupted. Ten leave room for those that do not.
	Lately = 10 * time.Minute

	// halfLife is after how long losses and node-hours count half: what EC2 has to spare changes from
	// day to day.
	halfLife = 24 * time.Hour

	// maxLosses bounds what is remembered. Few clusters have as many types and zones in their pools.
	maxLosses = 1000
)

// Offering is spot capacity that EC2 gives and takes as one.
type Offering struct {
	Type string `json:"type"`
	Zone string `json:"zone"`
}

// Of is the offering of a spot node; false if its labels do not say that it is one, or of which.
func Of(node *corev1.Node) (Offering, bool) {
	o := Offering{node.Labels[corev1.LabelInstanceTypeStable], node.Labels[corev1.LabelTopologyZone]}
	_, spot := nodes.Spot(node)
	return o, spot && o.Type != "" && o.Zone != ""
}

// Loss is an offering of which a pool has lost a node, or is said to lose one soon.
type Loss struct {
	Offering
	Pool string `json:"pool,omitempty"`
}

// tally is what a pool has had of an offering.
type tally struct {
	Lost   float64       `json:"lost"`             // nodes, by their interruption notices; counts half after halfLife
	Hours  float64       `json:"hours"`            // node-hours that nodes have stood; the same
	Last   time.Time     `json:"last,omitzero"`    // when the last notice or recommendation was received
	Recent map[int64]int `json:"recent,omitempty"` // nodes lost within window, by slot since 1970

	known time.Time // Last as an earlier process has left it, which has counted the notices until then
	nodes int       // that stood when they were last counted
}

// Memory remembers losses. It is safe for concurrent use.
type Memory struct {
	news chan struct{} // has an element when there is something to write

	mu      sync.Mutex
	of      map[Loss]*tally
	at      time.Time            // as of which the numbers in of are
	counts  bool                 // losses are counted: what an earlier process has counted is known
	counted map[string]time.Time // when notices were received that have been counted of late, by node

	instances map[string]*instance // of which something was noted
	swept     time.Time            // when those were looked through
	identify  IdentifyFunc         // nil: a Node's own labels are believed
	lookups   chan struct{}        // has an element for each lookup that is under way

	all func() []*corev1.Node // the nodes of the cluster; nil: not known
}

// New returns an empty memory.
func New() *Memory {
	return &Memory{
		news:    make(chan struct{}, 1),
		of:      map[Loss]*tally{},
		at:      time.Now(),
		counted: map[string]time.Time{},

		instances: map[string]*instance{},
		lookups:   make(chan struct{}, identifyAtOnce),
	}
}

// Takes reports whether EC2 takes a node back because it needs the capacity, or might.
func Takes(rec interruption.Record) bool {
	takes := rec.Kind == interruption.SpotInterruption || rec.Kind == interruption.RebalanceRecommendation
	return takes && !rec.Rehearsed() && !rec.Returns()
}

// Note remembers what the record of a spot node says. It can be called again and again, and does not
// block.
func (m *Memory) Note(node *corev1.Node, rec interruption.Record) {
	if age := time.Since(rec.Received); !Takes(rec) || age >= Lately || age <= -Lately {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if loss, ok := m.lossOf(node, rec); ok {
		m.note(loss, node, rec)
	}
}

// note remembers the loss. The caller holds the mutex.
func (m *Memory) note(loss Loss, node *corev1.Node, rec interruption.Record) {
	t := m.tally(loss)
	_, has := m.counted[node.Name]
	count := m.counts && !has && rec.Kind == interruption.SpotInterruption && rec.Received.After(t.known)
	if count {
		m.fade()
		t = m.tally(loss) // which has nothing yet if it is new, and was forgotten
		t.Lost++
		t.Recent[slotOf(rec.Received)]++
		m.counted[node.Name] = rec.Received
	}
	if count || rec.Received.After(t.Last) {
		select {
		case m.news <- struct{}{}:
		default:
		}
	}
	t.Last = interruption.Later(t.Last, rec.Received)
	m.shrink()
}

// Lost are the losses of late, in order.
func (m *Memory) Lost() []Loss {
	m.mu.Lock()
	defer m.mu.Unlock()
	var lost []Loss
	for loss, t := range m.of {
		if time.Since(t.Last) < Lately {
			lost = append(lost, loss)
		}
	}
	slices.SortFunc(lost, compare)
	return lost
}

func compare(a, b Loss) int {
	return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.Pool, b.Pool))
}

func (m *Memory) tally(of Loss) *tally {
	if m.of[of] == nil {
		m.of[of] = &tally{Recent: map[int64]int{}}
	}
	return m.of[of]
}

// fade brings all numbers up to now, and forgets what has faded to nothing.
func (m *Memory) fade() {
	now := time.Now()
	hours := max(0, now.Sub(m.at)).Hours()
	left := math.Exp2(-hours / halfLife.Hours())
	maps.DeleteFunc(m.of, func(_ Loss, t *tally) bool {
		t.Lost *= left
		t.Hours = t.Hours*left + float64(t.nodes)*hours
		maps.DeleteFunc(t.Recent, func(at int64, _ int) bool {
			return at <= slotOf(now.Add(-window)) || at > slotOf(now.Add(window)) // which a wrong clock has left
		})
		return t.Lost+t.Hours < 0.01 && t.nodes == 0 && now.Sub(t.Last) > halfLife
	})
	m.at = now
}

// recount notes how many spot nodes stand of each offering: from now on their node-hours add up.
func (m *Memory) recount(standing []*corev1.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fade()
	for _, t := range m.of {
		t.nodes = 0
	}
	for _, node := range standing {
		if of, spot := Of(node); spot {
			m.tally(Loss{of, nodes.PoolOf(node).Name}).nodes++
		}
	}
	m.shrink()
}

// shrink forgets what counts least: that with the oldest loss, and of those without one, that with
// the fewest node-hours.
func (m *Memory) shrink() {
	if len(m.of) <= maxLosses {
		return
	}
	order := slices.SortedFunc(maps.Keys(m.of), func(a, b Loss) int {
		x, y := m.of[a], m.of[b]
		return cmp.Or(x.Last.Compare(y.Last), cmp.Compare(x.Hours, y.Hours))
	})
	for _, of := range order[:len(order)-maxLosses] {
		delete(m.of, of)
	}
}
