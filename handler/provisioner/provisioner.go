package provisioner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
)

// The states of a replacement, as [interruption.Replacement] has them.
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

// Pending reports whether a replacement in the state is still coming, and worth waiting for.
func Pending(state string) bool { return state == StateRequested || state == StateLaunched }

// What Options.Choice can be. All but Auto and None are names of backends, which
// [interruption.Replacement] has too.
const (
	Auto        = "auto"        // by what made the node
	Karpenter   = "karpenter"   // a NodeClaim
	ASG         = "asg"         // the node's Auto Scaling group launches another instance
	Placeholder = "placeholder" // low-priority pods, for which any autoscaler makes room
	None        = "none"        // no replacement: drain only
)

// Spare is the backend of an answer that names no replacement: the pods fit on nodes that are
// there.
const Spare = "spare"

// Room says whether pods fit on nodes that are there. What it has promised to a node stands
// until it says otherwise, or until Forget. They do not fit for a reason, or it does not know yet:
// then the node is reconciled again when it does.
type Room interface {
	Holds(ctx context.Context, node *corev1.Node, pods []*corev1.Pod) (fits bool, why string, err error)
	Forget(node string)
}

// Choices lists what Options.Choice can be.
func Choices() []string { return []string{Auto, Karpenter, ASG, Placeholder, None} }

// Need is what has to find a new home.
type Need struct {
	// Moving are the pods that must leave the node, including those that a disruption budget
	// blocks and those that ask not to be disrupted. Their specs must be complete, as the
	// replacement's size and pool follow from them.
	Moving []*corev1.Pod
	// Daemons are the DaemonSet pods of the interrupted node, which its replacement will run
	// too.
	Daemons []*corev1.Pod
	// Surged are those of Moving whose successors are made before they leave. A pending
	// successor itself tells every autoscaler what it needs.
	Surged map[types.UID]bool
}

// Options configure a Provisioner.
type Options struct {
	// Choice is Auto, None or the name of one of Backends; empty is Auto.
	Choice string

	// Backends are asked in this order. Those that Choice excludes still follow the
	// replacements that an earlier process requested from them.
	Backends []Backend

	// Room is asked before a replacement is requested; nil: it always is.
	Room Room

	Registerer prometheus.Registerer // nil: metrics are kept and not shown
	Logger     zerolog.Logger
}

// Provisioner requests, follows and releases replacements, through the backend that
// suits the node.
type Provisioner struct {
	choice   string
	backends []Backend
	room     Room // nil: nobody asks
	metrics  *metrics
	log      zerolog.Logger
	said     Once

	mu   sync.Mutex
	told map[string]told // by node: what was last counted
}

// told is the last state of a node's replacement that was counted. The caller's
// record says the same, but only once it has been written and has come back.
type told struct {
	instance, backend, name, state string
	tried                          int       // pools that gave none
	asked                          time.Time // when this process saw the first pending state; zero if it did not
}

// maxTold bounds the nodes whose last state is remembered.
const maxTold = 5000

// New returns a Provisioner. It makes no call and starts nothing.
func New(opts Options) *Provisioner {
	if opts.Choice == "" {
		opts.Choice = Auto
	}
	names := make([]string, len(opts.Backends))
	for i, b := range opts.Backends {
		names[i] = b.Name()
	}
	if opts.Room != nil {
		names = append(names, Spare)
	}
	return &Provisioner{
		choice:   opts.Choice,
		backends: opts.Backends,
		room:     opts.Room,
		metrics:  newMetrics(opts.Registerer, names),
		log:      opts.Logger.With().Str("component", "provisioner").Logger(),
		told:     map[string]told{},
	}
}

