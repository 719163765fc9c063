// Package drain moves the pods off nodes that are about to end: it evicts them, and watches them go.
//
// Package plan decides which pods leave, in what order and by when. [Drainer] carries out the plans of
// any number of nodes at once. It keeps one watch for each draining node, one for the
// disruption budgets of each namespace with pods to move, two for each Deployment whose
// pods are surged, and one for all VolumeAttachments. Volume claims, the preferences of
// namespaces and what else is in them are looked up in the background, and kept for a
// while. Nothing else waits: a pod that is held, or refused by a
// disruption budget, is a timer or a watch event, never a goroutine or a worker.
//
// All nodes share one queue of requests, ordered by when each pod has to start leaving. As
// many are under way as the API server's priority and fairness lets through; one that is
// not answered for seconds makes room for another. A task asks again for its pod's
// decision when its turn comes. A node is planned again when something that its plan reads
// has changed: at once, or, where pods only go on leaving, within half a second and once
// for all of them.
//
// A Drainer holds no state that has to survive. A new process that is asked to drain the
// same node sees which pods are still there and goes on. It only waits for pods that are
// terminating, surged pods carry a label that says so, and every request carries the
// pod's UID, so nothing is done twice.
package drain

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"spot-handler/drain/fair"
	"spot-handler/drain/plan"
)

// Events notifies people about single pods. No method blocks, fails or calls the Drainer.
type Events interface {
	// EvictionBlocked: a disruption budget has held the pod back for seconds.
	EvictionBlocked(node string, pod *corev1.Pod, reason string)
	// EvictionForced: the pod was deleted past its disruption budget.
	EvictionForced(node string, pod *corev1.Pod, reason string)
	// PodLeft: the node ends with the pod on it.
	PodLeft(node string, pod *corev1.Pod, reason string)
	// AnnotationMeaningless: the pod, or its namespace, asks for something that nobody knows.
	AnnotationMeaningless(node string, pod *corev1.Pod, text string, ofNamespace bool)
}

// Options configure a Drainer.
type Options struct {
	// Pods and Budgets are the REST clients of the API groups core/v1 and policy/v1.
	// The generated clients are no use here: they retry by themselves what a
	// disruption budget refuses.
	Pods    rest.Interface
	Budgets rest.Interface
	// Dynamic reads what few plans need: Deployments, ReplicaSets, DaemonSets, volume claims,
	// VolumeAttachments and namespaces.
	Dynamic dynamic.Interface

	Policy plan.Policy

	// Notify is called with a node's name when anything about its drain may have
	// changed. It is called from any goroutine, often, and must not block.
	Notify func(node string)

	Events Events

	Registerer prometheus.Registerer
	Logger     zerolog.Logger
}

// requestsAtOnce is how many requests are under way at once, not counting those that have waited
// seconds for an answer.
const requestsAtOnce = 32

// Drainer drains nodes. Its methods are safe for concurrent use and none waits for
// a pod.
type Drainer struct {
	opts      Options
	evictions *prometheus.CounterVec

	queue *queue
	pace  *pace
	lanes *lanes

	budgets     *budgetWatch
	deployments *surgeWatch
	attached    *attachmentWatch
	starts      *waveStarts
	claims      *objectCache[plan.Claim]
	preferences *objectCache[plan.Preferences]          // of a namespace
	around      *objectCache[plan.NamespaceConstraints] // of a namespace
	gangs       *sharedGangs

	nodeWatches *fair.Lane // of the nodes' watches

	mu       sync.Mutex
	sessions map[string]*session
	newest   time.Time // when the last of them began
}

