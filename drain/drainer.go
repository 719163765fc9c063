package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// Events tells people about single pods. No method blocks or fails.
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

	Policy Policy

	// Notify is called with a node's name when anything about its drain may have
	// changed. It is called from any goroutine, often, and must not block.
	Notify func(node string)

	Events Events

	// Workers is how many requests are under way at once, not counting those that have
	// waited seconds for an answer; zero means 32.
	Workers int

	Registerer prometheus.Registerer
	Logger     zerolog.Logger
}

// Drainer drains nodes. Its methods are safe for concurrent use and none waits for
// a pod.
type Drainer struct {
	opts    Options
	metrics *metrics

	queue *queue
	pace  *pace
	lanes *lanes

	shares      *shares
	budgets     *budgetWatch
	deployments *surgeWatch
	attached    *attachmentWatch
	starts      *waveStarts
	claims      *objectCache[claim]
	wishes      *objectCache[Wishes]       // of a namespace
	around      *objectCache[Surroundings] // of a namespace
	gangs       *Gangs

	openings *openings

	mu       sync.Mutex
	sessions map[string]*session
	newest   time.Time // when the last of them began
}

// New returns a Drainer. It makes no call and starts nothing.
func New(opts Options) *Drainer {
	if opts.Workers == 0 {
		opts.Workers = 32
	}
	d := &Drainer{
		opts: opts, queue: newQueue(), pace: newPace(opts.Workers), openings: newOpenings(),
		attached: newAttachmentWatch(opts), gangs: NewGangs(), sessions: map[string]*session{},
	}
	lookups := newOpenings() // and what is watched of namespaces: the nodes' own pods wait for none of it
	d.claims = newObjectCache(lookups, opts.Notify, readClaim(opts.Dynamic))
	d.wishes = newObjectCache(lookups, opts.Notify, readWishes(opts.Dynamic))
	d.around = newObjectCache(lookups, opts.Notify, readSurroundings(opts.Dynamic))
	d.lanes, d.shares = newLanes(d.queue.push), newShares(opts.Workers, d.queue.push)
	d.starts = &waveStarts{work: d.waves}
	d.budgets = newBudgetWatch(opts, d.budgetAllows, d.starts.stale)
	d.deployments = newSurgeWatch(opts, lookups, d.deploymentAllows)
	d.metrics = newMetrics(opts.Registerer, d)
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
		requests.Go(func() { d.pace.do(func() bool { return d.attempt(ctx, t) }) })
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

// budgetAllows lets refused pods try again: the API server has said that n may go.
func (d *Drainer) budgetAllows(namespace string, selector labels.Selector, n int) {
	d.queue.wake(n, types.NamespacedName{Namespace: namespace}, func(t *task) bool {
		return selector.Matches(labels.Set(t.pod.Labels))
	})
}

// deploymentAllows lets pods try again that wait for their Deployment.
func (d *Drainer) deploymentAllows(name types.NamespacedName, w Workload) {
	d.queue.wake(w.Slots, name, waitsToBeSurged(true))
	d.queue.wake(w.Spare+w.Excess+w.Lacking, name, waitsToBeSurged(false))
}

func waitsToBeSurged(want bool) func(*task) bool {
	return func(t *task) bool { return (t.surged || t.session.isSurged(t.pod)) != want }
}

// waves works out the waves of all draining nodes together.
func (d *Drainer) waves() Waves {
	var budgets []*policyv1.PodDisruptionBudget
	for _, w := range d.budgets.all() {
		for _, budget := range contents[*policyv1.PodDisruptionBudget](w) {
			if waveSize(budget) > 0 {
				budgets = append(budgets, budget)
			}
		}
	}
	if len(budgets) == 0 {
		return Waves{}
	}
	d.mu.Lock()
	sessions := make([]*session, 0, len(d.sessions))
	for _, s := range d.sessions {
		sessions = append(sessions, s)
	}
	d.mu.Unlock()
	var nodes []Situation
	for _, s := range sessions {
		if in, ok := s.interruption(); ok {
			nodes = append(nodes, s.situation(in))
		}
	}
	return PlanWaves(time.Now(), nodes, budgets)
}

// refresh brings the waves up to date, and has the nodes planned again whose pods have to
// go earlier because of it. It reports whether there are such pods.
func (d *Drainer) refresh() bool {
	if d.opts.Policy.Strategy == AtOnce {
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

// View is what is on a node now.
type View struct {
	Moving  []*corev1.Pod      // have to leave
	Surged  map[types.UID]bool // those of Moving whose successors are made first
	Staying []*corev1.Pod      // would have to leave if the node's end were certain, see Decision.Stays
	Daemons []*corev1.Pod      // DaemonSet pods, which stay
	Plan    []Decision         // one for every pod of the node

	of Interruption // that it was made for
}

// Look reads a node's pods and plans for them, without moving any. The first call starts
// the node's watch, which lives until Forget or the end of ctx. It returns false until the
// pods, and what has to be known of their Deployments, are known; Notify is called when
// they are.
func (d *Drainer) Look(ctx context.Context, node string, in Interruption) (View, bool) {
	s := d.session(ctx, node)
	if !s.synced() {
		return View{}, false
	}
	return s.view(time.Now(), in)
}

// Status is how far a node's drain has come.
type Status struct {
	View
	// Total is how many pods had to leave since the drain began.
	Total int
	// Begun: some pod has been evicted or is to be evicted now, or the replacement is ready
	// for the successors of surged pods.
	Begun bool
	// Moved: every pod that had to leave has left, and none stays.
	Moved bool
	// Refusal is why a pod has been held back for seconds, in the API server's words.
	Refusal string
	// Volumes is how many are still attached for pods that have left.
	Volumes int
	// Done: they have left, and their volumes are detached.
	Done bool
	// Next is when the plan changes by the clock alone; zero if it does not.
	Next time.Time
}

// Drain starts what is due. It plans again unless what Look has just returned is for the same
// interruption. It returns at once. Call it again whenever Notify says so, at Status.Next, and when
// the interruption changes.
func (d *Drainer) Drain(ctx context.Context, node string, in Interruption, view View) (Status, bool) {
	s := d.session(ctx, node)
	if !s.synced() {
		return Status{}, false
	}
	s.concerns(in)
	now := time.Now()
	if d.refresh() || view.of != in {
		view, _ = s.view(now, in)
	}
	status, due := s.advance(now, view)
	for _, t := range due {
		d.queue.push(t)
	}
	return status, true
}

// Finish ends a node's drain and returns what became of every pod, each counted once. Pods
// that are still on the node and have not been evicted count as left; those that are still
// terminating past the deadline had less than their grace period. The interruption tells which
// pods had to leave a node that only a predecessor has drained.
func (d *Drainer) Finish(node string, in Interruption) Result {
	d.mu.Lock()
	s, ok := d.sessions[node]
	d.mu.Unlock()
	if !ok {
		return Result{}
	}
	s.meet(in)
	result := s.result()
	d.Forget(node)
	for _, r := range result.Remaining {
		d.opts.Events.PodLeft(node, r.Pod, r.Refusal)
	}
	return result
}

// CallOff stops a node's drain and puts its surged pods back into their ReplicaSets. It
// returns false while something is still under way: Notify says when to call again. When it
// returns true the drain has ended, and the result says what had become of the pods; none
// counts as left. Pods that are terminating cannot be kept.
func (d *Drainer) CallOff(ctx context.Context, node string) (Result, bool, error) {
	s := d.session(ctx, node)
	if !s.callOff() || !s.synced() {
		return Result{}, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, evictTimeout) // the caller's workers are few
	defer cancel()
	// The watch might not have shown yet which pods were surged a moment ago.
	if err := d.putBackAll(ctx, node, "", func(*corev1.Pod) bool { return true }); err != nil {
		return Result{}, false, err
	}
	result := s.result()
	result.Total -= result.Left
	result.Left, result.Remaining = 0, nil
	result.Staying = slices.DeleteFunc(s.pods(), func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil })
	d.Forget(node)
	return result, true, nil
}

// Sweep puts surged pods back into their ReplicaSets where nobody drains their node, as
// after a drain that was called off by removing the record. An empty node means all nodes.
func (d *Drainer) Sweep(ctx context.Context, node string, drained func(node string) bool) error {
	return d.putBackAll(ctx, node, "0", func(pod *corev1.Pod) bool {
		if drained(pod.Spec.NodeName) {
			return false
		}
		d.opts.Logger.Warn().Str("node", pod.Spec.NodeName).Str("pod", pod.Namespace+"/"+pod.Name).
			Msg("pod was surged but its node is not being drained: put back into its ReplicaSet")
		return true
	})
}

// putBackAll puts back the surged pods that the filter picks, of one node or of all. They
// are read at the resource version: "" is the latest, "0" costs the API server least.
func (d *Drainer) putBackAll(ctx context.Context, node, version string, filter func(*corev1.Pod) bool) error {
	r := d.opts.Pods.Get().Resource("pods").Param("labelSelector", SurgedLabel)
	if version != "" {
		r = r.Param("resourceVersion", version)
	}
	if node != "" {
		r = r.Param("fieldSelector", "spec.nodeName="+node)
	}
	list := &corev1.PodList{}
	if err := r.Do(ctx).Into(list); err != nil {
		return fmt.Errorf("list surged pods: %w", err)
	}
	var errs []error
	for i := range list.Items {
		if pod := &list.Items[i]; pod.DeletionTimestamp == nil && filter(pod) {
			_, err := d.putBack(ctx, Decision{Pod: pod})
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
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
	d.queue.drop(s)
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

// blockedPods counts the pods whose eviction is refused at this moment.
func (d *Drainer) blockedPods() float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, s := range d.sessions {
		ofBudgets, others := s.refusedPods()
		n += len(ofBudgets) + others
	}
	return float64(n)
}
