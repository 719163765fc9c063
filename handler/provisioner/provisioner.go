package provisioner

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"spot-handler/handler/interruption"
)

// The states of a replacement, as they stand in [interruption.Replacement].
const (
	StateRequested   = "Requested"   // asked for
	StateLaunched    = "Launched"    // there is an instance, and it boots
	StateReady       = "Ready"       // pods can be scheduled to it
	StateFailed      = "Failed"      // there will be none, see Reason
	StateUnsupported = "Unsupported" // none was asked for, see Reason
)

// States lists every state.
func States() []string {
	return []string{StateRequested, StateLaunched, StateReady, StateFailed, StateUnsupported}
}

// Pending reports whether a replacement in the state is still to come, so that it
// is worth to wait for it.
func Pending(state string) bool { return state == StateRequested || state == StateLaunched }

// The backends, as they stand in Options.Backend and in [interruption.Replacement].
const (
	Auto      = "auto"      // by what made the node
	Karpenter = "karpenter" // a NodeClaim
	None      = "none"      // no replacement: drain only
)

// Backends lists what Options.Backend can be.
func Backends() []string { return []string{Auto, Karpenter, None} }

// Need is what has to find a new home.
type Need struct {
	// Moving are the pods that must leave the node, also those that a disruption
	// budget blocks and those that ask not to be disrupted. Their spec must be whole:
	// the replacement is sized and placed by it.
	Moving []*corev1.Pod
	// Daemons are the DaemonSet pods of the interrupted node: its replacement will
	// run them too.
	Daemons []*corev1.Pod
	// Surged are those of Moving whose successors are made before they leave. A pending
	// successor tells every autoscaler by itself what it needs.
	Surged map[types.UID]bool
}

// Options configure a Provisioner.
type Options struct {
	// Backend is Auto, Karpenter or None; empty is Auto. With Auto and Karpenter a
	// node that Karpenter did not make is only drained.
	Backend string

	// FallbackNodePools names for a NodePool the one that replaces its nodes. The
	// NodePool's own annotation, [FallbackAnnotation], goes before it.
	FallbackNodePools map[string]string

	// SingleNode says that Request is called for one node only, that of the process:
	// then only its replacement is watched. A burst would otherwise show every node's
	// replacement to every node.
	SingleNode bool

	// Dynamic reads and writes Karpenter's objects. It is not used with None.
	Dynamic dynamic.Interface

	// Notify is called with the name of an interrupted node when its replacement may
	// have changed, so that Request is worth a call. It is called from any goroutine,
	// also when nothing has changed, and must not block. It may be nil.
	Notify func(node string)

	Registerer prometheus.Registerer // nil: metrics are kept and not shown
	Logger     zerolog.Logger
}

// Provisioner requests, follows and releases replacements.
type Provisioner struct {
	backend   string
	fallbacks map[string]string
	client    dynamic.Interface
	notify    func(string)
	pools     *pools
	claims    *claims
	ledger    *ledger
	metrics   *metrics
	log       zerolog.Logger

	mu   sync.Mutex
	told map[string]told     // by node: what was last counted
	said map[string]struct{} // reasons that the log has seen
}

// told is the last state of a node's replacement that was counted. The caller's
// record says the same, but only once it has been written and has come back.
type told struct{ instance, state string }

// New returns a Provisioner. It makes no call and starts nothing.
func New(opts Options) *Provisioner {
	if opts.Backend == "" {
		opts.Backend = Auto
	}
	if opts.Notify == nil {
		opts.Notify = func(string) {}
	}
	p := &Provisioner{
		backend:   opts.Backend,
		fallbacks: opts.FallbackNodePools,
		client:    opts.Dynamic,
		notify:    opts.Notify,
		pools:     newPools(opts.Dynamic),
		ledger:    newLedger(),
		metrics:   newMetrics(opts.Registerer),
		log:       opts.Logger.With().Str("component", "provisioner").Logger(),
		told:      map[string]told{},
		said:      map[string]struct{}{},
	}
	p.claims = newClaims(opts.Dynamic, opts.SingleNode, p.claimChanged, p.log)
	return p
}