// New returns a Drainer. It makes no call and starts nothing.
func New(opts Options) *Drainer {
	d := &Drainer{
		opts: opts, queue: newQueue(), nodeWatches: fair.NewLane(startsAtOnce, allCanWait),
		attached: newAttachmentWatch(opts), gangs: &sharedGangs{of: plan.NewGangs()}, sessions: map[string]*session{},
	}
	lookups := fair.NewLane(lookupsAtOnce, allCanWait) // and what is watched of namespaces: the nodes' own pods wait for none of it
	d.claims = newObjectCache("claim", lookups, opts.Notify, readClaim(opts.Dynamic))
	d.preferences = newObjectCache("preferences", lookups, opts.Notify, readPreferences(opts.Dynamic))
	d.around = newObjectCache("constraints", lookups, opts.Notify, readConstraints(opts.Dynamic))
	d.lanes, d.pace = newLanes(d.queue.push, d.allowed), newPace(requestsAtOnce, d.queue.push)
	d.starts = &waveStarts{work: d.waves}
	d.budgets = newBudgetWatch(opts, d.budgetAllows, d.starts.stale)
	d.deployments = newSurgeWatch(opts, lookups, d.deploymentAllows)
	d.evictions = d.expose(opts.Registerer)
	return d
}

// Run carries plans out until ctx ends. Pods that were already evicted go on terminating.
func (d *Drainer) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		d.queue.close()
		d.pace.wake()
	})
	defer stop()
	var requests sync.WaitGroup
	for d.pace.begin(ctx) { // before the most urgent task is chosen
		t, ok := d.queue.next()
		if !ok {
			break
		}
		requests.Go(func() { d.pace.do(t, func() bool { return d.attempt(t) }) })
	}
	requests.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	for node, s := range d.sessions {
		s.end()
		delete(d.sessions, node)
	}
	return nil
}

// budgetAllows lets refused pods try again: the API server has said how many may go.
func (d *Drainer) budgetAllows(budget *policyv1.PodDisruptionBudget) {
	d.queue.wake(int(budget.Status.DisruptionsAllowed), types.NamespacedName{Namespace: budget.Namespace}, func(t *task) bool {
		return plan.Covers(budget, t.pod.Labels)
	})
}

// allowed is how many pods like this one its budget lets go now.
func (d *Drainer) allowed(pod *corev1.Pod) int {
	budgets := d.budgets.of(pod)
	if len(budgets) == 0 {
		return 0
	}
	return int(budgets[0].Status.DisruptionsAllowed)
}

// deploymentAllows lets pods try again that wait for their Deployment.
func (d *Drainer) deploymentAllows(name types.NamespacedName, w plan.DeploymentState) {
	d.queue.wake(w.Slots, name, waitsToBeSurged(true))
	d.queue.wake(w.Evictable+w.Excess+w.Lacking, name, waitsToBeSurged(false))
}

func waitsToBeSurged(want bool) func(*task) bool {
	return func(t *task) bool { return (t.surged || t.session.isSurged(t.pod)) != want }
}

// waves works out the waves of all draining nodes together.
func (d *Drainer) waves() plan.Waves {
	var budgets []*policyv1.PodDisruptionBudget
	for _, w := range d.budgets.all() {
		budgets = append(budgets, slices.DeleteFunc(w.All(), func(b *policyv1.PodDisruptionBudget) bool { return plan.WaveSize(b) <= 0 })...)
	}
	if len(budgets) == 0 {
		return plan.Waves{}
	}
	d.mu.Lock()
	sessions := slices.Collect(maps.Values(d.sessions))
	d.mu.Unlock()
	var nodes []plan.Situation
	for _, s := range sessions {
		if in, ok := s.interruption(); ok {
			nodes = append(nodes, s.situation(in))
		}
	}
	return plan.PlanWaves(time.Now(), nodes, budgets)
}

// refresh brings the waves up to date, and has the nodes planned again whose pods have to
// go earlier because of it. It reports whether there are such pods.
func (d *Drainer) refresh() bool {
	if d.opts.Policy.Strategy == plan.StrategyAtOnce {
		return false
	}
	earlier := d.starts.refresh()
	if len(earlier) == 0 {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for node, s := range d.sessions {
		if s.has(earlier) {
			d.opts.Notify(node)
		}
	}
	return true
}

// Forget ends a node's drain: pods that wait for their eviction are not evicted, and
// nothing is counted. It does nothing for a node that is not being drained.
func (d *Drainer) Forget(node string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, ok := d.sessions[node]
	if !ok {
		return
	}
	s.end()
	delete(d.sessions, node)
}

func (d *Drainer) session(ctx context.Context, node string) *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, ok := d.sessions[node]
	if !ok {
		s = startSession(ctx, d, node)
		d.sessions[node], d.newest = s, s.began
	}
	return s
}
