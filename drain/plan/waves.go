package plan

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"spot-handler/handler/interruption"
)

// A budget that lets only k pods go at a time makes those that it covers leave in waves of
// k: the next can go when the replacement pods of the last are Ready. For the last wave to have
// its whole grace period, the first has to start (waves - 1) cycles earlier. Pods that are not Ready on
// other nodes use up some of the k.

// wavePod is what the waves need to know about a pod of a draining node.
type wavePod struct {
	*corev1.Pod
	latest  time.Time     // its eviction deadline
	startup time.Duration // from having a node to Ready; zero if it is not known
	ends    time.Duration // until it has gone, if its replacement pod starts only then; else zero
}

// Leaving is a pod that is terminating, or has gone.
type Leaving struct {
	Pod  *corev1.Pod
	Gone time.Time // when that was seen; zero while it is there
}

// leftFor is how long a pod that has gone can matter to the waves.
const leftFor = longestCycle + turnaround + detaching

// began is when the pod began to end; false if it does not.
func (l Leaving) began() (time.Time, bool) {
	at := l.Pod.DeletionTimestamp // the end of its grace period
	if at == nil {
		return l.Gone, !l.Gone.IsZero()
	}
	return at.Add(-time.Duration(ptr.Deref(l.Pod.DeletionGracePeriodSeconds, 0)) * time.Second), true
}

// took is how long the pod took to end; zero if that was not seen.
func (l Leaving) took() time.Duration {
	began, ok := l.began()
	if !ok || l.Gone.IsZero() || l.Pod.DeletionTimestamp == nil {
		return 0
	}
	return max(time.Second, l.Gone.Sub(began)) // by two clocks
}

const (
	// turnaround is added to the time that the pods last took to become Ready: the budget is
	// charged, the replacement pod made and scheduled, and the budget brought up to date.
	turnaround = 2 * time.Second
	// unknownCycle is used where no pod of a group has ever been Ready.
	unknownCycle = 10 * time.Second
	// longestCycle bounds what is read from a pod's conditions: one that became unready and
	// then Ready again looks as if it had taken days to start.
	longestCycle = time.Minute
	// detaching is about how long a volume is still attached to the node of a pod that has gone.
	detaching = 5 * time.Second
)

// Waves is when those pods of all draining nodes go that cannot all go at once.
type Waves struct {
	// Starts are the latest times at which pods that share a budget with others have to go.
	Starts map[types.UID]time.Time
	// Review is when a pod that waits for its turn to be surged might have to be counted among
	// those in waves, if no turn has come until then; zero if none waits.
	Review time.Time
	// Again is when they have to be worked out again even if nothing happens, because a replacement pod is overdue
	// by then; zero if none is awaited.
	Again time.Time
}

// until is when the waves go stale even if nothing happens; zero means never. A due review makes them stale too: a node
// planned before the waves doesn't ask for one.
func (w Waves) until() time.Time { return interruption.Earlier(w.Again, w.Review) }

// planWaves plans for the pods of all draining nodes together.
func planWaves(now time.Time, nodes []Situation, budgets []*policyv1.PodDisruptionBudget) Waves {
	pods, review := podsInWaves(now, nodes)
	index := indexBudgets(budgets)
	groups, away := map[*policyv1.PodDisruptionBudget][]wavePod{}, map[*policyv1.PodDisruptionBudget][]leaving{}
	for _, pod := range pods {
		for _, budget := range index.covering(pod.Pod) {
			groups[budget] = append(groups[budget], pod)
		}
	}
	for _, leaving := range leftBy(nodes) {
		for _, budget := range index.covering(leaving.Pod) {
			away[budget] = append(away[budget], leaving)
		}
	}
	waves := Waves{Starts: map[types.UID]time.Time{}, Review: review}
	for _, budget := range budgets {
		group := groups[budget]
		if waveSize(budget) <= 0 || len(group) == 0 {
			continue // it never lets any go, or has none to let go
		}
		var theirs []Leaving
		onTheirWay := 0
		for _, l := range away[budget] {
			theirs = append(theirs, l.Leaving)
			if until, awaited := l.awaited(now); awaited {
				onTheirWay++
				waves.Again = interruption.Earlier(waves.Again, until)
			}
		}
		atOnce := sparedBy(budget, onTheirWay)
		if len(group) <= atOnce {
			continue
		}
		for uid, at := range planGroup(asSeen(group, theirs), atOnce) {
			waves.Starts[uid] = interruption.Earlier(waves.Starts[uid], at)
		}
	}
	return waves
}

