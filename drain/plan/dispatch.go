package plan

import (
	"container/heap"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
)

// Request is what to ask of the API server now.
type Request struct {
	Node string
	Decision
	// Granted: the pod's disruption budget was charged for it some time ago, and the eviction not carried
	// out. It is carried out if it is refused again.
	Granted bool
	// Within is how long the reply is waited for.
	Within time.Duration
	// Becomes is the pod once its surge has begun or is undone; nil for any other action.
	Becomes *corev1.Pod

	of    *tracked
	seat  *seat
	lane  *group // that it is under way in; nil if in none
	began time.Time
}

// groupKey is what the pods of a group wait for.
type groupKey struct {
	wait waitFor
	of   types.NamespacedName // the Deployment, or the namespace without a name
	by   types.UID            // the disruption budget
}

type waitFor int

const (
	aTurnToSurge waitFor = iota // of their Deployment
	aReplacement                // for which of their Deployment's pods that are surged
	theirBudget
	nothing // but a seat
)

// group is of pods for which a request is to be made, and that need the same for it.
//
// The evictions under one disruption budget go one after the other, whatever nodes their pods are on.
// Each of them writes the budget's status; if two do so at the same time, the API server makes one wait
// for half a second before it tries again, up to twenty times. Many at once are slower than one by one,
// and some time out.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/registry/core/pod/storage/eviction.go
//
// If they take longer than that, as they wait for an admission webhook, as many are under way as the
// budget allows. They begin a moment apart, so that they don't all come to the budget at the same time, and
// farther apart while they still meet there: see [lane].
type group struct {
	key    groupKey
	pods   urgency // the most urgent first
	parked []*tracked
	tried  int // how many have found nothing left since the Deployment was counted

	since     time.Time // when the first pod came
	gathering bool      // none goes yet, as more urgent ones can still come
	lane      lane
}

// The nodes that are lost together are planned one by one. Where not all of their pods can go, those
// that are due first go first, so they have to be known.
const (
	together = 300 * time.Millisecond // from the first to the last of such nodes
	planned  = time.Second            // until a node's first plan is carried out, at most
	sameTime = 100 * time.Millisecond // until all plans are carried out that are due at one time
)

// keyFor is the group of a pod with that decision.
func (f *Fleet) keyFor(t *tracked, d Decision) groupKey {
	switch {
	case d.Waits && (t.surged || IsSurged(t.pod)):
		return groupKey{wait: aReplacement, of: d.Deployment}
	case d.Waits, d.Action == SurgeNow:
		return groupKey{wait: aTurnToSurge, of: d.Deployment}
	case d.Action == Evict:
		if budgets := f.budgetsOf(t.pod); len(budgets) > 0 {
			return groupKey{theirBudget, types.NamespacedName{Namespace: t.pod.Namespace}, budgets[0].UID}
		}
	}
	return groupKey{wait: nothing, of: types.NamespacedName{Namespace: t.pod.Namespace}}
}

// place has the pod wait in its group, or in none.
func (f *Fleet) place(t *tracked) {
	if !f.wantsRequest(t) {
		f.unplace(t)
		return
	}
	key := f.keyFor(t, t.decision)
	if t.group != nil && t.group.key == key {
		if t.index >= 0 {
			heap.Fix(&t.group.pods, t.index)
		}
		return
	}
	f.unplace(t)
	g := f.groupFor(key)
	if len(g.pods) == 0 && len(g.parked) == 0 && g.lane.underWay == 0 {
		g.since, g.gathering = f.now, f.gathers(g, t)
	}
	t.group = g
	heap.Push(&g.pods, t)
}

func (f *Fleet) groupFor(key groupKey) *group {
	g := f.groups[key]
	if g == nil {
		g = &group{key: key}
		f.groups[key] = g
	}
	return g
}

// park has the pod wait until its Deployment is counted again, as what it needs of that is used up. If it stayed in the
// group of its budget, nothing would end the wait.
func (f *Fleet) park(t *tracked) {
	d := t.decision
	d.Waits = true
	if key := f.keyFor(t, d); key != t.group.key {
		f.unplace(t)
		t.group = f.groupFor(key)
	} else {
		heap.Remove(&t.group.pods, t.index)
	}
	t.index = -1
	t.group.parked = append(t.group.parked, t)
	t.group.tried++
}

func (f *Fleet) unplace(t *tracked) {
	g := t.group
	if g == nil {
		return
	}
	t.group = nil
	if t.index >= 0 {
		heap.Remove(&g.pods, t.index)
	} else {
		for i, other := range g.parked {
			if other == t {
				g.parked = append(g.parked[:i], g.parked[i+1:]...)
				break
			}
		}
	}
	f.tidy(g)
}

