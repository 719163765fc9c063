// Package karpenter makes replacements as NodeClaims of Karpenter, in a fallback NodePool:
// the one that the operator has named, or the best of those that suit. For a node that is only
// at risk it first asks for another spot instance.
//
// Karpenter watches over its own claims, but not over ours. So this package takes care of:
//
//   - the pool's limits, counting those of our claims that its status does not show yet
//     (ledger);
//   - a claim without an instance, which halts all of Karpenter's provisioning: it is
//     deleted after launchTimeout, and the next pool is tried;
//   - consolidation, which could remove an empty replacement before its pods come: the
//     replacement is protected where that is the faster, but no longer than necessary, as
//     Karpenter might move healthy pods onto a protected empty node (keeper);
//   - replacements that are never used, and what a process that died has left behind
//     (keeper);
//   - the way back: an on-demand replacement of a spot node is kept from consolidation, and after a while
//     recommended for a spot instance in the pool that it stands in for (wayBack).
//
// Everything needed to go on is on the claim and in the interruption's record. The claim's
// name follows from pool and instance, so asking twice is asking once; its label says that
// it is ours; its annotations say what it was made for and how long it is protected. The
// record says which pools were tried.
//
// If Karpenter ends the node itself, as its own interruption queue makes it do, only those
// pods get a replacement for which Karpenter makes none.
//
// The cost grows with the interrupted nodes and not with the cluster: one list at the
// start, and then no call and no watch until the first node that Karpenter made is
// interrupted. From then on there is one watch, of our own NodeClaims. Only if the fallback
// pool has limits are its claims read, all of them, at most every ten seconds and while
// replacements are requested in it.
package karpenter

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/readcache"
)

// Options configure a Backend.
type Options struct {
	// FallbackNodePools maps a NodePool to the one that replaces its nodes. The NodePool's
	// own annotation, [FallbackAnnotation], overrides it.
	FallbackNodePools map[string]string

	// Rebalance is the policy for rebalance recommendations. The NodePool's own annotation,
	// [RebalanceAnnotation], overrides it.
	Rebalance interruption.RebalancePolicy

	// Calm is how long an on-demand replacement of a spot node stays, and how long EC2 must have announced
	// nothing about an offering before it goes back there; 0 leaves the way back to Karpenter. The NodePool's
	// own annotation, [CalmAnnotation], overrides it.
	Calm time.Duration

	// SingleNode says that Request is called for one node only, that of the process. Then
	// only its replacement is watched: otherwise a burst would show every node's replacement
	// to every node.
	SingleNode bool

	// Offerings are what EC2 has taken lately: spot replacements leave them out.
	Offerings *offerings.Memory

	// TTL is how long a replacement can be Ready without a pod before it is returned, if
	// Karpenter itself would keep it; zero means forever.
	TTL time.Duration

	// Return has an on-demand node recommended that can go back to spot, and says what became of that.
	// It is nil if the way back is left to Karpenter.
	Return func(ctx context.Context, n interruption.Notice) (interruption.Verdict, error)

	// Dynamic reads and writes Karpenter's objects, and reads disruption budgets and
	// DaemonSets.
	Dynamic dynamic.Interface
	// Nodes and Pods tell whether a replacement is in use.
	Nodes Nodes
	Pods  Pods
	// Node finds a Node in memory; the API server is asked for one that is not there.
	Node func(name string) (*corev1.Node, bool)

	Events Events // nil: none

	// Notify is called with the name of an interrupted node when its replacement might have
	// changed, and Request is worth a call. It is called from any goroutine, sometimes for
	// no reason, and must not block.
	Notify func(node string)

	Registerer prometheus.Registerer // nil: metrics are kept and not shown
	Logger     zerolog.Logger
}

// Events writes Kubernetes Events. It does not block or fail.
type Events interface {
	About(object *corev1.ObjectReference, eventType, reason, text string)
}

