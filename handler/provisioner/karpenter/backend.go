package karpenter

import (
	"cmp"
	"context"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
)

// Options configure a Backend.
type Options struct {
	// FallbackNodePools maps a NodePool to the one that replaces its nodes. The NodePool's
	// own annotation, [FallbackAnnotation], overrides it.
	FallbackNodePools map[string]string

	// RebalanceCapacity says what replaces a node that is only recommended for rebalance:
	// [SpotFirst], which is also the default, or [Fallback].
	RebalanceCapacity string

	// SingleNode says that Request is called for one node only, that of the process. Then
	// only its replacement is watched: otherwise a burst would show every node's replacement
	// to every node.
	SingleNode bool

	// Offerings are what EC2 has taken lately; nil: nothing is known.
	Offerings *offerings.Memory

	// TTL is how long a replacement can be Ready without a pod before it is returned, if
	// Karpenter itself would keep it; zero means forever.
	TTL time.Duration

	// Dynamic reads and writes Karpenter's objects, and reads disruption budgets and
	// DaemonSets.
	Dynamic dynamic.Interface
	// Nodes and Pods tell whether a replacement is in use.
	Nodes Nodes
	Pods  Pods
	// Node finds a Node in memory; the API server is asked for one that is not there. It can
	// be nil.
	Node func(name string) (*corev1.Node, bool)

	Events Events // nil: none

	// Notify is called with the name of an interrupted node when its replacement might have
	// changed, and Request is worth a call. It is called from any goroutine, sometimes for
	// no reason, and must not block. It can be nil.
	Notify func(node string)

	Registerer prometheus.Registerer // nil: metrics are kept and not shown
	Logger     zerolog.Logger
}

// Nodes is the subset of the Nodes API that the backend uses.
type Nodes interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Node, error)
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*corev1.Node, error)
}

// Pods is the subset of the Pods API, of all namespaces, that the backend uses.
type Pods interface {
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.PodList, error)
}

// Backend makes replacements with Karpenter.
type Backend struct {
	fallbacks map[string]string
	spotFirst bool
	ttl       time.Duration
	offerings *offerings.Memory
	client    dynamic.Interface
	nodes     Nodes
	pods      Pods
	node      func(string) (*corev1.Node, bool)
	notify    func(string)
	events    eventWriter
	pools     *pools
	claims    *claimWatch
	ledger    *ledger
	daemons   *readCache[[]*corev1.Pod] // under the key ""
	policies  *readCache[policy]        // by NodePool
	keeper    *keeper
	log       zerolog.Logger
	said      provisioner.Once

	mu       sync.Mutex
	refusals map[string]refusal // by node: why there is no replacement
}

// refusal is the answer that there is no replacement.
type refusal struct {
	instance string
	answer   interruption.Replacement
	at       time.Time
}

const (
	// refusedFor is how long a refusal stands. A node is reconciled whenever one of its pods
	// changes, and deciding takes some calls.
	refusedFor = 5 * time.Second

	// maxRefusals is how many are kept before those that no longer stand are dropped.
	maxRefusals = 1000
)

var (
	_ provisioner.Backend    = (*Backend)(nil)
	_ provisioner.ReadyTimer = (*Backend)(nil)
)

// New returns a Backend. It makes no call and starts nothing.
func New(opts Options) *Backend {
	if opts.Notify == nil {
		opts.Notify = func(string) {}
	}
	if opts.Node == nil {
		opts.Node = func(string) (*corev1.Node, bool) { return nil, false }
	}
	b := &Backend{
		fallbacks: opts.FallbackNodePools,
		spotFirst: opts.RebalanceCapacity != Fallback,
		ttl:       opts.TTL,
		offerings: cmp.Or(opts.Offerings, offerings.New()),
		client:    opts.Dynamic,
		nodes:     opts.Nodes,
		pods:      opts.Pods,
		node:      opts.Node,
		notify:    opts.Notify,
		events:    eventWriter{opts.Events},
		pools:     newPools(opts.Dynamic),
		ledger:    newLedger(opts.Dynamic, opts.Registerer),
		refusals:  map[string]refusal{},
		log:       opts.Logger.With().Str("component", "provisioner").Str("backend", provisioner.Karpenter).Logger(),
	}
	b.daemons, b.policies = newReadCache(b.readDaemons), newReadCache(b.readPolicy)
	b.keeper = newKeeper(b)
	b.claims = newClaimWatch(opts.Dynamic, opts.SingleNode, b.claimChanged, b.log)
	return b
}

// Name implements provisioner.Backend.
func (b *Backend) Name() string { return provisioner.Karpenter }

// Made reports whether a NodeClaim owns the node, or the label of a NodePool says so.
func (b *Backend) Made(node *corev1.Node) bool { return madeByKarpenter(node) }

// Run follows the claims until ctx is done, and then returns nil. It begins with those that
// an earlier process has left behind; if there are none it is idle until the first is
// requested. Call it once.
func (b *Backend) Run(ctx context.Context) error {
	var g sync.WaitGroup
	g.Go(func() { b.claims.run(ctx) })
	g.Go(func() { b.keeper.run(ctx) })
	g.Go(func() { b.sweep(ctx) })
	g.Wait()
	return nil
}

// Request implements provisioner.Backend.
func (b *Backend) Request(ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need) (interruption.Replacement, error) {
	prev := own(rec)
	if prev == nil {
		if r, ok := b.lastRefusal(node.Name, rec.Instance); ok {
			return r, nil
		}
		r, err := b.next(ctx, node, rec, need, nil)
		if err == nil && r.Name == "" && len(need.Moving) > 0 {
			b.noteRefusal(node.Name, rec.Instance, r)
		}
		return r, err
	}
	r, err := b.follow(ctx, rec.Instance, *prev)
	if err != nil || r.State != provisioner.StateFailed || !provisioner.Pending(prev.State) {
		return r, err
	}
	return b.next(ctx, node, rec, need, &r)
}

// lastRefusal is the answer that the node got a moment ago, if that was a refusal.
func (b *Backend) lastRefusal(node, instance string) (interruption.Replacement, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	last, ok := b.refusals[node]
	return last.answer, ok && last.instance == instance && time.Since(last.at) < refusedFor
}

func (b *Backend) noteRefusal(node, instance string, r interruption.Replacement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.refusals) >= maxRefusals {
		maps.DeleteFunc(b.refusals, func(_ string, last refusal) bool { return time.Since(last.at) >= refusedFor })
	}
	b.refusals[node] = refusal{instance, r, time.Now()}
}

// Choose implements provisioner.Backend.
func (b *Backend) Choose(ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need) (interruption.Replacement, error) {
	if prev := own(rec); prev != nil {
		return *prev, nil
	}
	_, r, err := b.choose(ctx, node, rec, need, nil)
	return r, err
}

// ReadyAfter implements provisioner.ReadyTimer with what Karpenter has written on the
// claim.
func (b *Backend) ReadyAfter(r interruption.Replacement) (time.Duration, bool) {
	claim, _ := b.claims.get(r.Name)
	if claim == nil {
		return 0, false
	}
	return claim.readyAfter(), true
}

// own is the replacement that this backend was asked for, or nil.
func own(rec interruption.Record) *interruption.Replacement {
	return provisioner.Asked(rec, provisioner.Karpenter)
}

func unsupported(reason string) interruption.Replacement {
	return provisioner.Unsupported(provisioner.Karpenter, reason)
}
