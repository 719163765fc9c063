package drain

import (
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
)

// situation gathers what a plan is made from, and starts looking up what is missing.
func (s *session) situation(in plan.NodeState) plan.Situation {
	d := s.drainer
	sit := plan.Situation{Policy: d.opts.Policy, Pods: s.watch.All()}
	s.renew(&sit, in)
	sit.Gather(time.Now(), plan.Sources{
		Preferences: cachedFor(s, d.preferences),
		Constraints: cachedFor(s, d.around),
		Claim:       cachedFor(s, d.claims),
		AllReady:    d.allReady,
		Budgets: func(in types.NamespacedName) ([]*policyv1.PodDisruptionBudget, bool) {
			d.budgets.use(s.ctx, s.node, in.Namespace)
			return d.budgets.list(in.Namespace), true
		},
		Deployment: func(name types.NamespacedName) (plan.DeploymentState, bool) {
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

func (s *session) view(now time.Time, in plan.NodeState) (plan.View, bool) {
	sit := s.situation(in)
	s.decideGangs(now, sit.Departures())
	sit.Gangs = s.drainer.gangs.concerning(s.node)
	v := plan.ViewOf(plan.Plan(now, sit))
	v.For = in
	complete := true
	for _, pod := range v.Moving {
		_, asked := sit.Namespaces[pod.Namespace]
		complete = complete && asked && s.drainer.budgets.synced(pod.Namespace) && (!v.Surged[pod.UID] || sit.SurgeKnown(pod))
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
