package drain

import (
	"cmp"
	"slices"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// A budget that lets only k pods go at a time makes those that it covers leave in waves of
// k: the next can go when the successors of the last are Ready. For the last wave to have
// its whole grace period, the first has to start (waves - 1) cycles earlier.

// wavePod is what the waves need to know about a pod of a draining node.
type wavePod struct {
	uid       types.UID
	namespace string
	labels    labels.Set
	latest    time.Time     // its latest safe start
	startup   time.Duration // from having a node to Ready; zero if it is not known
}

const (
	// settle is added to the time that the pods last took to become Ready: the budget is
	// charged, the successor made and scheduled, and the budget brought up to date.
	settle = 2 * time.Second
	// unknownCycle is used where no pod of a group has ever been Ready.
	unknownCycle = 10 * time.Second
	// longestCycle bounds what is read from a pod's conditions: one that became unready and
	// then Ready again looks as if it had taken days to start.
	longestCycle = time.Minute
)

// planWaves gives the latest time at which each pod that shares a budget with others has to
// go. The pods are those of all draining nodes.
func planWaves(pods []wavePod, budgets []*policyv1.PodDisruptionBudget) map[types.UID]time.Time {
	byNamespace := map[string][]wavePod{}
	for _, pod := range pods {
		byNamespace[pod.namespace] = append(byNamespace[pod.namespace], pod)
	}
	starts := map[types.UID]time.Time{}
	for _, budget := range budgets {
		atOnce := waveSize(budget)
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if atOnce <= 0 || err != nil {
			continue // it never lets any go
		}
		var group []wavePod
		for _, pod := range byNamespace[budget.Namespace] {
			if selector.Matches(pod.labels) {
				group = append(group, pod)
			}
		}
		if len(group) <= atOnce {
			continue
		}
		for uid, at := range planGroup(group, atOnce) {
			if known, ok := starts[uid]; !ok || at.Before(known) {
				starts[uid] = at
			}
		}
	}
	return starts
}

// waveSize is how many pods the budget lets go at a time; zero or less if it never lets any
// go.
func waveSize(budget *policyv1.PodDisruptionBudget) int {
	return int(budget.Status.ExpectedPods - budget.Status.DesiredHealthy)
}

// podsInWaves are the node's pods that have to leave in waves where a budget demands it.
// Surged pods do not: their successors come up side by side.
func podsInWaves(now time.Time, s Situation) []wavePod {
	if s.Deadline.IsZero() {
		return nil
	}
	p := newPlanner(now, s)
	surging := p.surgingPods()
	var pods []wavePod
	for _, pod := range p.Pods {
		if pod.DeletionTimestamp == nil && !surging[pod.UID] && p.notOurs(pod) == "" {
			took, _ := startup(pod)
			pods = append(pods, wavePod{
				uid: pod.UID, namespace: pod.Namespace, labels: labels.Set(pod.Labels),
				latest: latestStart(pod, p.Deadline, p.Policy.Margin), startup: took,
			})
		}
	}
	return pods
}

// planGroup plans a group backwards: the last wave starts when its most urgent pod has to,
// and each wave before it a cycle earlier, or when its own pods have to.
func planGroup(group []wavePod, atOnce int) map[types.UID]time.Time {
	slices.SortFunc(group, func(a, b wavePod) int { return cmp.Or(a.latest.Compare(b.latest), cmp.Compare(a.uid, b.uid)) })
	period := cycle(group)
	starts := make(map[types.UID]time.Time, len(group))
	var next time.Time
	for end := len(group); end > 0; end -= atOnce {
		wave := group[max(0, end-atOnce):end]
		at := wave[0].latest // sorted: its earliest
		if !next.IsZero() {
			at = earliest(at, next.Add(-period))
		}
		for _, member := range wave {
			starts[member.uid] = earliest(member.latest, at)
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

// cycle estimates the time from the eviction of one wave until the budget lets the next go:
// the time within which three quarters of the group's own pods became Ready.
func cycle(group []wavePod) time.Duration {
	var took []time.Duration
	for _, member := range group {
		if member.startup > 0 {
			took = append(took, min(member.startup, longestCycle))
		}
	}
	if len(took) == 0 {
		return unknownCycle
	}
	slices.Sort(took)
	return took[len(took)*3/4] + settle
}