// sparedBy is how many pods the budget lets go at a time as things are, at least one: those that are not
// Ready, besides those on their way, are broken on other nodes and use up some.
func sparedBy(budget *policyv1.PodDisruptionBudget, onTheirWay int) int {
	broken := int(budget.Status.ExpectedPods-budget.Status.CurrentHealthy) - onTheirWay
	return max(1, waveSize(budget)-max(0, broken))
}

// leaving is one whose replacement pod might start only when it has gone.
type leaving struct {
	Leaving
	alone bool
}

// leftBy are the pods that are leaving the nodes, or have left. The replacement pod of a surged pod was there
// before.
func leftBy(nodes []Situation) (away []leaving) {
	for _, s := range nodes {
		p := planner{Situation: s}
		add := func(l Leaving) { away = append(away, leaving{l, p.replacedAfter(l.Pod) > 0}) }
		for _, pod := range s.Pods {
			if pod.DeletionTimestamp != nil && p.notOurs(pod) == "" && !IsSurged(pod) {
				add(Leaving{Pod: pod})
			}
		}
		for _, l := range s.Left {
			if !IsSurged(l.Pod) {
				add(l)
			}
		}
	}
	return away
}

// awaited reports whether the pod's replacement pod is still to be Ready, by the time that the pod itself
// once took, and until when; zero if that is not known.
func (l leaving) awaited(now time.Time) (until time.Time, awaited bool) {
	from, ok := l.began()
	switch {
	case !ok:
		return time.Time{}, false
	case l.alone && l.Gone.IsZero():
		return time.Time{}, true
	case l.alone:
		from = l.Gone.Add(endsAfter(l.Pod, 0))
	}
	startup, known := Startup(l.Pod)
	if !known {
		startup = unknownCycle
	}
	until = from.Add(min(startup, longestCycle) + turnaround)
	return until, now.Before(until)
}

// asSeen is the group with how long its pods take to end, as far as others of it have shown that.
func asSeen(group []wavePod, left []Leaving) []wavePod {
	var seen time.Duration
	for _, l := range left {
		seen = max(seen, l.took())
	}
	if seen == 0 {
		return group
	}
	group = slices.Clone(group)
	for i := range group {
		if group[i].ends > 0 {
			group[i].ends = min(group[i].ends, seen+endsAfter(group[i].Pod, 0))
		}
	}
	return group
}

// makesNextAtOnce are the controllers that make a pod's replacement as soon as it is terminating. Others wait
// until it has gone: a StatefulSet's next pod has its name.
var makesNextAtOnce = []string{"ReplicaSet", "ReplicationController", "Job", "CloneSet"}

// replacedAfter is how long the pod takes until its replacement pod can start, if it ends in that time; zero if
// that starts beside it.
func (p *planner) replacedAfter(pod *corev1.Pod) time.Duration {
	owner := metav1.GetControllerOf(pod)
	alone := owner != nil && !slices.Contains(makesNextAtOnce, owner.Kind)
	if alone || p.hasVolumeOfOneNode(pod) {
		return endsAfter(pod, Grace(pod))
	}
	return 0
}

// endsAfter is when nothing of the pod is left on its node, if it ends in that time.
func endsAfter(pod *corev1.Pod, ends time.Duration) time.Duration {
	if HasVolumes(pod) || slices.ContainsFunc(pod.Spec.Volumes, isDisk) {
		return ends + detaching
	}
	return ends
}

// hasVolumeOfOneNode reports whether the pod has a volume that one node has at a time, as far as is known:
// most are like that.
func (p *planner) hasVolumeOfOneNode(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, isDisk) ||
		slices.ContainsFunc(ClaimsOf(pod), func(claim types.NamespacedName) bool { return !p.Shared[claim] })
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
			canSurge := p.Policy.Strategy == StrategySurge && p.noSurge(pod, of, p.preferenceOf(pod)) == ""
			switch {
			case IsSurged(pod), canSurge && p.surgeKnown(pod):
				if turns[of] == nil {
					turns[of] = &surgeTurns{deployment: p.Deployments[of]}
				}
				turns[of].add(p, pod)
			case !canSurge && !s.Deadline.IsZero():
				pods = append(pods, p.wavePod(pod))
			}
		}
	}
	for _, of := range turns {
		late, by := of.assign(now)
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
	return wavePod{Pod: pod, latest: evictionDeadline(pod, p.Deadline, p.Policy.Margin), startup: took, ends: p.replacedAfter(pod)}
}