// Run follows the replacements until ctx is done, and returns nil then. It is idle
// until the first of them is requested. It may be called once.
func (p *Provisioner) Run(ctx context.Context) error {
	p.claims.run(ctx)
	return nil
}

// Request asks for a replacement of the node, or says how far the one is that the
// record names. It is to be called whenever the node is reconciled, with the record
// as it stands; the caller keeps the answer in it. It makes at most a few API calls
// and never waits for a machine. An error is transient.
//
// Ready is final, also when the replacement is taken away later, as is Failed with
// a Name: the same replacement is never asked for twice. Failed without a Name and
// Unsupported are judged again with each call.
func (p *Provisioner) Request(ctx context.Context, node *corev1.Node, rec interruption.Record, need Need) (interruption.Replacement, error) {
	r, err := p.request(ctx, node, rec, need)
	if err != nil {
		return interruption.Replacement{}, err
	}
	p.tell(node, rec, r)
	return r, nil
}

func (p *Provisioner) request(ctx context.Context, node *corev1.Node, rec interruption.Record, need Need) (interruption.Replacement, error) {
	if prev := rec.Replacement; prev != nil && prev.Backend == Karpenter && prev.Name != "" {
		return p.follow(ctx, rec.Instance, *prev)
	}
	o, r, err := p.choose(ctx, node, rec, need)
	if err != nil || o == nil {
		return r, err
	}
	return p.place(ctx, *o, r)
}

// Choose says what Request would ask for, and asks for nothing: the state is
// Requested where it would be.
func (p *Provisioner) Choose(ctx context.Context, node *corev1.Node, rec interruption.Record, need Need) (interruption.Replacement, error) {
	if prev := rec.Replacement; prev != nil && prev.Backend == Karpenter && prev.Name != "" {
		return *prev, nil
	}
	_, r, err := p.choose(ctx, node, rec, need)
	return r, err
}

// tell counts and logs a replacement's change of state, each once.
func (p *Provisioner) tell(node *corev1.Node, rec interruption.Record, r interruption.Replacement) {
	if rec.Replacement != nil && rec.Replacement.State == r.State {
		return
	}
	now := told{instance: rec.Instance, state: r.State}
	p.mu.Lock()
	again := p.told[node.Name] == now
	p.told[node.Name] = now
	p.mu.Unlock()
	if again {
		return
	}
	p.metrics.replacements.WithLabelValues(r.Backend, result(r.State)).Inc()
	if claim, _ := p.claims.get(r.Name); claim != nil && r.State == StateReady {
		p.metrics.ready.WithLabelValues(r.Backend).Observe(claim.readyAfter().Seconds())
	}

	event := p.log.Debug() // the handler tells each node's story
	if r.State == StateUnsupported {
		if !p.sayOnce(r.Reason) {
			return
		}
		event = p.log.Info()
	}
	event = event.Str("node", node.Name).Str("instance_id", rec.Instance).Str("state", r.State)
	if r.Pool != "" {
		event = event.Str("nodepool", r.Pool)
	}
	if r.Name != "" {
		event = event.Str("nodeclaim", r.Name)
	}
	if r.Reason != "" {
		event = event.Str("reason", r.Reason)
	}
	event.Msg("replacement")
}

// sayOnce reports whether the reason is new to the log. What a thousand nodes have
// in common is said for the first of them.
func (p *Provisioner) sayOnce(reason string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, again := p.said[reason]
	p.said[reason] = struct{}{}
	return !again
}

// forget drops what was kept about the node for tell.
func (p *Provisioner) forget(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.told, node)
}

func unsupported(backend, reason string) interruption.Replacement {
	return interruption.Replacement{Backend: backend, State: StateUnsupported, Reason: reason}
}
