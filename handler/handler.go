// Package handler takes interruption notices and sees each interrupted node through to its end.
//
//	Accept ─► record on the Node ─► reconcile: Replacing ─► Draining ─► Released
//
// [Handler.Accept] is the fast lane, called by the sources: it finds the Node in memory, judges
// the notice ([interruption.Judge]) and writes the record, the taint and the cordon with one
// patch. It may be called from any number of goroutines and replicas: the record merges, so the
// same notice twice changes nothing. It waits for no drain. If the notice or the Node's record is a
// rebalance recommendation, and the policy of the NodePool is not in memory, it lists the NodePools.
//
// [Handler.Run] reconciles Nodes that carry a record, in one process at a time. It is
// level-triggered: all that it has to know is on the Node or can be read from the cluster. So
// if a process is killed, at whatever point, the next process carries on. A node that waits for
// its replacement or for a pod occupies nothing but a timer or a watch.
//
// Other work has packages of its own: nodes knows the Nodes, interruption judges, marks makes the
// patches, turns says which recommended node comes next, offerings remembers what EC2 has taken,
// lifecycle answers the hooks of Auto Scaling groups, provisioner makes replacements, workloads
// notifies pods, notify notifies people, and dryrun says what would be done.
package handler

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"spot-handler/drain/fair"
	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/lifecycle"
	"spot-handler/handler/nodes"
	"spot-handler/handler/notify"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/turns"
	"spot-handler/handler/workloads"
)

// Nodes is the subset of the Nodes API that the handler writes with.
type Nodes interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Node, error)
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*corev1.Node, error)
	// Mark is Patch for callers that do not need the Node that it makes.
	Mark(ctx context.Context, name string, pt types.PatchType, data []byte) error
}

// Drainer moves the pods off a node, as it is told by Set until Remove. No method waits for a pod. The drainer
// enqueues a node when its Status may have changed.
type Drainer interface {
	Run(ctx context.Context) error
	Set(node string, want plan.Wanted)
	Status(ctx context.Context, node string) (status plan.Status, known bool)
	Remove(node string)
}

// Provisioner makes and ends capacity. No method waits for a machine.
type Provisioner interface {
	Run(ctx context.Context) error
	Request(ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need) (interruption.Replacement, error)
	Terminate(ctx context.Context, node *corev1.Node, rec interruption.Record) error
	Forget(node string)
}

// Options configure a Handler.
type Options struct {
	Nodes       Nodes
	Index       *nodes.Index
	Drainer     Drainer
	Provisioner Provisioner
	Turns       *turns.Line
	Hooks       *lifecycle.Tender
	Events      notify.Notifier
	Workloads   *workloads.Notifier
	Offerings   *offerings.Memory
	// PodLeft notifies people of a pod that is still on its node when the node ends. It must not block. The reason
	// says why the pod was not evicted, or is empty.
	PodLeft func(node string, pod *corev1.Pod, reason string)

	// Node is the only Node that the process cares for, in imds mode; otherwise empty.
	Node string

	// Rules returns the operator's rules for a node.
	Rules nodes.RulesFunc
	// RebalanceTTL is how long a recommendation can go without progress before it is undone; zero
	// means forever.
	RebalanceTTL time.Duration
	// ReleaseNode has a drained node terminated by what made it.
	ReleaseNode bool
	// CordonOnly marks nodes, in their time and turn, and does nothing more about them.
	CordonOnly bool

	Registerer prometheus.Registerer
	Logger     zerolog.Logger
}

// Handler accepts notices and reconciles interrupted Nodes.
type Handler struct {
	opts    Options
	metrics *metrics
	queue   workqueue.TypedRateLimitingInterface[string]
	writing *semaphore.Weighted // of acceptsAtOnce

	accepting atomic.Int64 // notices inside Accept
	running   atomic.Bool  // nodes are reconciled
	began     time.Time    // when Run was called

	asideMu sync.Mutex
	aside   []string // nodes that wait until a burst is over

	memory     memory
	conditions conditions
	progress   *fair.Lane // of the records that are written beside their drains
}

