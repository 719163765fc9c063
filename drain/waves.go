package drain

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// A budget that lets only k pods go at a time makes those that it covers leave in waves
// of k: the next may go when the successors of the last are Ready. So that the last wave
// still has its whole grace period, the first has to start (waves - 1) cycles earlier.

// Peer is a pod of a draining node, as far as its wave is concerned.
type Peer struct {
	UID       types.UID
	Namespace string
	Labels    labels.Set
	Latest    time.Time     // its latest safe start
	Startup   time.Duration // from having a node to Ready, where it is known
}

const (
	// settle is added to what the pods took to become Ready the last time: the budget is
	// charged, the successor made and scheduled, and the budget brought up to date.
	settle = 2 * time.Second
	// unknownCycle is used where no pod of a group has ever been Ready.
	unknownCycle = 10 * time.Second
	// longestCycle bounds what is read from a pod's conditions: one that has become
	// unready and Ready again looks as if it had taken days to start.
	longestCycle = time.Minute
)

// Waves gives for the pods that share a budget with others the time at which each has to
// go at the latest. The peers are those of all draining nodes.
func Waves(peers []Peer, budgets []*policyv1.PodDisruptionBudget) map[types.UID]time.Time {
	byNamespace := map[string][]Peer{}
	for _, peer := range peers {
		byNamespace[peer.Namespace] = append(byNamespace[peer.Namespace], peer)
	}
	starts := map[types.UID]time.Time{}
	for _, budget := range budgets {
		atOnce := wave(budget)
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if atOnce <= 0 || err != nil {
			continue // lets none go, ever
		}
		var group []Peer
		for _, peer := range byNamespace[budget.Namespace] {
			if selector.Matches(peer.Labels) {
				group = append(group, peer)
			}
		}
		if len(group) <= atOnce {
			continue
		}
		for uid, at := range schedule(group, atOnce) {
			if known, ok := starts[uid]; !ok || at.Before(known) {
				starts[uid] = at
			}
		}
	}
	return starts
}

// wave is how many pods the budget lets go at a time; none, or fewer, where it lets none go
// ever.
func wave(budget *policyv1.PodDisruptionBudget) int {
	return int(budget.Status.ExpectedPods - budget.Status.DesiredHealthy)
}

// Peers are the node's pods that have to wait for a budget one wave after the other.
// Pods whose successors are made first do not: the successors come up side by side.
func Peers(now time.Time, s Situation) []Peer {
	if s.Deadline.IsZero() {
		return nil
	}
	p := newPlanner(now, s)
	surging := p.surgingPods()
	var peers []Peer
	for _, pod := range p.Pods {
		if pod.DeletionTimestamp == nil && !surging[pod.UID] && p.notOurs(pod) == "" {
			peers = append(peers, peer(pod, p.Deadline, p.Policy.Margin))
		}
	}
	return peers
}

func peer(pod *corev1.Pod, deadline time.Time, margin time.Duration) Peer {
	took, _ := startup(pod)
	return Peer{
		UID: pod.UID, Namespace: pod.Namespace, Labels: labels.Set(pod.Labels),
		Latest: latestStart(pod, deadline, margin), Startup: took,
	}
}

// schedule plans a group backwards: the last wave starts when its most urgent pod has to,
// each wave before it a cycle earlier or when its own pods have to.
func schedule(group []Peer, atOnce int) map[types.UID]time.Time {
	slices.SortFunc(group, func(a, b Peer) int { return cmp.Or(a.Latest.Compare(b.Latest), cmp.Compare(a.UID, b.UID)) })
	period := cycle(group)
	starts := make(map[types.UID]time.Time, len(group))
	var next time.Time
	for end := len(group); end > 0; end -= atOnce {
		wave := group[max(0, end-atOnce):end]
		at := wave[0].Latest // sorted: its earliest
		if !next.IsZero() {
			at = earliest(at, next.Add(-period))
		}
		for _, member := range wave {
			starts[member.UID] = earliest(member.Latest, at)
		}
		next = at
	}
	return starts
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// cycle estimates how long it takes from the eviction of a wave until the budget lets
// the next go: what three quarters of the group's own pods took at most to become Ready.
func cycle(group []Peer) time.Duration {
	var took []time.Duration
	for _, member := range group {
		if member.Startup > 0 {
			took = append(took, min(member.Startup, longestCycle))
		}
	}
	if len(took) == 0 {
		return unknownCycle
	}
	slices.Sort(took)
	return took[len(took)*3/4] + settle
}
