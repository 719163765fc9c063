// Package drain moves the pods off nodes that are about to end: it evicts them, and watches them go.
//
// Package plan decides which pods leave, in what order and by when, and package watch shows it the
// cluster. A [Drainer] has one goroutine that owns the [plan.Fleet]:
//
//	watches, look-ups ─┐                       ┌─► watches and look-ups that begin or end
//	replies            ├─► inbox ─► Fleet ─────┼─► requests, each in a goroutine of its own
//	callers, the clock ┘                       └─► Notify, Events, logs
//
// It takes in all that has come, asks the Fleet what to do now, and waits for what comes next or for
// when the Fleet wants to be asked again. It never waits for a request. A pod that is held, or refused by
// a disruption budget, occupies nothing but memory.
//
// A Drainer holds no state that has to survive. A new process that is asked to drain the
// same node sees which pods are still there and goes on. It only waits for pods that are
// terminating, surged pods carry a label that says so, and every request carries the
// pod's UID, so nothing is done twice.
package drain

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"spot-handler/drain/plan"
	"spot-handler/drain/watch"
	"spot-handler/handler/interruption"
)

// Events notifies people about single pods. No method blocks, fails or calls the Drainer.
type Events interface {
	// EvictionBlocked: a disruption budget has held the pod back for seconds.
	EvictionBlocked(node string, pod *corev1.Pod, reason string)
	// EvictionForced: the pod was deleted past its disruption budget.
	EvictionForced(node string, pod *corev1.Pod, reason string)
	// PodLeft: the node ends with the pod on it.
	PodLeft(node string, pod *corev1.Pod, reason string)
	// AnnotationMeaningless and NamespaceAnnotationMeaningless: the pod, or its namespace, asks for
	// something that nobody knows.
	AnnotationMeaningless(node string, pod *corev1.Pod, text string)
	NamespaceAnnotationMeaningless(node string, pod *corev1.Pod, text string)
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
	// changed. It is called from one goroutine, often, and must not block or call the Drainer.
	Notify func(node string)

	Events Events

	Registerer prometheus.Registerer
	Logger     zerolog.Logger
}

// RequestsAtOnce is how many requests are under way at once, not counting those that have waited
// seconds for an answer.
const RequestsAtOnce = 32

// Drainer drains nodes. Its methods are safe for concurrent use, and none waits for
// a pod. They answer while Run runs: what is asked before waits for it, and once Run has ended nothing is
// being drained.
type Drainer struct {
	opts      Options
	evictions *prometheus.CounterVec
	inbox     *inbox

	// Only Run's goroutine uses these.
	fleet   *plan.Fleet
	cluster *watch.Cluster
	going   map[string]going // by node
	running sync.WaitGroup   // requests
}

// going is what the requests for a node last as long as.
type going struct {
	ctx  context.Context
	halt context.CancelFunc
}

// New returns a Drainer. It makes no call and starts nothing.
func New(opts Options) *Drainer {
	d := &Drainer{
		opts:  opts,
		inbox: newInbox(),
		fleet: plan.NewFleet(opts.Policy, RequestsAtOnce, rand.Uint64()),
		going: map[string]going{},
	}
	d.cluster = watch.New(watch.Options{
		Clients: watch.Clients{Pods: opts.Pods, Budgets: opts.Budgets, Dynamic: opts.Dynamic},
		Report: func(ctx context.Context, e plan.Event) {
			d.inbox.put(func(now time.Time) {
				if ctx.Err() == nil {
					d.fleet.Apply(now, e)
				}
			})
		},
		Logger: opts.Logger,
	})
	d.evictions = d.expose(opts.Registerer)
	return d
}

// Run drains until ctx ends. Pods that were already evicted go on terminating.
func (d *Drainer) Run(ctx context.Context) error {
	defer d.running.Wait()
	defer d.inbox.close()
	d.inbox.open()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		now := time.Now()
		for _, take := range d.inbox.all() {
			take(now)
		}
		todo := d.fleet.Next(now)
		d.carryOut(ctx, todo)
		var wake <-chan time.Time
		if !todo.Wake.IsZero() {
			timer.Reset(time.Until(todo.Wake))
			wake = timer.C
		}
		select {
		case <-ctx.Done():
		case <-d.inbox.news:
		case <-wake:
		}
	}
	return nil
}

