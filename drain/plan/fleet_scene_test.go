package plan

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
)

// scene is a cluster in virtual time whose nodes are lost, and a Fleet that drains them. What it shows comes
// late, as watches do, and what it answers as well.
type scene struct {
	t      *testing.T
	fleet  *Fleet
	random *rand.Rand
	start  time.Time
	now    time.Time
	agenda happenings
	seq    int

	policy   Policy
	replies  time.Duration // the longest
	watches  time.Duration // the longest delay
	takes    time.Duration // each request, if that is not random
	lost     bool          // the answers to requests
	denied   string        // the pod that cannot be surged
	denials  int           // how often; zero: always
	internal bool          // its replies are internal errors
	faults   int           // of 100 requests, how many fail for no reason of their own
	pods     map[types.UID]*livePod
	made     int
	budgets  map[string]*policyv1.PodDisruptionBudget // by app
	webs     map[types.NamespacedName]*Deployment
	nodes    map[string]NodeState
	ready    time.Time // from when on replacement pods find a node
	startup  time.Duration
	watched  map[Subject]bool
	evicted  map[types.UID]int  // accepted
	surging  map[types.UID]bool // asked for, and not answered
	requests []string
	first    map[types.UID]time.Time // of a pod's first request
	began    map[string]time.Time    // when a node was interrupted
	underWay map[string][]time.Time  // when the evictions of an app began that are under way
	over     bool                    // no drain begins any more
	wakes    int
	wakeAt   time.Time
}

type livePod struct {
	*corev1.Pod
	app     string
	healthy bool
	ends    time.Duration // how long it takes to stop
}

type happening struct {
	at  time.Time
	seq int
	do  func()
}

type happenings []happening

func (h happenings) Len() int { return len(h) }
func (h happenings) Less(i, j int) bool {
	return h[i].at.Before(h[j].at) || h[i].at.Equal(h[j].at) && h[i].seq < h[j].seq
}
func (h happenings) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *happenings) Push(x any)   { *h = append(*h, x.(happening)) }
func (h *happenings) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

func newScene(t *testing.T, seed uint64, policy Policy) *scene {
	s := &scene{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), start: now, now: now, policy: policy,
		pods: map[types.UID]*livePod{}, budgets: map[string]*policyv1.PodDisruptionBudget{}, webs: map[types.NamespacedName]*Deployment{},
		nodes: map[string]NodeState{}, watched: map[Subject]bool{}, evicted: map[types.UID]int{}, surging: map[types.UID]bool{},
		first: map[types.UID]time.Time{}, began: map[string]time.Time{}, underWay: map[string][]time.Time{},
		replies: 5 * time.Millisecond, watches: 5 * time.Millisecond, startup: 5 * time.Second,
	}
	s.fleet = NewFleet(policy, 32, seed)
	return s
}

func (s *scene) in(d time.Duration, do func()) {
	s.seq++
	heap.Push(&s.agenda, happening{s.now.Add(d), s.seq, do})
}

func (s *scene) upTo(d time.Duration) time.Duration {
	return time.Duration(s.random.Int64N(int64(d) + 1))
}

// show has the Fleet see something, as late as a watch of that subject shows it, in order.
func (s *scene) show(of Subject, e Event) {
	s.in(s.watches, func() {
		if s.watched[of] {
			s.fleet.Apply(s.now, e)
		}
	})
}

// until plays up to a moment of the story.
func (s *scene) until(at time.Duration) {
	end := s.start.Add(at)
	s.step()
	for {
		next := end
		if len(s.agenda) > 0 && s.agenda[0].at.Before(next) {
			next = s.agenda[0].at
		}
		if wake := s.wakeAt; !wake.IsZero() && wake.Before(next) {
			next = wake
		}
		if next.After(s.now) {
			s.now, s.wakes = next, 0
		}
		for len(s.agenda) > 0 && !s.agenda[0].at.After(s.now) {
			heap.Pop(&s.agenda).(happening).do()
		}
		s.step()
		if !s.now.Before(end) {
			return
		}
		if s.wakes++; s.wakes > 10000 {
			s.t.Fatalf("after %s it asks to be woken at once, again and again", s.now.Sub(s.start))
		}
	}
}

