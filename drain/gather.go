package drain

import (
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
)

// What is known about a node, and the plans that are made from it.

// sources are where a plan's situation is read; false is what is not known yet, and is being looked up.
type sources struct {
	asks     func(namespace types.NamespacedName) (Preferences, bool)
	budgets  func(namespace types.NamespacedName) ([]*policyv1.PodDisruptionBudget, bool)
	around   func(namespace types.NamespacedName) (Surroundings, bool)
	workload func(types.NamespacedName) (Workload, bool)
	claim    func(types.NamespacedName) (claim, bool)
	allReady func(types.NamespacedName) time.Time
}

// gather adds to a situation with its node's pods what else a plan for them is made from.
func (sit *Situation) gather(now time.Time, from sources) {
	sit.Workloads, sit.Shared = map[types.NamespacedName]Workload{}, map[types.NamespacedName]bool{}
	sit.Namespaces, sit.Surroundings = map[string]Preferences{}, map[string]Surroundings{}
	sit.AllReady = map[types.NamespacedName]time.Time{}
	p := planner{Situation: *sit}
	read := map[string]bool{} // the budgets of which namespaces
	for _, pod := range sit.Pods {
		namespace := types.NamespacedName{Namespace: pod.Namespace}
		stays := p.notOurs(pod) != ""
		if !stays || pod.Annotations[NoticeAnnotation] != "" {
			find(sit.Namespaces, pod.Namespace, namespace, from.asks)
		}
		if stays {
			continue
		}
		if !read[pod.Namespace] {
			read[pod.Namespace] = true
			budgets, _ := from.budgets(namespace)
			sit.Budgets = append(sit.Budgets, budgets...)
		}
		name := DeploymentOf(pod)
		if name.Name == "" || !IsSurged(pod) && (sit.Policy.Strategy != Surge || noSurgeByItself(pod, now) != "") {
			continue
		}
		find(sit.Workloads, name, name, from.workload)
		if _, known := sit.Workloads[name]; known && IsSurged(pod) && keepsOthersAway(pod) {
			sit.AllReady[name] = from.allReady(name)
		}
		find(sit.Surroundings, pod.Namespace, namespace, from.around)
		for _, name := range ClaimsOf(pod) {
			if c, ok := from.claim(name); ok {
				sit.Shared[name] = c.shared
			}
		}
	}
}

// find adds to what is known what is not there and is known by now.
func find[K comparable, T any](known map[K]T, key K, name types.NamespacedName, read func(types.NamespacedName) (T, bool)) {
	if _, ok := known[key]; ok {
		return
	}
	if value, ok := read(name); ok {
		known[key] = value
	}
}

// situation gathers what a plan is made from, and starts looking up what is missing.
func (s *session) situation(in Interruption) Situation {
	d := s.drainer
	sit := Situation{Policy: d.opts.Policy, Pods: s.watch.All()}
	s.renew(&sit, in)
	sit.gather(time.Now(), sources{
		asks: cachedFor(s, d.preferences), around: cachedFor(s, d.around), claim: cachedFor(s, d.claims), allReady: d.allReady,
		budgets: func(in types.NamespacedName) ([]*policyv1.PodDisruptionBudget, bool) {
			d.budgets.use(s.ctx, s.node, in.Namespace)
			return d.budgets.list(in.Namespace), true
		},
		workload: func(name types.NamespacedName) (Workload, bool) {
			d.deployments.use(s.ctx, s.node, name)
			w, ok := d.deployments.workload(name)
			return w, ok && d.budgets.synced(name.Namespace) // a budget that is not known yet might select by what a surge changes
		},
	})
	s.note(func() { s.gathered, s.gatheredAt = sit, time.Now() })
	return sit
}

func cachedFor[T any](s *session, cache *objectCache[T]) func(types.NamespacedName) (T, bool) {
	return func(name types.NamespacedName) (T, bool) { return cache.get(s.ctx, name, s.node) }
}

// allReady is since when the replacements of all nodes with pods of the Deployment are Ready;
// zero if some are not.
func (d *Drainer) allReady(name types.NamespacedName) (since time.Time) {
	for _, node := range d.deployments.usersOf(name) {
		d.mu.Lock()
		s := d.sessions[node]
		d.mu.Unlock()
		if s == nil {
			continue // its drain has ended
		}
		s.mu.Lock()
		at := s.ready
		s.mu.Unlock()
		if at.IsZero() {
			return time.Time{}
		}
		since = interruption.Later(since, at)
	}
	return since
}

// lookFor is how long a first plan waits to learn enough about the pods' namespaces,
// Deployments and budgets to say which pods are surged, and which stay.
const lookFor = 500 * time.Millisecond

func (s *session) view(now time.Time, in Interruption) (View, bool) {
	sit := s.situation(in)
	s.decideGangs(now, sit.Departures())
	sit.Gangs = s.drainer.gangs.Of(s.node)
	v := ViewOf(Plan(now, sit))
	v.of = in
	complete := true
	p := planner{Situation: sit}
	for _, pod := range v.Moving {
		_, asked := sit.Namespaces[pod.Namespace]
		complete = complete && asked && s.drainer.budgets.synced(pod.Namespace) && (!v.Surged[pod.UID] || p.known(pod))
	}
	s.opened()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known.IsZero() {
		s.known = now
		s.drainer.starts.stale()
		if !complete {
			time.AfterFunc(lookFor, func() { s.drainer.opts.Notify(s.node) })
		}
	}
	return v, complete || now.Sub(s.known) >= lookFor
}
