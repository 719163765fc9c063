package drain

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/fair"
	"spot-handler/drain/plan"
	"spot-handler/drain/rewatch"
)

// settleFor is how long a Deployment's changes are collected before they are acted on: while
// pods roll, they change many times a second, and each time all of them are counted.
const settleFor = 20 * time.Millisecond

// surgeWatch watches the Deployments whose pods are on draining nodes, each with its pods,
// for as long as a draining node has pods of it.
type surgeWatch struct {
	sharedWatch[types.NamespacedName, *watchedDeployment]
	dynamic dynamic.Interface
	pods    rest.Interface
	lookups *fair.Lane
	logger  zerolog.Logger

	// wake lets as many waiting pods of a Deployment try again as it has something to give to.
	wake func(name types.NamespacedName, w plan.DeploymentState)
}

func newSurgeWatch(opts Options, lookups *fair.Lane, wake func(types.NamespacedName, plan.DeploymentState)) *surgeWatch {
	s := &surgeWatch{dynamic: opts.Dynamic, pods: opts.Pods, lookups: lookups, logger: opts.Logger, wake: wake}
	s.sharedWatch = newSharedWatch(opts.Notify, s.begin)
	return s
}

// watchedDeployment is one Deployment.
type watchedDeployment struct {
	watcher *surgeWatch
	name    types.NamespacedName
	ctx     context.Context
	ledger  *plan.ReplicaLedger

	mu         sync.Mutex
	synced     bool   // it is known whether there is a Deployment, and if so, which pods it has
	unreadable string // why it cannot be read
	deployment *plan.Deployment
	members    *rewatch.Watch[*plan.Replica] // its pods; nil until its selector is known
	last       plan.DeploymentState          // what was last acted on
	acted      bool                          // whether that has happened
	actAt      time.Time                     // when timer runs act; zero where it does not
	timer      *time.Timer
}

// begin watches a Deployment in its turn.
func (s *surgeWatch) begin(ctx context.Context, name types.NamespacedName) *watchedDeployment {
	of := &watchedDeployment{watcher: s, name: name, ctx: ctx, ledger: plan.NewReplicaLedger()}
	context.AfterFunc(ctx, of.stopTimer)
	s.lookups.Do(ctx, fair.Task{Tenant: name.Namespace, Who: types.UID("deployment/" + name.Name), Run: of.watch})
	return of
}

// workload is what was last known of the Deployment; false until something is. What it
// offers might be given away by now: reserve knows.
func (s *surgeWatch) workload(name types.NamespacedName) (plan.DeploymentState, bool) {
	of := s.get(name)
	if of == nil {
		return plan.DeploymentState{}, false
	}
	of.mu.Lock()
	defer of.mu.Unlock()
	return of.last, of.acted
}

// look acts again on what is known of the Deployment.
func (s *surgeWatch) look(name types.NamespacedName) {
	if of := s.get(name); of != nil {
		of.update(func() {})
	}
}

// reserve asks for what the decision takes of its Deployment; see [plan.ReplicaLedger.Reserve].
func (s *surgeWatch) reserve(d plan.Decision, ahead int) bool {
	of := s.get(d.Deployment)
	if of == nil {
		return false
	}
	of.mu.Lock()
	defer of.mu.Unlock()
	return of.synced && of.unreadable == "" && of.ledger.Reserve(time.Now(), of.deployment, of.pods(), d.Pod, d.Action, ahead)
}

// giveUp has no more pods of the Deployment surged, for as long as it is watched.
func (s *surgeWatch) giveUp(name types.NamespacedName, reason string) {
	of := s.get(name)
	if of == nil {
		return
	}
	of.update(func() {
		if of.ledger.GiveUp(reason) {
			s.logger.Warn().Str("deployment", name.String()).Str("reason", reason).
				Msg("surge is of no use; pods go back into their ReplicaSet and are held")
		}
	})
}

// settle gives back what was reserved.
func (s *surgeWatch) settle(d plan.Decision) {
	if of := s.get(d.Deployment); of != nil {
		of.update(func() { of.ledger.Release(d.Pod.UID, d.Action) })
	}
}

// stopTimer stops what can be hours away if minReadySeconds is.
func (of *watchedDeployment) stopTimer() {
	of.mu.Lock()
	defer of.mu.Unlock()
	if of.timer != nil {
		of.timer.Stop()
	}
}