// surgeTurns are the turns of a Deployment's pods: maxSurge of them are surged at the same time, over
// all nodes, and the next when a replacement pod is available.
type surgeTurns struct {
	deployment DeploymentState
	began      []time.Time // of those that are surged: since when their replacement pods can have a node
	waiting    []wavePod
	all        []wavePod
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

// assign gives the turns to the most urgent first. It returns those whose turn comes too late, and when
// that has to be looked at again.
//
// A replacement that still boots is taken for one that is Ready now, so turns that are in use because
// of it end later and later. A pod that can still have its turn is not given up before that.
func (t *surgeTurns) assign(now time.Time) (late []wavePod, review time.Time) {
	took := cycle(t.all, 1, 2) + t.deployment.MinReady // some sooner, some later, and a pod waits for any of them
	// Pods that do not show yet that they are surged are among those that wait, and have a turn.
	free := slices.Repeat([]time.Time{now}, t.deployment.Slots+t.deployment.Surging)
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
	period := cycle(group, 3, 4) + ending(group, 3, 4)
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
func byLatest(a, b wavePod) int { return precedes(a.latest, a.Pod, b.latest, b.Pod) }

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
	return took[len(took)*part/of] + turnaround
}

// ending is the time after which so many of the group's pods have gone for whose end their replacement pods
// wait, such as three quarters; zero if those don't.
func ending(group []wavePod, part, of int) time.Duration {
	took := make([]time.Duration, len(group))
	for i, member := range group {
		took[i] = member.ends
	}
	slices.Sort(took)
	return took[len(took)*part/of]
}

const (
	// wavesFor is how old the waves can be that plans are made with. They depend on all
	// draining nodes, so they are worked out for all at once.
	wavesFor = 250 * time.Millisecond
	// wavesPause is for how long they are not worked out again, for each pod of those nodes. That takes a tenth
	// of it at most.
	wavesPause = 30 * time.Microsecond
)

// wavesStale has the waves worked out again soon.
func (f *Fleet) wavesStale() { f.wavesOld, f.wavesAt = true, f.wavesFloor }

// planWaves works the waves out again if they are old, and has the nodes planned again whose pods have to
// go earlier because of it.
func (f *Fleet) planWaves() {
	if !f.wavesOld || f.now.Before(f.wavesAt) {
		return
	}
	f.wavesOld = false
	if f.policy.Strategy == StrategyAtOnce {
		return
	}
	var budgets []*policyv1.PodDisruptionBudget
	for _, of := range f.budgets {
		for _, b := range of.list {
			if waveSize(b) > 0 {
				budgets = append(budgets, b)
			}
		}
	}
	fresh, pods := Waves{}, 0
	if len(budgets) > 0 {
		slices.SortFunc(budgets, func(a, b *policyv1.PodDisruptionBudget) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
		})
		var nodes []Situation
		for _, n := range slices.SortedFunc(maps.Values(f.nodes), byNode) {
			if n.draining && !n.canceled && !n.known.IsZero() {
				sit := n.sit
				f.renew(n, &sit, n.state)
				sit.Pods = n.list()
				pods += len(sit.Pods)
				nodes = append(nodes, sit)
			}
		}
		fresh = planWaves(f.now, nodes, budgets)
	}
	f.wavesFloor = f.now.Add(time.Duration(pods) * wavesPause)
	f.wavesAt = interruption.Later(f.now.Add(wavesFor), f.wavesFloor)
	was := f.waves
	f.waves, f.wavesAgain = fresh, fresh.until()
	if len(fresh.Starts) == 0 {
		return // no node has to go earlier, and the loop would visit every pod each time a node begins
	}
	for _, n := range f.nodes {
		for uid := range n.tracked {
			at, ok := fresh.Starts[uid]
			if before, had := was.Starts[uid]; ok && (!had || at.Before(before)) {
				f.plans.sooner(n, f.now)
				break
			}
		}
	}
}