// Run follows the replacements until ctx is done, and then returns nil. Call it once.
func (p *Provisioner) Run(ctx context.Context) error {
	if p.choice == None {
		<-ctx.Done()
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, b := range p.backends {
		g.Go(func() error {
			if err := b.Run(ctx); err != nil {
				return fmt.Errorf("run provisioner %s: %w", b.Name(), err)
			}
			return nil
		})
	}
	return g.Wait()
}

// Request asks for a replacement of the node, or says how far the one that the record names
// has come. Call it whenever the node is reconciled, with the current record, and keep the
// answer there. It makes at most a few API calls and never waits for a machine. An error is
// transient.
//
// Ready is final, even if the replacement is taken away later, and so is Failed with a Name:
// the same replacement is never requested twice. Failed without a Name and Unsupported are
// decided again at a later call.
func (p *Provisioner) Request(ctx context.Context, node *corev1.Node, rec interruption.Record, need Need) (interruption.Replacement, error) {
	r, why, spare := p.spare(ctx, node, rec, need)
	if !spare {
		var err error
		r, why, err = p.dispatch(node, rec, func(b Backend, rec interruption.Record) (interruption.Replacement, error) {
			return b.Request(ctx, node, rec, need)
		})
		if err != nil {
			return interruption.Replacement{}, err
		}
	}
	if !spare || !Pending(r.State) {
		p.tell(node, rec, r, why)
	}
	return r, nil
}

// spare is the answer for pods that need no replacement, if that is so. As long as it is not
// known, they need one.
func (p *Provisioner) spare(ctx context.Context, node *corev1.Node, rec interruption.Record, need Need) (r interruption.Replacement, why string, ok bool) {
	prev := rec.Replacement
	if p.room == nil || p.choice == None || prev != nil && prev.Name != "" {
		return r, "", false
	}
	if len(need.Moving) == 0 { // all have moved, or nobody asked before
		if prev == nil || prev.Backend != Spare {
			return r, "", false
		}
		return *prev, "--replacement=when-needed", true
	}
	fits, against, err := p.room.Holds(ctx, node, need.Moving)
	switch {
	case err != nil:
		if ctx.Err() == nil && p.said.First(err.Error()) { // else nobody waits for the answer
			p.log.Warn().Err(err).Str("node", node.Name).Msg("cannot tell whether there is room, replacement requested")
		}
		return r, "", false
	case !fits && against == "":
		return interruption.Replacement{Backend: Spare, State: StateRequested, Reason: "it is not known yet whether the pods fit on nodes that are there"}, "", true
	case !fits:
		p.log.Debug().Str("node", node.Name).Str("reason", against).Msg("replacement needed")
		return r, "", false
	}
	return interruption.Replacement{Backend: Spare, State: StateReady, Reason: "the pods fit on nodes that are there"}, "--replacement=when-needed", true
}

// Choose says what Request would ask for, and asks for nothing: the state is
// Requested where it would be.
func (p *Provisioner) Choose(ctx context.Context, node *corev1.Node, rec interruption.Record, need Need) (interruption.Replacement, error) {
	if r, _, ok := p.spare(ctx, node, rec, need); ok {
		return r, nil
	}
	r, _, err := p.dispatch(node, rec, func(b Backend, rec interruption.Record) (interruption.Replacement, error) {
		return b.Choose(ctx, node, rec, need)
	})
	return r, err
}

// Release hands the node back to what made it. Every backend is asked, as each knows what is
// its own: one might have made the node, and another the replacement. With None it does
// nothing.
func (p *Provisioner) Release(ctx context.Context, node *corev1.Node, rec interruption.Record) error {
	p.Forget(node.Name)
	if p.choice == None {
		return nil
	}
	var errs []error
	for _, b := range p.backends {
		if err := b.Release(ctx, node, rec); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Forget drops what is remembered of a node's interruption, such as the room that its pods were
// promised: the next one finds another cluster.
func (p *Provisioner) Forget(node string) {
	p.mu.Lock()
	delete(p.told, node)
	p.mu.Unlock()
	if p.room != nil {
		p.room.Forget(node)
	}
}

// dispatch asks the backends, and returns the first answer that counts and why that backend
// was chosen. A replacement that was requested stays with its backend.
func (p *Provisioner) dispatch(node *corev1.Node, rec interruption.Record, ask func(Backend, interruption.Record) (interruption.Replacement, error)) (r interruption.Replacement, why string, err error) {
	if prev := rec.Replacement; prev != nil && prev.Name != "" {
		if b := p.backend(prev.Backend); b != nil {
			r, err = ask(b, rec)
			return r, "the record names its replacement", err
		}
		if Pending(prev.State) {
			return Failed(*prev, "provisioner "+prev.Backend+" is not here to follow it"), "the record names its replacement", nil
		}
		return *prev, "the record names its replacement", nil
	}
	if p.choice == None {
		return Unsupported(None, "replacement is switched off"), "--provisioner=none", nil
	}
	list, why := p.candidates(node)
	var against []string
	for _, b := range list {
		own := rec
		if own.Replacement != nil && own.Replacement.Backend != b.Name() {
			own.Replacement = nil
		}
		r, err = ask(b, own)
		switch {
		case err != nil:
			return r, why, err
		case r.State != StateUnsupported:
			if why == "" {
				why = "the first that can: " + strings.Join(append(against, b.Name()), "; ")
			}
			return r, why, nil
		case len(list) == 1:
			return r, why, nil
		}
		against = append(against, b.Name()+": "+r.Reason)
	}
	if len(against) == 0 {
		against = []string{"there is no provisioner"}
	}
	return Unsupported(None, strings.Join(against, "; ")), "none can", nil
}

// candidates are the backends to ask about the node: the one that was chosen, else the one
// that made the node, else all.
func (p *Provisioner) candidates(node *corev1.Node) (list []Backend, why string) {
	if p.choice != Auto {
		if b := p.backend(p.choice); b != nil {
			return []Backend{b}, "--provisioner=" + p.choice
		}
		return nil, "--provisioner=" + p.choice
	}
	for _, b := range p.backends {
		if b.Made(node) {
			return []Backend{b}, "it made the node"
		}
	}
	return p.backends, ""
}

// backend is the one of that name, or nil.
func (p *Provisioner) backend(name string) Backend {
	if i := slices.IndexFunc(p.backends, func(b Backend) bool { return b.Name() == name }); i >= 0 {
		return p.backends[i]
	}
	return nil
}

// Asked is the replacement that the record says was requested from the backend, or nil. One that is
// only being looked for has no name yet.
func Asked(rec interruption.Record, backend string) *interruption.Replacement {
	if r := rec.Replacement; r != nil && r.Backend == backend && r.Name != "" {
		return r
	}
	return nil
}

// Unsupported is the answer that a backend can do nothing for a node.
func Unsupported(backend, reason string) interruption.Replacement {
	return interruption.Replacement{Backend: backend, State: StateUnsupported, Reason: reason}
}

// Failed is a replacement of which nothing will come.
func Failed(r interruption.Replacement, reason string) interruption.Replacement {
	r.State, r.Reason = StateFailed, reason
	return r
}