// step has the Fleet say what to do, and does it.
func (s *scene) step() {
	todo := s.fleet.Next(s.now)
	s.wakeAt = todo.Wake
	for _, of := range todo.Unwatch {
		delete(s.watched, of)
	}
	for _, of := range todo.Watch {
		s.watched[of] = true
		s.in(s.upTo(s.watches), func() { s.list(of) })
	}
	for _, of := range todo.LookUp {
		s.in(s.upTo(s.replies), func() {
			if s.random.IntN(100) < s.faults {
				s.fleet.Apply(s.now, LookUpFailed{of})
				return
			}
			for _, e := range s.all(of) {
				s.fleet.Apply(s.now, e)
			}
		})
	}
	for _, node := range todo.PutBack {
		s.in(s.upTo(s.replies), func() {
			s.fleet.Apply(s.now, PutBack{Node: node, Failed: s.random.IntN(100) < s.faults})
		})
	}
	for _, r := range todo.Requests {
		s.request(r)
	}
	for _, n := range s.fleet.nodes {
		for _, t := range n.tracked {
			if t.group == nil && s.fleet.wantsRequest(t) {
				s.t.Errorf("%s: %s waits for its request in no group: %s, %s", s.now.Sub(s.start), t.pod.Name, t.decision.Action, t.decision.Reason)
			}
		}
	}
	for key, g := range s.fleet.groups {
		if len(g.parked) > 0 && key.wait != aTurnToSurge && key.wait != aReplacement {
			s.t.Errorf("%s: %s is parked where nothing wakes it: %+v", s.now.Sub(s.start), g.parked[0].pod.Name, key)
		}
	}
	if !todo.Wake.IsZero() && !todo.Wake.After(s.now) {
		return // it wants to be asked again
	}
	if again := s.fleet.Next(s.now); len(again.Requests) > 0 {
		s.t.Errorf("%s: asked twice at one moment, it has more requests: %s %s (%s)", s.now.Sub(s.start), again.Requests[0].Action, again.Requests[0].Pod.Name, again.Requests[0].Reason)
	}
}

// list shows all that there is of a subject.
func (s *scene) list(of Subject) {
	if !s.watched[of] {
		return
	}
	for _, e := range s.all(of) {
		s.fleet.Apply(s.now, e)
	}
}

// all are the events that show that.
func (s *scene) all(of Subject) (shown []Event) {
	switch of.Kind {
	case PodsOfNode:
		for _, p := range s.pods {
			if p.Spec.NodeName == of.Name.Name {
				shown = append(shown, PodSeen{Node: of.Name.Name, After: p.Pod})
			}
		}
		return append(shown, PodsListed{of.Name.Name})
	case Budgets:
		for _, b := range s.budgets {
			shown = append(shown, BudgetSeen{nil, b})
		}
		return append(shown, BudgetsListed{of.Name.Namespace})
	case DeploymentOfPod:
		shown = append(shown, DeploymentSeen{of.Name, s.webs[of.Name]})
		for _, p := range s.pods {
			if p.app == of.Name.Name {
				shown = append(shown, ReplicaSeen{of.Name, nil, ReplicaOf(p.Pod)})
			}
		}
		return append(shown, ReplicasListed{of.Name})
	case PreferencesOfNamespace:
		return []Event{LookedUp{of, Preferences{}}}
	case ConstraintsOfNamespace:
		return []Event{LookedUp{of, NamespaceConstraints{}}}
	case ClaimOfPod:
		return []Event{LookedUp{of, Claim{}}}
	}
	return nil
}