// tidy forgets a group that nobody waits in.
func (f *Fleet) tidy(g *group) {
	if len(g.pods) == 0 && len(g.parked) == 0 && g.lane.underWay == 0 && f.groups[g.key] == g {
		delete(f.groups, g.key)
	}
}

// gathers reports whether the group's first pod waits for others that might be more urgent.
func (f *Fleet) gathers(g *group, t *tracked) bool {
	switch g.key.wait {
	case aTurnToSurge:
		return true
	case theirBudget:
		allowed, expected := f.allows(g)
		return t.attempt == 0 && allowed < expected
	}
	return false
}

// allows is how many pods the group's budget lets go now, and how many it covers.
func (f *Fleet) allows(g *group) (allowed, expected int) {
	if of := f.budgets[g.key.of.Namespace]; of != nil {
		for _, b := range of.list {
			if b.UID == g.key.by {
				return int(b.Status.DisruptionsAllowed), int(b.Status.ExpectedPods)
			}
		}
	}
	return 0, 0
}

// opensAt is when the group lets its next pod go, which is not after now if it does; never if nothing that is
// known brings that about.
func (f *Fleet) opensAt(g *group) (at time.Time, never bool) {
	if g.gathering {
		if at := f.gatheredAt(g); at.After(f.now) {
			return at, false
		}
		g.gathering = false
	}
	switch g.key.wait {
	case aTurnToSurge, aReplacement:
		of := f.deployments[g.key.of]
		if of == nil {
			return time.Time{}, true
		}
		offers := of.state.offers(SurgeNow)
		if g.key.wait == aReplacement {
			offers = of.state.Evictable + of.state.Excess + of.state.Lacking
		}
		return time.Time{}, g.tried >= offers
	case theirBudget:
		allowed, _ := f.allows(g)
		return g.lane.opensAt(allowed), false
	}
	return time.Time{}, false
}

// gatheredAt is when those have come that might be more urgent.
func (f *Fleet) gatheredAt(g *group) (at time.Time) {
	if g.key.wait == theirBudget {
		at = g.since.Add(sameTime)
	}
	if f.now.Before(f.newest.Add(planned)) {
		at = interruption.Later(at, f.nodesGatheredAt())
	}
	if most := g.since.Add(planned); at.After(most) {
		return most
	}
	return at
}

// nodesGatheredAt is when those nodes have begun and are planned that are lost together.
func (f *Fleet) nodesGatheredAt() time.Time {
	if f.gatheredFor.Equal(f.now) {
		return f.gatheredUntil
	}
	f.gatheredFor, f.gatheredUntil = f.now, time.Time{}
	for _, n := range f.nodes {
		until := n.began.Add(together)
		if !(n.draining && n.listed) && f.now.Before(n.began.Add(planned)) {
			until = interruption.Later(until, f.now.Add(sameTime))
		}
		f.gatheredUntil = interruption.Later(f.gatheredUntil, until)
	}
	return f.gatheredUntil
}

// dispatch begins the requests that can be begun now, the most urgent first, and returns when others might.
func (f *Fleet) dispatch() (next time.Time) {
	for f.limiter.free() {
		next = time.Time{}
		var best *group
		for _, g := range f.groups {
			if len(g.pods) == 0 || !f.limiter.room(g.key.of.Namespace) {
				continue
			}
			at, never := f.opensAt(g)
			switch {
			case never:
			case at.After(f.now):
				next = interruption.Earlier(next, at)
			case best == nil, g.pods[0].before(best.pods[0]):
				best = g
			}
		}
		if best == nil {
			return next
		}
		f.try(best.pods[0])
	}
	return next
}

// send begins the requests that can begin now, more at once if pods would be late, and returns when others might.
func (f *Fleet) send() (next time.Time) {
	lent := f.limiter.lend(f.now)
	next = f.dispatch()
	for f.limiter.hurry(f.now, f.pace()) {
		next = f.dispatch()
	}
	return interruption.Earlier(lent, next)
}

// pace is how many requests have to be under way so that all that can go now do so within half of the time that the
// most urgent one has left, if an answer takes as long as the last ones did.
//
// If the API server takes 200 ms for each, 32 at once are only 160 a second, however many it has room for. With 15,000
// pods whose replacements are ready at the same time, some would be asked to leave too late.
func (f *Fleet) pace() int {
	waiting, latest := 0, time.Time{}
	for _, g := range f.groups {
		if len(g.pods) == 0 {
			continue
		}
		if at, never := f.opensAt(g); never || at.After(f.now) {
			continue
		}
		waiting += len(g.pods)
		latest = interruption.Earlier(latest, g.pods[0].decision.Latest)
	}
	if latest.IsZero() || f.took == 0 {
		return 0
	}
	return int(float64(waiting) * float64(f.took) / float64(max(latest.Sub(f.now)/2, f.took)))
}

