// Package provisioner asks for the capacity that replaces an interrupted node, follows it
// until it is Ready, and ends the interrupted node through what made it. A [Backend] makes
// the replacement, each in a package of its own; [Provisioner] asks the one that suits the
// node.
//
//	          request accepted      instance exists       node initialized
//	(nothing) ────────────► Requested ────────► Launched ────────► Ready
//	     │                      │                  │
//	     │                      └────────┬─────────┘
//	     ▼                               ▼
//	Unsupported                        Failed
//
// What was asked for is kept only in the interruption's record and in the cluster: any
// process can go on from there. [Provisioner.Request] and [Provisioner.Terminate] are
// idempotent, safe for concurrent use, and never wait for a machine: Request says how far the
// replacement has come, and the backend's notify function says when to ask again. Errors are
// transient, and callers retry them; whatever would fail again is a state with a reason.
package provisioner

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// Options configure a Provisioner.
type Options struct {
	// Choice is Auto, None or the name of one of Backends.
	Choice string

	// Backends are asked in this order. Those that Choice excludes still follow the
	// replacements that an earlier process requested from them.
	Backends []Backend

	// Room is asked before a replacement is requested; nil: it always is.
	Room Room

	Registerer prometheus.Registerer // nil: metrics are kept and not shown
	Logger     zerolog.Logger
}

// Provisioner requests and follows replacements, and ends the nodes that they replace, through
// the backend that suits the node.
type Provisioner struct {
	opts    Options
	metrics *metrics
	log     zerolog.Logger
	said    Once

	mu    sync.Mutex
	asked map[string]time.Time // by node: when this process saw its pending replacement requested
}

// New returns a Provisioner. It makes no call and starts nothing.
func New(opts Options) *Provisioner {
	names := make([]string, len(opts.Backends))
	for i, b := range opts.Backends {
		names[i] = b.Name()
	}
	if opts.Room != nil {
		names = append(names, Spare)
	}
	return &Provisioner{
		opts:    opts,
		metrics: newMetrics(opts.Registerer, names),
		log:     opts.Logger.With().Str("component", "provisioner").Logger(),
		asked:   map[string]time.Time{},
	}
}