// request answers one.
func (s *scene) request(r Request) {
	p := s.pods[r.Pod.UID]
	s.requests = append(s.requests, fmt.Sprintf("%s %s %s", s.now.Sub(s.start), r.Action, r.Pod.Name))
	if s.first[r.Pod.UID].IsZero() && r.Action != SurgeNow {
		s.first[r.Pod.UID] = s.now
	}
	late, began := s.now.Sub(r.Latest), s.began[r.Node]
	if first := s.first[r.Pod.UID]; first.Equal(s.now) && s.faults == 0 && s.budgets[p.app] == nil && !r.Latest.IsZero() &&
		r.Latest.After(began.Add(3*time.Second)) && late > time.Second {
		s.t.Errorf("%s: %s %s after %s's latest start", s.now.Sub(s.start), r.Action, late, r.Pod.Name)
	}
	if r.Action == Evict && s.budgets[p.app] != nil && s.fleet.budgetsIn("shop").listed {
		for _, other := range s.underWay[p.app] {
			if apart := s.now.Sub(other); apart < laneApart {
				s.t.Errorf("%s: an eviction of %s begins %s after another that is under way", s.now.Sub(s.start), p.app, apart)
			}
		}
		s.underWay[p.app] = append(s.underWay[p.app], s.now)
	}
	if r.Action == Force && (s.policy.Blocked != Delete || s.now.Before(r.Latest)) {
		s.t.Errorf("%s: %s is deleted past its budget, which nobody has asked for", s.now.Sub(s.start), r.Pod.Name)
	}
	if s.evicted[r.Pod.UID] > 0 {
		s.t.Errorf("%s: %s %s, and it was sent away before", s.now.Sub(s.start), r.Action, r.Pod.Name)
	}
	if r.Action == SurgeNow {
		s.surging[r.Pod.UID] = true
		surged := 0
		for _, p := range s.pods {
			if p.app == r.Deployment.Name && (IsSurged(p.Pod) || s.surging[p.UID]) && p.DeletionTimestamp == nil {
				surged++
			}
		}
		if most := s.webs[r.Deployment].maxSurge(); surged > most {
			s.t.Errorf("%s: %d pods of %s are surged, want at most %d", s.now.Sub(s.start), surged, r.Deployment.Name, most)
		}
	}
	asked := s.now
	reply := func(after time.Duration, outcome Outcome, reason string) {
		s.in(after, func() {
			s.underWay[p.app] = slices.DeleteFunc(s.underWay[p.app], asked.Equal)
			delete(s.surging, r.Pod.UID)
			s.fleet.Apply(s.now, Replied{Request: r, Did: r.Action, Reply: Reply{Outcome: outcome, Internal: s.internal, Reason: reason, OfBudget: outcome == Refused}})
		})
	}
	if s.random.IntN(100) < s.faults {
		reply(s.upTo(s.replies), Transient, "etcd is unreachable")
		return
	}
	if s.lost {
		reply(0, Unanswered, "not answered")
		return
	}
	takes := s.takes
	if takes == 0 {
		takes = s.upTo(s.replies)
	}
	s.in(takes/2, func() {
		b := s.budgets[p.app]
		switch {
		case s.pods[r.Pod.UID] == nil || p.DeletionTimestamp != nil && r.Action == SurgeNow:
			reply(takes/2, PodGone, "")
			return
		case r.Action == SurgeNow && r.Pod.Name == s.denied:
			if s.denials--; s.denials == 0 {
				s.denied = ""
			}
			reply(takes/2, Refused, "labels are fixed")
			return
		case r.Action == SurgeNow:
			was := p.Pod
			p.Pod = AsSurged(p.Pod, s.now)
			s.changed(was, p, false)
			s.replace(p.app)
			s.recount(p.app)
		case r.Action == Return:
			was := p.Pod
			p.Pod = AsReturned(p.Pod)
			s.changed(was, p, false)
		case p.DeletionTimestamp != nil:
		case r.Action == Evict && b != nil && p.healthy && b.Status.DisruptionsAllowed <= 0:
			reply(takes/2, Refused, "the budget needs them")
			return
		default:
			s.end(p, r.Grace)
		}
		if r.Action != SurgeNow && r.Action != Return {
			s.evicted[r.Pod.UID]++
		}
		reply(takes/2, Accepted, "")
	})
}

// cancel cancels a node's interruption, and perhaps has the node interrupted again after that.
func (s *scene) cancel(name string, again bool) {
	if s.over {
		return
	}
	s.fleet.Apply(s.now, Set{name, Wanted{Goal: Cancel}})
	if status, _ := s.fleet.Status(s.now, name); status.Canceled == nil {
		s.in(time.Second, func() { s.cancel(name, again) })
		return
	}
	s.fleet.Apply(s.now, Remove{name})
	delete(s.nodes, name)
	if again {
		s.drain(name, s.upTo(time.Minute), time.Minute)
	}
}

// drain has a node interrupted after a while.
func (s *scene) drain(name string, after, left time.Duration) {
	s.in(after, func() {
		if s.over {
			return
		}
		state := NodeState{Taint: taint, Since: s.now, Capacity: PendingCapacity}
		if left > 0 {
			state.Deadline = s.now.Add(left)
		}
		s.nodes[name], s.began[name] = state, s.now
		s.begin(name)
		s.in(max(0, s.ready.Sub(s.now)), func() {
			if _, interrupted := s.nodes[name]; interrupted {
				state.Capacity = ReadyCapacity
				s.nodes[name] = state
				s.begin(name)
			}
		})
	})
}

// begin has the node's pods leave as soon as enough is known, as the handler does.
func (s *scene) begin(name string) {
	if s.over {
		return
	}
	state, interrupted := s.nodes[name]
	if !interrupted {
		return
	}
	s.fleet.Apply(s.now, Set{name, Wanted{state, Look}})
	if _, ok := s.fleet.Status(s.now, name); ok {
		s.fleet.Apply(s.now, Set{name, Wanted{state, Drain}})
		return
	}
	s.in(50*time.Millisecond, func() { s.begin(name) })
}
