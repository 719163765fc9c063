package drain

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
)

// A budget that lets only k pods go at a time makes those that it covers leave in waves of
// k: the next can go when the replacement pods of the last are Ready. For the last wave to have
// its whole grace period, the first has to start (waves - 1) cycles earlier.

// wavePod is what the waves need to know about a pod of a draining node.
type wavePod struct {
	*corev1.Pod
	latest  time.Time     // its eviction deadline
	startup time.Duration // from having a node to Ready; zero if it is not known
}

const (
	// settle is added to the time that the pods last took to become Ready: the budget is
	// charged, the replacement pod made and scheduled, and the budget brought up to date.
	settle = 2 * time.Second
	// unknownCycle is used where no pod of a group has ever been Ready.
	unknownCycle = 10 * time.Second
	// longestCycle bounds what is read from a pod's conditions: one that became unready and
	// then Ready again looks as if it had taken days to start.
	longestCycle = time.Minute
)

// Waves is when those pods of all draining nodes go that cannot all go at once.
type Waves struct {
	// Starts are the latest times at which pods that share a budget with others have to go.
	Starts map[types.UID]time.Time
	// Review is when a pod that waits for its turn to be surged might have to be counted among
	// those in waves, if no turn has come until then; zero if none waits.
	Review time.Time
}

// PlanWaves plans for the pods of all draining nodes together.
func PlanWaves(now time.Time, nodes []Situation, budgets []*policyv1.PodDisruptionBudget) Waves {
	pods, review := podsInWaves(now, nodes)
	byNamespace := map[string][]wavePod{}
	for _, pod := range pods {
		byNamespace[pod.Namespace] = append(byNamespace[pod.Namespace], pod)
	}
	starts := map[types.UID]time.Time{}
	for _, budget := range budgets {
		atOnce := waveSize(budget)
		if atOnce <= 0 {
			continue // it never lets any go
		}
		var group []wavePod
		for _, pod := range byNamespace[budget.Namespace] {
			if covers(budget, pod.Labels) {
				group = append(group, pod)
			}
		}
		if len(group) <= atOnce {
			continue
		}
		for uid, at := range planGroup(group, atOnce) {
			starts[uid] = interruption.Earlier(starts[uid], at)
		}
	}
	return Waves{Starts: starts, Review: review}
}

// waveSize is how many pods the budget lets go at a time; zero or less if it never lets any
// go.
func waveSize(budget *policyv1.PodDisruptionBudget) int {
	return int(budget.Status.ExpectedPods - budget.Status.DesiredHealthy)
}

// podsInWaves are the pods that have to leave in waves where a budget demands it, and when that has
// to be worked out again. Surged pods do not: their replacement pods come up side by side. Nor do
// those whose turn for that comes in time, as the turns of others end.
func podsInWaves(now time.Time, nodes []Situation) (pods []wavePod, review time.Time) {
	turns := map[types.NamespacedName]*surgeTurns{}
	for _, s := range nodes {
		p := newPlanner(now, s)
		for _, pod := range p.Pods {
			if pod.DeletionTimestamp != nil || p.notOurs(pod) != "" {
				continue
			}
			of := DeploymentOf(pod)
			canSurge := p.Policy.Strategy == Surge && p.noSurge(pod, of, p.preferenceOf(pod)) == ""
			switch {
			case IsSurged(pod), canSurge && p.known(pod):
				if turns[of] == nil {
					turns[of] = &surgeTurns{workload: p.Workloads[of]}
				}
				turns[of].add(p, pod)
			case !canSurge && !s.Deadline.IsZero():
				pods = append(pods, p.wavePod(pod))
			}
		}
	}
	for _, of := range turns {
		late, by := of.take(now)
		pods = append(pods, late...)
		review = interruption.Earlier(review, by)
	}
	return pods, review
}

// Startup is how long the pod took from having a node to being Ready; false if it is not
// Ready.
func Startup(pod *corev1.Pod) (time.Duration, bool) {
	scheduled := Condition(pod, corev1.PodScheduled)
	since, ok := Ready(pod)
	if !ok || scheduled == nil {
		return 0, false
	}
	return max(0, since.Sub(scheduled.LastTransitionTime.Time)), true
}

func (p *planner) wavePod(pod *corev1.Pod) wavePod {
	took, _ := Startup(pod)
	return wavePod{Pod: pod, latest: evictionDeadline(pod, p.Deadline, p.Policy.Margin), startup: took}
}

// surgeTurns are the turns of a Deployment's pods: maxSurge of them are surged at the same time, over
// all nodes, and the next when a replacement pod is available.
type surgeTurns struct {
	workload Workload
	began    []time.Time // of those that are surged: since when their replacement pods can have a node
	waiting  []wavePod
	all      []wavePod
}