// Run follows the replacements until ctx is done, and then returns nil. Call it once.
func (p *Provisioner) Run(ctx context.Context) error {
	if p.opts.Choice == None {
		<-ctx.Done()
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, b := range p.opts.Backends {
		g.Go(func() error { return b.Run(ctx) })
	}
	return g.Wait()
}

// Request asks for a replacement of the node, or says how far the one that the record names
// has come. Call it whenever the node is reconciled, with the record as it is when it has the last
// answer. It makes at most a few API calls and never waits for a machine. An error is
// transient.
//
// Ready is final, even if the replacement is taken away later, and so is Failed with a Name:
// the same replacement is never requested twice. Failed without a Name and Unsupported are
// decided again at a later call.
func (p *Provisioner) Request(ctx context.Context, node *corev1.Node, rec interruption.Record, need Need) (interruption.Replacement, error) {
	if d := p.spare(ctx, node, rec, need); d != nil {
		if !Pending(d.State) {
			p.report(node, rec, *d)
		}
		return d.Replacement, nil
	}
	d, err := p.dispatch(ctx, node, rec, need)
	if err != nil {
		return interruption.Replacement{}, err
	}
	p.report(node, rec, d)
	return d.Replacement, nil
}

// spare is the answer for pods that need no replacement; nil if they need one, as they do as long as that
// is not known.
func (p *Provisioner) spare(ctx context.Context, node *corev1.Node, rec interruption.Record, need Need) *decision {
	const why = "--replacement=when-needed"
	prev := rec.Replacement
	if p.opts.Room == nil || p.opts.Choice == None || prev != nil && prev.Name != "" || rec.Returns() {
		return nil // what goes back to spot waits for its new node
	}
	if len(need.Moving) == 0 { // all have moved, or nobody asked before
		if prev == nil || prev.Backend != Spare {
			return nil
		}
		return &decision{*prev, why}
	}
	answer := interruption.Replacement{Backend: Spare, State: StateReady, Reason: "the pods fit on nodes that are there"}
	fit, err := p.opts.Room.Fit(ctx, node, need.Moving)
	switch {
	case err != nil:
		if ctx.Err() == nil && p.said.First(err.Error()) { // else nobody waits for the answer
			p.log.Warn().Err(err).Str("node", node.Name).Msg("cannot tell whether there is room, replacement requested")
		}
		return nil
	case !fit.Known:
		answer.State, answer.Reason = StateRequested, "it is not known yet whether the pods fit on nodes that are there"
	case fit.Against != "":
		p.log.Debug().Str("node", node.Name).Str("reason", fit.Against).Msg("replacement needed")
		return nil
	}
	return &decision{answer, why}
}

// Terminate ends the drained node: what made it deletes or terminates it. Every backend is asked,
// as each knows what is its own: one might have made the node, and another the replacement. With
// None it does nothing.
func (p *Provisioner) Terminate(ctx context.Context, node *corev1.Node, rec interruption.Record) error {
	p.Forget(node.Name)
	if p.opts.Choice == None {
		return nil
	}
	var errs []error
	for _, b := range p.opts.Backends {
		errs = append(errs, b.Terminate(ctx, node, rec))
	}
	return errors.Join(errs...)
}

// Forget drops what is remembered of a node's interruption, such as the room that its pods were
// promised: the next one finds another cluster.
func (p *Provisioner) Forget(node string) {
	p.mu.Lock()
	delete(p.asked, node)
	p.mu.Unlock()
	if p.opts.Room != nil {
		p.opts.Room.Forget(node)
	}
}

// dispatch asks the backends, and returns the first answer that counts. A replacement that was
// requested stays with its backend.
func (p *Provisioner) dispatch(ctx context.Context, node *corev1.Node, rec interruption.Record, need Need) (decision, error) {
	if prev := rec.Replacement; prev != nil && prev.Name != "" {
		return p.follow(ctx, node, rec, need)
	}
	if p.opts.Choice == None {
		return decision{Unsupported(None, "replacement is switched off"), "--provisioner=none"}, nil
	}
	list, why := p.candidates(node)
	var against []string
	for _, b := range list {
		own := rec
		if own.Replacement != nil && own.Replacement.Backend != b.Name() {
			own.Replacement = nil
		}
		r, err := b.Request(ctx, node, own, need)
		switch {
		case err != nil:
			return decision{}, err
		case r.State != StateUnsupported:
			return decision{r, cmp.Or(why, "the first that can: "+strings.Join(append(against, b.Name()), "; "))}, nil
		case len(list) == 1:
			return decision{r, why}, nil
		}
		against = append(against, b.Name()+": "+r.Reason)
	}
	if len(against) == 0 {
		against = []string{"there is no provisioner"}
	}
	return decision{Unsupported(None, strings.Join(against, "; ")), "none can"}, nil
}

// follow asks the backend of the replacement that the record names.
func (p *Provisioner) follow(ctx context.Context, node *corev1.Node, rec interruption.Record, need Need) (decision, error) {
	const why = "the record names its replacement"
	prev := *rec.Replacement
	b := p.backend(prev.Backend)
	switch {
	case b != nil:
		r, err := b.Request(ctx, node, rec, need)
		return decision{r, why}, err
	case Pending(prev.State):
		return decision{Failed(prev, "provisioner "+prev.Backend+" is not here to follow it"), why}, nil
	}
	return decision{prev, why}, nil
}

// candidates are the backends to ask about the node: the one that was chosen, else the one
// that made the node, else all.
func (p *Provisioner) candidates(node *corev1.Node) (list []Backend, why string) {
	if p.opts.Choice != Auto {
		if b := p.backend(p.opts.Choice); b != nil {
			return []Backend{b}, "--provisioner=" + p.opts.Choice
		}
		return nil, "--provisioner=" + p.opts.Choice
	}
	for _, b := range p.opts.Backends {
		if b.Made(node) {
			return []Backend{b}, "it made the node"
		}
	}
	return p.opts.Backends, ""
}

// backend is the one of that name, or nil.
func (p *Provisioner) backend(name string) Backend {
	if i := slices.IndexFunc(p.opts.Backends, func(b Backend) bool { return b.Name() == name }); i >= 0 {
		return p.opts.Backends[i]
	}
	return nil
}
