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
)

// Events notifies people about single pods. No method blocks, fails or calls the Drainer.
type Events interface {
	// EvictionBlocked: a disruption budget has held the pod back for seconds.
	EvictionBlocked(node string, pod *corev1.Pod, reason string)
	// EvictionForced: the pod was deleted past its disruption budget.
	EvictionForced(node string, pod *corev1.Pod, reason string)
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

	// Drained reports whether the node's pods are being moved, or the node is about to end: its surged pods stay
	// as they are then. If it is nil, nobody looks for surged pods that nobody drains.
	Drained func(node string) bool
	// Node is the only one of the process, in imds mode; otherwise empty.
	Node string

	Events Events

	Registerer prometheus.Registerer
	Logger     zerolog.Logger
}

// RequestsAtOnce is how many requests are under way at once, not counting those that have waited
// seconds for an answer. A namespace that is alone can have 32 of them: the other five are for
// those that come meanwhile.
const RequestsAtOnce = 37

// Drainer drains nodes. Its methods are safe for concurrent use, and none waits for
// a pod. They answer while Run runs: what is asked before waits for it, and once Run has ended nothing is
// known of any node.
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
	if d.opts.Drained != nil {
		d.running.Go(func() { d.sweep(ctx) })
	}
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
	for _, node := range todo.PutBack {
		d.running.Go(func() { d.returnSurged(ctx, node) })
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

// Set says what is wanted of a node's pods from now on. It returns at once. The first call for a node starts the
// watch of its pods, which lasts until the node is removed.
func (d *Drainer) Set(node string, want plan.Wanted) {
	d.inbox.put(func(now time.Time) { d.fleet.Apply(now, plan.Set{Node: node, Wanted: want}) })
}

// Status says how far that has come, given all that was set and seen before. It returns false until the node's
// pods, and what matters of their Deployments, are known. Ask again when Notify says so.
func (d *Drainer) Status(ctx context.Context, node string) (status plan.Status, known bool) {
	d.inbox.ask(ctx, func(now time.Time) { status, known = d.fleet.Status(now, node) })
	return status, known
}

// Remove forgets a node: pods that wait for their eviction are not evicted. It returns at once, and does nothing
// for a node that nothing was set for.
func (d *Drainer) Remove(node string) {
	d.inbox.put(func(now time.Time) { d.fleet.Apply(now, plan.Remove{Node: node}) })
}

// Answer takes in what a pod has answered to a notice: it overrides what is annotated. It does
// nothing for a node that is not being drained.
func (d *Drainer) Answer(node string, pod types.UID, when plan.When) {
	d.inbox.put(func(now time.Time) { d.fleet.Apply(now, plan.PodAnswered{Node: node, Pod: pod, When: when}) })
}