// New returns a Handler. It makes no call. End it with Run or Close.
func New(opts Options) *Handler {
	opts.Nodes = bounded{opts.Nodes}
	h := &Handler{
		opts:    opts,
		metrics: newMetrics(opts.Registerer),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, longestRetry)),
		writing:    semaphore.NewWeighted(acceptsAtOnce),
		memory:     memory{byNode: map[string]*known{}, ahead: map[string]*corev1.Node{}},
		progress:   fair.NewLane(progressPlaces, progressWaiting),
		conditions: conditions{lane: fair.NewLane(conditionPlaces, conditionsWaiting)},
	}
	opts.Registerer.MustRegister(newActive(h.active))
	return h
}

// Close ends what New has started. It is for a Handler that is not Run.
func (h *Handler) Close() { h.queue.ShutDown() }

// Enqueue requests that a node be reconciled. It never blocks. While nobody runs the handler,
// as in a replica that does not lead, it keeps nothing: Run begins with every Node that has a
// record.
func (h *Handler) Enqueue(node string) {
	if h.running.Load() {
		h.queue.Add(node)
	}
}

// workers is how many nodes are reconciled concurrently. A reconciliation waits only for API calls, such as those that
// request the replacement. Each takes milliseconds, or 200 ms if the API server is far away or busy: then the last of
// 5,000 lost nodes had its replacement requested after 115 s with 16 workers, and after 71 s with 64 (make scale).
const workers = 64

// Run reconciles every Node that carries a record until ctx ends. Only one process should run
// it for the same Nodes: two would do no harm, but would do everything twice. Call it at most
// once.
func (h *Handler) Run(ctx context.Context) error {
	h.began = time.Now()
	h.running.Store(true)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return h.opts.Drainer.Run(ctx) })
	g.Go(func() error { return h.opts.Provisioner.Run(ctx) })
	// Not earlier: a replica that never leads would collect the names of all the nodes that are
	// ever interrupted.
	h.opts.Index.OnChange(h.Enqueue)
	h.readAhead(ctx)
	h.fillLine()
	for _, name := range h.opts.Index.WithRecord() {
		h.Enqueue(name)
	}
	for range workers {
		g.Go(func() error {
			for h.work(ctx) {
			}
			return nil
		})
	}
	context.AfterFunc(ctx, h.queue.ShutDown)
	defer h.progress.Wait()
	defer h.conditions.lane.Wait()
	defer h.opts.Hooks.Wait()
	defer h.opts.Workloads.Wait() // the next leader might take back what is under way
	return g.Wait()
}

func (h *Handler) work(ctx context.Context) bool {
	name, shutdown := h.queue.Get()
	if shutdown {
		return false
	}
	defer h.queue.Done(name)
	if h.yields(name) {
		return true
	}
	again, err := h.reconcile(ctx, name)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		h.opts.Logger.Warn().Err(err).Str("node", name).Int("attempt", h.queue.NumRequeues(name)+1).Msg("reconcile node")
		h.queue.AddRateLimited(name)
	default:
		h.queue.Forget(name)
		if again > 0 {
			h.queue.AddAfter(name, again)
		}
	}
	return true
}

// forget drops all that this process knows of a node's interruption: it is over, or the node is gone,
// and then the node's condition is gone too. The condition of a node that is still there has yet to be
// removed, so what was written of it is forgotten only when it is in line with the Node, see
// [reconciliation.show].
func (h *Handler) forget(name string) {
	h.opts.Drainer.Remove(name)
	h.opts.Hooks.Forget(name)
	h.opts.Workloads.Forget(name)
	h.opts.Provisioner.Forget(name)
	h.opts.Turns.Remove(name)
	h.memory.drop(name)
	if _, there := h.opts.Index.Get(name); !there {
		h.conditions.forget(name)
	}
}

// fillLine puts every node whose turn has come in line before the next takes its own: a new
// process must not overlook those that the process before it has begun with.
func (h *Handler) fillLine() {
	for _, node := range h.opts.Index.All() {
		node = h.memory.newest(node)
		if rec, err := nodes.Record(node); err == nil && rec.TurnTaken() {
			h.opts.Turns.Enqueue(node, rec)
		}
	}
}
