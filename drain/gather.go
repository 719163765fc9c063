package drain

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

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
		for _, name := range claimsOf(pod) {
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
	sit := Situation{Policy: d.opts.Policy, Pods: s.pods()}
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

// renew brings up to date what of a situation this process knows by itself.
func (s *session) renew(sit *Situation, in Interruption) {
	sit.Interruption, sit.Waves, sit.Gangs = in, s.drainer.starts.get(), s.drainer.gangs.Of(s.node)
	sit.Refused, sit.Fixed = map[types.UID]bool{}, map[types.UID]string{}
	s.mu.Lock()
	defer s.mu.Unlock()
	sit.Ready, sit.Answers = s.ready, maps.Clone(s.answers)
	for uid, t := range s.tracked {
		if t.refusal != "" {
			sit.Refused[uid] = true
		}
		if t.fixed != "" {
			sit.Fixed[uid] = t.fixed
		}
	}
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

// gatheredFor is how old a situation can be that a single decision is made from. To gather it looks at
// all pods of the node.
const gatheredFor = 250 * time.Millisecond

// current returns the pod as it is now; false if it has gone, even if another has its name.
func (s *session) current(pod *corev1.Pod) (*corev1.Pod, bool) {
	now, ok := s.watch.Get(cache.MetaObjectToName(pod).String())
	return now, ok && now.UID == pod.UID
}

// decision is the current plan for the pod of a task that has reached the head of the queue: the
// deadline, the pod or its Deployment might have changed since it was put there, so these are
// read again.
func (s *session) decision(t *task) Decision {
	now := time.Now()
	current, ok := s.current(t.pod)
	if !ok {
		return Decision{Pod: t.pod, Action: Skip, Reason: "gone, or another pod has its name"}
	}
	s.mu.Lock()
	in, sit, old := s.in, s.gathered, now.Sub(s.gatheredAt) >= gatheredFor
	s.mu.Unlock()
	if old {
		sit = s.situation(in)
	} else {
		s.renew(&sit, in)
		if _, known := sit.Workloads[t.workload]; known {
			if w, ok := s.drainer.deployments.workload(t.workload); ok {
				sit.Workloads = maps.Clone(sit.Workloads)
				sit.Workloads[t.workload] = w
			}
		}
	}
	decision := newPlanner(now, sit).decide(current)
	t.asked, t.latest = now, decision.due()
	return decision
}

// PodsOn reads the pods of a node.
func PodsOn(ctx context.Context, client rest.Interface, node string) ([]*corev1.Pod, error) {
	list := &corev1.PodList{}
	// "0" is answered from the watch cache's index of nodes, and is no quorum read.
	err := client.Get().Resource("pods").Param("fieldSelector", "spec.nodeName="+node).Param("resourceVersion", "0").Do(ctx).Into(list)
	if err != nil {
		return nil, fmt.Errorf("list pods on node %q: %w", node, err)
	}
	pods := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[i] = &list.Items[i]
	}
	return pods, nil
}

// Survey reads once what a plan for the node is made from, for a dry run. It watches nothing
// and changes nothing. Pods of other nodes under the same budgets are not included.
func Survey(ctx context.Context, pods, budgets rest.Interface, objects dynamic.Interface, node string, in Interruption, policy Policy) (Situation, error) {
	sit := Situation{Interruption: in, Policy: policy}
	var err error
	if sit.Pods, err = PodsOn(ctx, pods, node); err != nil {
		return sit, err
	}
	sit.gather(time.Now(), sources{
		asks: atOnce(ctx, &err, readPreferences(objects)), around: atOnce(ctx, &err, readSurroundings(objects)), claim: atOnce(ctx, &err, readClaim(objects)),
		budgets: atOnce(ctx, &err, readBudgets(budgets)), workload: atOnce(ctx, &err, readWorkload(pods, objects)),
		allReady: func(types.NamespacedName) time.Time { return time.Time{} },
	})
	if err != nil {
		return sit, err
	}
	sit.Gangs = sit.Departures()
	sit.Waves = PlanWaves(time.Now(), []Situation{sit}, sit.Budgets)
	return sit, nil
}

// atOnce reads when it is asked, until the first error.
func atOnce[T any](ctx context.Context, failed *error, read func(context.Context, types.NamespacedName) (T, error)) func(types.NamespacedName) (T, bool) {
	return func(name types.NamespacedName) (value T, ok bool) {
		if *failed == nil {
			value, *failed = read(ctx, name)
		}
		return value, *failed == nil
	}
}

func readBudgets(client rest.Interface) func(context.Context, types.NamespacedName) ([]*policyv1.PodDisruptionBudget, error) {
	return func(ctx context.Context, in types.NamespacedName) (found []*policyv1.PodDisruptionBudget, err error) {
		list := &policyv1.PodDisruptionBudgetList{}
		if err := client.Get().Namespace(in.Namespace).Resource("poddisruptionbudgets").Do(ctx).Into(list); err != nil {
			return nil, fmt.Errorf("list disruption budgets of namespace %q: %w", in.Namespace, err)
		}
		for i := range list.Items {
			found = append(found, &list.Items[i])
		}
		return found, nil
	}
}

func readWorkload(pods rest.Interface, objects dynamic.Interface) func(context.Context, types.NamespacedName) (Workload, error) {
	return func(ctx context.Context, name types.NamespacedName) (Workload, error) {
		u, err := objects.Resource(deploymentResource).Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{ResourceVersion: "0"})
		if apierrors.IsNotFound(err) {
			return Workload{}, nil
		}
		if err != nil {
			return Workload{}, fmt.Errorf("read Deployment %s: %w", name, err)
		}
		d, list := asDeployment(u), &corev1.PodList{}
		if d.Spec.Selector == nil {
			return Workload{}, fmt.Errorf("read Deployment %s: %w", name, d.unreadable())
		}
		err = pods.Get().Namespace(name.Namespace).Resource("pods").Param("labelSelector", metav1.FormatLabelSelector(d.Spec.Selector)).
			Param("resourceVersion", "0").Do(ctx).Into(list)
		if err != nil {
			return Workload{}, fmt.Errorf("list pods of Deployment %s: %w", name, err)
		}
		var theirs []*Member
		for i := range list.Items {
			theirs = append(theirs, MemberOf(&list.Items[i]))
		}
		w, _ := NewTally().count(time.Now(), d, theirs)
		return w, nil
	}
}