func (of *watchedDeployment) countLocked(now time.Time) (plan.DeploymentState, time.Time) {
	if of.unreadable != "" {
		return plan.DeploymentState{Selector: labels.Everything(), Refuses: of.unreadable}, time.Time{}
	}
	return of.ledger.State(now, of.deployment, of.pods())
}

func (of *watchedDeployment) pods() []*plan.Replica {
	if of.members == nil {
		return nil
	}
	return of.members.All()
}

// watch follows the Deployment, and its pods as soon as its selector is known. It returns when it is
// known whether there is one.
func (of *watchedDeployment) watch() {
	deployments := of.watcher.dynamic.Resource(deploymentResource).Namespace(of.name.Namespace)
	byName := fields.OneTermEqualSelector(metav1.ObjectNameField, of.name.Name).String()
	watch := rewatch.New(rewatch.Options[*unstructured.Unstructured, *plan.Deployment]{
		Source:  rewatch.Of(deployments, func(o *metav1.ListOptions) { o.FieldSelector = byName }),
		Keep:    asDeployment,
		Changed: of.seen,
		Synced: func() {
			of.update(func() { of.synced = of.synced || of.deployment == nil }) // there is none of that name
		},
		Refused: of.refused,
		Logger:  of.watcher.logger,
	})
	go watch.Run(of.ctx)
	select {
	case <-watch.Known():
	case <-of.ctx.Done():
	}
}

// seen takes in a new state of the Deployment.
func (of *watchedDeployment) seen(_, d *plan.Deployment) {
	if d == nil {
		of.update(func() { of.deployment = nil })
		return
	}
	if err := d.Unreadable(); err != nil {
		of.refused(err)
		return
	}
	of.update(func() {
		of.deployment, of.unreadable = d, ""
		if of.members == nil {
			of.watchPodsLocked(d.Spec.Selector)
		}
	})
}

// watchPodsLocked follows the pods that the Deployment selects, surged ones among them.
// The selector of a Deployment never changes.
func (of *watchedDeployment) watchPodsLocked(by *metav1.LabelSelector) {
	selector := metav1.FormatLabelSelector(by)
	of.members = rewatch.New(rewatch.Options[*corev1.Pod, *plan.Replica]{
		Source: cache.NewFilteredListWatchFromClient(of.watcher.pods, "pods", of.name.Namespace, func(o *metav1.ListOptions) {
			o.LabelSelector = selector
		}),
		Keep:    plan.ReplicaOf,
		Changed: func(_, _ *plan.Replica) { of.update(func() {}) },
		Synced:  func() { of.update(func() { of.synced = true }) },
		Logger:  of.watcher.logger,
	})
	go of.members.Run(of.ctx)
}

// refused is called when the Deployment cannot be read. Then its pods are not surged.
func (of *watchedDeployment) refused(err error) {
	of.watcher.logger.Warn().Err(err).Str("deployment", of.name.String()).Msg("read deployment; its pods are not surged")
	of.update(func() { of.synced, of.unreadable = true, "cannot be read: "+err.Error() })
}

// update changes what is known, and has it acted on a moment later.
func (of *watchedDeployment) update(change func()) {
	of.mu.Lock()
	defer of.mu.Unlock()
	change()
	of.actIn(settleFor)
}

// actIn has act run in d at the latest.
func (of *watchedDeployment) actIn(d time.Duration) {
	at := time.Now().Add(d)
	if of.timer != nil && !of.actAt.IsZero() && !at.Before(of.actAt) {
		return
	}
	if of.timer != nil {
		of.timer.Stop()
	}
	of.actAt = at
	of.timer = time.AfterFunc(d, of.act)
}

// act counts again, and lets those pods try that can go on.
func (of *watchedDeployment) act() {
	if of.ctx.Err() != nil {
		return
	}
	of.mu.Lock()
	of.actAt = time.Time{}
	if !of.synced {
		of.mu.Unlock()
		return
	}
	now := time.Now()
	w, next := of.countLocked(now)
	news := !of.acted || (w.Selector == nil) != (of.last.Selector == nil) || w.Refuses != of.last.Refuses ||
		w.Excess > of.last.Excess || w.Lacking > of.last.Lacking
	of.acted, of.last = true, w
	if !next.IsZero() {
		of.actIn(max(time.Millisecond, next.Sub(now)))
	}
	of.mu.Unlock()
	if news {
		of.watcher.notifyUsers(of.name)
	}
	of.watcher.wake(of.name, w)
}