// Reasons of our Events on NodeClaims, and on NodePools.
const (
	reasonReplaces    = "ReplacesInterruptedNode"
	reasonNotLaunched = "NotLaunched"
	reasonUnused      = "ReplacementUnused"
	reasonUnprotected = "ProtectionRemoved"
	reasonHeld        = "ReplacementHeld"
	reasonWrongPolicy = "RebalancePolicyUnknown"
	reasonWrongCalm   = "CalmNotUnderstood"
)

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
	opts    Options
	pools   *readcache.Cache[[]*nodePool] // under the key ""
	daemons *readcache.Cache[[]daemon]    // under the key ""
	// replacing are the names of our NodeClaims by what they replace, under the key "", or that of the
	// only instance.
	replacing *readcache.Cache[map[string][]string]
	// refusals are the answers that there is no replacement, by node and instance, or for every node
	// under the key "". They are put there, not read, and kept for a while: a node is reconciled
	// whenever one of its pods changes, and deciding takes some calls.
	refusals *readcache.Cache[interruption.Replacement]
	// inVain has, under a claim's name, the pool that it asks for a spot instance on a recommendation, and
	// has that pool as a key if none was launched: such a claim halts Karpenter, so the next node asks others.
	inVain *readcache.Cache[string]
	// unanswered holds, by instance, the name of the NodeClaim that may have been made for it: the answer to its
	// creation was lost. The next attempt may choose another pool.
	unanswered *readcache.Cache[string]
	sources    *readcache.Cache[*Claim] // by the name of an interrupted node's claim
	claims     *claimWatch
	ledger     *ledger
	keeper     *keeper
	// limitRefusals has no pool as a label: pools come and go, and it would have no value at the start.
	// Events say which pool it was.
	limitRefusals prometheus.Counter
	log           zerolog.Logger
	said          provisioner.Once
}

var _ provisioner.Backend = (*Backend)(nil)

// New returns a Backend. It makes no call. End it with Run or Close.
func New(opts Options) *Backend {
	b := &Backend{
		opts:     opts,
		refusals: newReadCache[interruption.Replacement](refusedFor, nil),
		inVain:   newReadCache[string](offerings.Lately, nil),

		unanswered: newReadCache[string](offerings.Lately, nil),
		ledger:     newLedger(opts.Dynamic),
		limitRefusals: promauto.With(opts.Registerer).NewCounter(prometheus.CounterOpts{
			Name: "spot_handler_pool_limit_refusals_total",
			Help: "Times that a fallback pool was not taken because its limits left no room for the replacement.",
		}),
		log: opts.Logger.With().Str("component", "provisioner").Str("backend", provisioner.Karpenter).Logger(),
	}
	b.pools = newReadCache(poolTTL, b.readPools)
	b.daemons = newReadCache(poolTTL, b.readDaemons)
	b.replacing = newReadCache(poolTTL, b.readReplacing)
	b.sources = &readcache.Cache[*Claim]{Read: b.readSource, Lifetime: readcache.For(sourceTTL, 0, nil)}
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

// Close ends what New has started. It is for a Backend that is not Run.
func (b *Backend) Close() { b.keeper.queue.ShutDown() }

// Request implements provisioner.Backend.
func (b *Backend) Request(
	ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need,
) (interruption.Replacement, error) {
	r, err := b.request(ctx, node, rec, need)
	if err == nil && rec.Returns() && (r.State == provisioner.StateFailed || r.State == provisioner.StateUnsupported) {
		b.keeper.held.note(node.Name, r.Reason)
	}
	return r, err
}

func (b *Backend) request(
	ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need,
) (interruption.Replacement, error) {
	prev := provisioner.Asked(rec, provisioner.Karpenter)
	if prev == nil {
		own := node.Name + "/" + rec.Instance
		for _, key := range []string{"", own} {
			if last, fresh := b.refusals.Last(key); fresh {
				return last.Value, nil
			}
		}
		r, err := b.next(ctx, node, rec, need, nil)
		if err == nil && r.Name == "" && len(need.Moving) > 0 {
			b.refusals.Put(own, readcache.Answer[interruption.Replacement]{Value: r, Asked: time.Now()})
		}
		return r, err
	}
	if why := b.wayBackLost(rec, *prev); why != "" {
		return provisioner.Failed(*prev, why), nil
	}
	r, err := b.follow(ctx, rec.Instance, *prev)
	if err != nil || r.State != provisioner.StateFailed || !provisioner.Pending(prev.State) {
		return r, err
	}
	if of, asked := b.inVain.Last(prev.Name); asked && prev.State == provisioner.StateRequested {
		b.inVain.Put(of.Value, readcache.Answer[string]{Asked: time.Now()})
	}
	return b.next(ctx, node, rec, need, &r)
}

func unsupported(reason string) interruption.Replacement {
	return provisioner.Unsupported(provisioner.Karpenter, reason)
}

// event is about a NodeClaim or a NodePool.
func (b *Backend) event(kind string, about metav1.ObjectMeta, eventType, reason, text string) {
	if b.opts.Events != nil {
		object := &corev1.ObjectReference{APIVersion: karpenterGroup + "/v1", Kind: kind, Name: about.Name, UID: about.UID}
		b.opts.Events.About(object, eventType, reason, text)
	}
}