// try decides about the pod as things are now, and begins its request, or has it wait for something else.
func (f *Fleet) try(t *tracked) {
	n, g := t.node, t.group
	f.renew(n, &n.sit, n.state)
	if of := f.deployments[t.decision.Deployment]; of != nil && n.sit.Deployments != nil {
		if _, known := n.sit.Deployments[t.decision.Deployment]; known {
			n.sit.Deployments[t.decision.Deployment] = of.state
		}
	}
	current := n.pods[t.pod.UID]
	if current == nil { // it has gone
		t.gone, t.goneAt = true, f.now
		f.unplace(t)
		return
	}
	d := decide(f.now, n.sit, current)
	t.pod, t.decision, t.due = current, d, d.due()
	if !f.wantsRequest(t) {
		f.unplace(t) // the next plan says what follows
		f.planWhenDue(n, d)
		return
	}
	if key := f.keyFor(t, d); key != g.key {
		f.place(t)
		return
	}
	if d.Waits || !f.reserve(d) {
		f.park(t)
		return
	}
	f.begin(t, d)
}

// planWhenDue has the node planned again when the decision changes by the clock: its last plan was made with other
// waves, for example, and counted on the pod's going now.
func (f *Fleet) planWhenDue(n *node, d Decision) {
	for _, at := range []time.Time{d.At, d.Until, d.Latest} {
		if at.After(f.now) {
			f.plans.sooner(n, at)
		}
	}
}

func (f *Fleet) begin(t *tracked, d Decision) {
	r := Request{
		Node:     t.node.name,
		Decision: d,
		Within:   answersWithin(f.now, d, t.unanswered),
		of:       t,
		began:    f.now,
	}
	switch d.Action {
	case Evict:
		r.Granted = granted(t.pod, f.budgetsOf(t.pod), f.now)
	case SurgeNow:
		r.Becomes = AsSurged(d.Pod, f.now)
	case Return:
		r.Becomes = AsReturned(d.Pod)
	}
	var awake time.Duration
	if g := t.group; g.key.wait == theirBudget {
		g.lane.begin(f.now)
		r.lane, awake = g, g.lane.awake()
	}
	r.seat = f.limiter.begin(f.now, t.pod.Namespace, awake)
	f.underWay[t.pod.UID] = true
	t.node.underWay++
	f.unplace(t)
	f.todo.Requests = append(f.todo.Requests, r)
}

// reopen lets the pods of a Deployment try again that have found nothing left.
func (f *Fleet) reopen(name types.NamespacedName) {
	for _, what := range []waitFor{aTurnToSurge, aReplacement} {
		g := f.groups[groupKey{wait: what, of: name}]
		if g == nil {
			continue
		}
		g.tried = 0
		for _, t := range g.parked {
			heap.Push(&g.pods, t)
		}
		g.parked = nil
	}
}

// wait has the pod's next attempt wait until then; zero ends the wait.
func (f *Fleet) wait(t *tracked, until time.Time) {
	t.retryAt = until
	in := f.waiting[t.pod.Namespace]
	if until.IsZero() {
		f.retries.drop(t)
		if delete(in, t); in != nil && len(in) == 0 {
			delete(f.waiting, t.pod.Namespace)
		}
		return
	}
	f.retries.set(t, until)
	if in == nil {
		in = map[*tracked]struct{}{}
		f.waiting[t.pod.Namespace] = in
	}
	in[t] = struct{}{}
}

// wake ends the pod's wait for its next attempt.
func (f *Fleet) wake(t *tracked) {
	f.wait(t, time.Time{})
	f.place(t)
}

// before reports whether the pod goes first where not both can.
func (t *tracked) before(other *tracked) bool {
	return precedes(t.due, t.pod, other.due, other.pod) < 0
}

// urgency has the most urgent first, see [precedes].
type urgency []*tracked

func (u urgency) Len() int           { return len(u) }
func (u urgency) Less(i, j int) bool { return u[i].before(u[j]) }
func (u urgency) Swap(i, j int)      { u[i], u[j] = u[j], u[i]; u[i].index, u[j].index = i, j }
func (u *urgency) Push(x any) {
	t := x.(*tracked)
	t.index = len(*u)
	*u = append(*u, t)
}
func (u *urgency) Pop() any {
	old := *u
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*u = old[:len(old)-1]
	last.index = -1
	return last
}