// add takes in a pod that is surged or can be. From a node that is only at risk, none has a turn
// before those that have to leave.
func (t *surgeTurns) add(p *planner, pod *corev1.Pod) {
	member := p.wavePod(pod)
	t.all = append(t.all, member)
	switch {
	case !IsSurged(pod) && !p.Deadline.IsZero():
		t.waiting = append(t.waiting, member)
	case !IsSurged(pod):
	case p.Capacity == PendingCapacity:
		t.began = append(t.began, p.now)
	default:
		t.began = append(t.began, interruption.Later(surgeNoteOf(pod).At, p.Ready))
	}
}

// minReview is how often pods are looked at again that wait for their turn. What is known of the
// turns is not that exact.
const minReview = time.Second

// take gives the turns to the most urgent first. It returns those whose turn comes too late, and when
// that has to be looked at again.
//
// A replacement that still boots is taken for one that is Ready now, so turns that are in use because
// of it end later and later. A pod that can still have its turn is not given up before that.
func (t *surgeTurns) take(now time.Time) (late []wavePod, review time.Time) {
	took := cycle(t.all, 1, 2) + t.workload.MinReady // some sooner, some later, and a pod waits for any of them
	// Pods that do not show yet that they are surged are among those that wait, and have a turn.
	free := slices.Repeat([]time.Time{now}, t.workload.Slots+t.workload.Surging)
	for _, began := range t.began {
		if end := began.Add(took); now.Before(end.Add(placeFor)) { // else who knows what its replacement pod lacks
			free = append(free, interruption.Later(end, now))
		}
	}
	slices.SortFunc(free, time.Time.Compare)
	slices.SortFunc(t.waiting, byLatest)
	for _, pod := range t.waiting {
		if len(free) == 0 || free[0].Add(took).After(pod.latest) {
			late = append(late, pod)
			continue
		}
		end := free[0].Add(took)
		at, _ := slices.BinarySearchFunc(free[1:], end, time.Time.Compare)
		free = slices.Insert(free[1:], at, end)
		review = interruption.Earlier(review, now.Add(max(minReview, pod.latest.Sub(end))))
	}
	return late, review
}

// planGroup plans a group backwards: the last wave starts when its most urgent pod has to,
// and each wave before it a cycle earlier, or when its own pods have to.
func planGroup(group []wavePod, atOnce int) map[types.UID]time.Time {
	slices.SortFunc(group, byLatest)
	period := cycle(group, 3, 4)
	starts := make(map[types.UID]time.Time, len(group))
	var next time.Time
	for end := len(group); end > 0; end -= atOnce {
		wave := group[max(0, end-atOnce):end]
		at := wave[0].latest // sorted: its earliest
		if !next.IsZero() {
			at = interruption.Earlier(at, next.Add(-period))
		}
		for _, member := range wave {
			starts[member.UID] = interruption.Earlier(member.latest, at)
		}
		next = at
	}
	return starts
}

// byLatest has the order in which they would be evicted without waves: evictions begin before the waves
// are known.
func byLatest(a, b wavePod) int { return inTurn(a.latest, a.Pod, b.latest, b.Pod) }

// cycle estimates the time from the eviction of one wave until the budget lets the next go:
// the time within which so many of the group's own pods became Ready, such as three quarters.
func cycle(group []wavePod, part, of int) time.Duration {
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
	return took[len(took)*part/of] + settle
}

// startsFor is how old the waves can be that plans are made with. They depend on all
// draining nodes, so they are worked out for all at once.
const startsFor = 250 * time.Millisecond

// waveStarts keeps the last waves of all draining nodes.
type waveStarts struct {
	work func() Waves

	mu      sync.Mutex
	working bool
	last    Waves
	until   time.Time // when last is old
	floor   time.Time // the earliest next work, whatever changes: otherwise nothing else would get done
}

// get is the current waves. They must not be changed.
func (s *waveStarts) get() Waves {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// refresh works the waves out again if they are old, and returns the pods that now have to
// go earlier.
func (s *waveStarts) refresh() map[types.UID]bool {
	s.mu.Lock()
	now := time.Now()
	if s.working || now.Before(s.until) {
		s.mu.Unlock()
		return nil
	}
	s.working, s.until = true, now.Add(startsFor)
	s.mu.Unlock()
	fresh := s.work()

	s.mu.Lock()
	defer s.mu.Unlock()
	s.working = false
	s.floor = now.Add(10 * time.Since(now))
	s.until = interruption.Later(s.until, s.floor)
	earlier := map[types.UID]bool{}
	for uid, at := range fresh.Starts {
		if before, ok := s.last.Starts[uid]; !ok || at.Before(before) {
			earlier[uid] = true
		}
	}
	s.last = fresh
	return earlier
}

// stale makes the next refresh work.
func (s *waveStarts) stale() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = s.floor
}