// carryOut does what the Fleet says.
func (d *Drainer) carryOut(ctx context.Context, todo plan.Todo) {
	for _, node := range todo.Halt {
		if of, ok := d.going[node]; ok {
			of.halt()
			delete(d.going, node)
		}
	}
	for _, s := range todo.Unwatch {
		d.cluster.Unwatch(s)
	}
	for _, s := range todo.Watch {
		d.cluster.Watch(ctx, s)
	}
	for _, s := range todo.LookUp {
		d.cluster.LookUp(ctx, s)
	}
	for _, node := range todo.Planned {
		d.cluster.Planned(node)
	}
	for _, r := range todo.Requests {
		going := d.goingOn(ctx, r.Node)
		d.running.Go(func() {
			did, err := d.request(going, r)
			reply := plan.Replied{Request: r, Did: did, Reply: replyOf(err, r.Within)}
			d.inbox.put(func(now time.Time) { d.fleet.Apply(now, reply) })
		})
	}
	for _, r := range todo.Reports {
		d.report(r)
	}
	for _, node := range todo.Changed {
		d.opts.Notify(node)
	}
}

// goingOn is what the node's requests last as long as.
func (d *Drainer) goingOn(ctx context.Context, node string) context.Context {
	of, ok := d.going[node]
	if !ok {
		of.ctx, of.halt = context.WithCancel(ctx)
		d.going[node] = of
	}
	return of.ctx
}

// Look reads a node's pods and plans for them, without moving any. The first call starts
// the node's watch, which lives until the drain ends. It returns false until the
// pods, and what has to be known of their Deployments, are known; Notify is called when
// they are.
func (d *Drainer) Look(ctx context.Context, node string, in plan.NodeState) (view plan.View, ok bool) {
	d.inbox.ask(ctx, func(now time.Time) {
		d.fleet.Apply(now, plan.Prepare{Node: node, State: in})
		view, ok = d.fleet.View(now, node, in)
	})
	return view, ok
}

// Drain has a node's pods leave, and says how far that has come; false until its pods are known. It returns at
// once. Call it again when Notify says so, and when the interruption changes.
func (d *Drainer) Drain(ctx context.Context, node string, in plan.NodeState) (status plan.Status, ok bool) {
	d.inbox.ask(ctx, func(now time.Time) {
		d.fleet.Apply(now, plan.Drain{Node: node, State: in})
		status, ok = d.fleet.Status(now, node)
	})
	return status, ok
}

// Answer takes in what a pod has answered to a notice: it overrides what is annotated. It does
// nothing for a node that is not being drained.
func (d *Drainer) Answer(node string, pod types.UID, when plan.When) {
	d.inbox.put(func(now time.Time) { d.fleet.Apply(now, plan.PodAnswered{Node: node, Pod: pod, When: when}) })
}

// Forget ends a node's drain: pods that wait for their eviction are not evicted, and
// nothing is counted. It does nothing for a node that is not being drained.
func (d *Drainer) Forget(node string) {
	d.inbox.put(func(now time.Time) { d.fleet.Apply(now, plan.Remove{Node: node}) })
}

// Finish ends a node's drain and returns what became of every pod, each counted once. Pods
// that are still on the node and have not been evicted count as left; those that are still
// terminating past the deadline had less than their grace period. The interruption tells which
// pods had to leave a node that only a predecessor has drained.
func (d *Drainer) Finish(node string, in plan.NodeState) (pods interruption.Pods) {
	var left []plan.Left
	d.inbox.ask(context.Background(), func(now time.Time) {
		pods, left = d.fleet.Result(now, node, in)
		d.fleet.Apply(now, plan.Remove{Node: node})
	})
	for _, l := range left {
		d.opts.Events.PodLeft(node, l.Pod, l.Reason)
	}
	return pods
}

// Cancel stops a node's drain and puts its surged pods back into their ReplicaSets. It
// returns nil while something is still under way: Notify says when to call again. Otherwise the
// drain has ended, and what it returns says what had become of the pods. Pods that are
// terminating cannot be kept.
func (d *Drainer) Cancel(ctx context.Context, node string) (left *plan.Canceled, err error) {
	d.inbox.ask(ctx, func(now time.Time) {
		d.fleet.Apply(now, plan.Cancel{Node: node})
		left = d.fleet.Canceled(now, node)
	})
	if left == nil {
		return nil, nil
	}
	limited, cancel := context.WithTimeout(ctx, plan.EvictTimeout) // the caller's workers are few
	defer cancel()
	// The watch might not have shown yet which pods were surged a moment ago.
	if err := d.putBackAll(limited, node, "", func(*corev1.Pod) bool { return true }); err != nil {
		return nil, err
	}
	left = nil
	d.inbox.ask(ctx, func(now time.Time) {
		left = d.fleet.Canceled(now, node)
		d.fleet.Apply(now, plan.Remove{Node: node})
	})
	return left, nil
}

// Sweep puts surged pods back into their ReplicaSets where nobody drains their node, as
// after a drain that was cancelled by removing the record. An empty node means all nodes.
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
	r := d.opts.Pods.Get().Resource("pods").Param("labelSelector", plan.SurgedLabel)
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
			_, err := d.putBack(ctx, plan.Decision{Pod: pod})
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
