package offerings

import (
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// IdentifyFunc returns a Node with the labels that what made it has given it, or as it is if nothing but
// its kubelet knows. It may call the API server. An error says that this can't be found out at present.
type IdentifyFunc func(ctx context.Context, node *corev1.Node) (*corev1.Node, error)

// instance is what was noted of one. A kubelet can write its Node's labels and record: with others each
// time, one node could have lost all offerings there are, at any time. So the first word counts, of the
// offering and of each kind of interruption.
type instance struct {
	loss  Loss
	spot  bool                            // it is known to be a spot instance, and its offering is too
	noted map[interruption.Kind]time.Time // when it was received

	// Until it is known what it is: what is to be noted then.
	known   bool
	asking  bool
	retry   time.Time // when to look again
	pending []interruption.Record
	at      time.Time
}

const (
	// remembered is for how long the first word counts. What is older is looked for every sweepEvery, not with each
	// of thousands that are lost at once.
	remembered = 24 * time.Hour
	sweepEvery = time.Hour
	// identifyTimeout bounds one lookup of what a node is.
	identifyTimeout = 5 * time.Second
	// identifyAtOnce bounds the lookups under way at a time: when thousands of nodes are lost, they must not hold up
	// cordons and evictions.
	identifyAtOnce = 32
	// identifyAgain is how long after a lookup that failed the next one begins. Until one succeeds,
	// nothing is remembered of the node: its kubelet's word is worse than none.
	identifyAgain = 30 * time.Second
)

// Identify has f say what nodes are, from now on.
func (m *Memory) Identify(f IdentifyFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.identify = f
}

// identity is what nobody can change of a Node; empty if it has neither.
func identity(node *corev1.Node) string {
	if node.Spec.ProviderID != "" {
		return node.Spec.ProviderID
	}
	return string(node.UID)
}

// lossOf is what is lost with the node; false if nothing is to be noted, or not yet. The caller holds the
// mutex.
func (m *Memory) lossOf(node *corev1.Node, rec interruption.Record) (Loss, bool) {
	id := identity(node)
	if id == "" {
		of, ok := Of(node)
		return Loss{of, nodes.PoolOf(node).Name}, ok
	}
	i := m.instances[id]
	if i == nil {
		m.forgetInstances()
		i = &instance{noted: map[interruption.Kind]time.Time{}, at: time.Now()}
		m.instances[id] = i
		if m.identify == nil {
			i.is(node)
		}
	}
	if !i.known && !i.asking && !time.Now().Before(i.retry) {
		i.asking = true
		go m.ask(m.identify, i, node)
	}
	if first, has := i.noted[rec.Kind]; has && !first.Equal(rec.Received) {
		return Loss{}, false
	}
	if _, has := i.noted[rec.Kind]; !has && !i.known {
		i.pending = append(i.pending, rec)
	}
	i.noted[rec.Kind] = rec.Received
	return i.loss, i.spot
}

func (i *instance) is(node *corev1.Node) {
	of, spot := Of(node)
	i.loss, i.spot, i.known = Loss{of, nodes.PoolOf(node).Name}, spot, true
}

// ask finds out what the node is, and notes what is pending.
func (m *Memory) ask(identify IdentifyFunc, i *instance, node *corev1.Node) {
	m.lookups <- struct{}{}
	defer func() { <-m.lookups }()
	ctx, cancel := context.WithTimeout(context.Background(), identifyTimeout)
	defer cancel()
	made, err := identify(ctx, node)
	m.mu.Lock()
	defer m.mu.Unlock()
	i.asking = false
	if err != nil {
		i.retry = time.Now().Add(identifyAgain)
		return
	}
	i.is(made)
	for _, rec := range i.pending {
		if i.spot {
			m.note(i.loss, node, rec)
		}
	}
	i.pending = nil
}

// forgetInstances drops those of which something was noted long ago.
func (m *Memory) forgetInstances() {
	if time.Since(m.swept) < sweepEvery {
		return
	}
	m.swept = time.Now()
	maps.DeleteFunc(m.instances, func(_ string, i *instance) bool { return time.Since(i.at) >= remembered })
}
