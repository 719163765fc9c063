// Package early keeps notices about instances that are no Node yet, and has them recorded as
// soon as they are. Otherwise the pods that wait for such a Node would be put on it, and would
// have to leave at once.
//
//	source ─► early.Accepter ─► the next Accepter ─┬─ anything else ► settled
//	                  ▲                            └─ Unknown ─┬─ kept: ErrNoNode, the source keeps
//	                  │                                        │        the message and asks again
//	                  └───── the Node appears ◄────────────────┘
//
// A notice is kept until its deadline, but for no longer than a Node can take to register. What
// is kept is bounded; when it is full, those go first that matter least. Then, and only then,
// somebody who knows machines that are about to register, such as Karpenter by its NodeClaims,
// is asked which of the instances are ours: those stay.
//
// What is kept is lost when the process ends. So the source must not let go of a message whose
// notice is kept: another process receives it again.
package early

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/rs/zerolog"
	"k8s.io/apimachinery/pkg/util/cache"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// acceptTimeout bounds one attempt to record a notice. The source asks again anyway.
const acceptTimeout = 20 * time.Second

// sweepEvery is how often what is not worth keeping any more is dropped.
const sweepEvery = time.Second

// askEvery is how often Launched is asked: the answer grows with the cluster.
const askEvery = 10 * time.Second

// Options configure an Accepter.
type Options struct {
	Next  interruption.Accepter // records notices, as [spot-handler/handler.Handler] does
	Nodes nodes.Finder

	// Launched returns the instances that are about to register as Nodes of this cluster. It is
	// asked only when too many notices are kept, and at most every askEvery. It can be nil.
	Launched func(ctx context.Context) (map[string]bool, error)

	Registerer prometheus.Registerer
	Logger     zerolog.Logger
}

// Accepter keeps what Next does not know. Its methods are safe for concurrent use.
type Accepter struct {
	opts  Options
	total *prometheus.CounterVec

	mu    sync.Mutex
	kept  kept
	swept time.Time
	gone  *cache.LRUExpireCache // instances that stopped being Nodes
	due   map[string]struct{}   // instances that have appeared since Run last looked
	wake  chan struct{}

	asking   sync.Mutex
	asked    time.Time
	launched map[string]bool // as Launched last said
}

// What became of a notice that came before its Node; a label's value.
const (
	recorded = "recorded" // the Node appeared
	expired  = "expired"  // it did not, in time
	dropped  = "dropped"  // not kept, as too many others were
)

// New returns an Accepter. It makes no call and starts nothing.
func New(o Options) *Accepter {
	a := &Accepter{
		opts: o, kept: kept{}, gone: cache.NewLRUExpireCache(maxGone), due: map[string]struct{}{}, wake: make(chan struct{}, 1),
		total: promauto.With(o.Registerer).NewCounterVec(prometheus.CounterOpts{
			Name: "spot_handler_early_notices_total",
			Help: "Notices about instances that were no Node, by what became of them.",
		}, []string{"outcome"}),
	}
	for _, outcome := range []string{recorded, expired, dropped} {
		a.notices(outcome)
	}
	return a
}

// Accept is as [spot-handler/handler.Handler]'s, except that a notice about an unknown instance
// may be kept. Then the error is ErrNoNode until the notice is recorded or no longer kept.
func (a *Accepter) Accept(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
	_, registered := a.opts.Nodes.Find(n)
	a.mu.Lock()
	if now := time.Now(); now.Sub(a.swept) >= sweepEvery {
		a.swept = now
		a.notices(expired).Add(float64(a.kept.expire(now)))
	}
	w := a.kept[keyOf(n)]
	switch {
	case w == nil:
	case w.verdict != "":
		delete(a.kept, keyOf(n))
		a.mu.Unlock()
		return w.verdict, nil
	case !registered:
		a.mu.Unlock()
		return "", noNode(n)
	}
	a.mu.Unlock()

	verdict, err := a.opts.Next.Accept(ctx, n)
	if err != nil {
		return verdict, err
	}
	if verdict != interruption.Unknown {
		a.settled(n, verdict, true)
		return verdict, nil
	}
	if _, gone := a.gone.Get(n.InstanceID); gone || !time.Now().Before(until(n)) {
		return verdict, nil
	}
	if !a.keep(ctx, n) {
		a.notices(dropped).Inc()
		a.opts.Logger.Debug().Str("instance_id", n.InstanceID).Str("kind", string(n.Kind)).
			Msg("too many notices wait for nodes, notice taken for another cluster's")
		return verdict, nil
	}
	if _, registered := a.opts.Nodes.Find(n); registered { // meanwhile
		a.Appeared(n.InstanceID)
	}
	return "", noNode(n)
}

// keep keeps a notice, in place of what matters less if it has to be, or reports that all the
// others matter more.
func (a *Accepter) keep(ctx context.Context, n interruption.Notice) bool {
	a.mu.Lock()
	full := len(a.kept) >= maxKept
	a.mu.Unlock()
	var launched map[string]bool
	if full {
		launched = a.ours(ctx)
	}
	w := &waiting{notice: n, ours: launched[n.InstanceID]}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, other := range a.kept {
		other.ours = other.ours || launched[other.notice.InstanceID]
	}
	if len(a.kept) >= maxKept {
		least := a.kept.least()
		if !least.lessThan(w) {
			return false
		}
		delete(a.kept, keyOf(least.notice)) // its source asks again, and gets the verdict then
	}
	a.kept[keyOf(n)] = w
	return true
}

// ours is which instances are about to register, as far as that is known.
func (a *Accepter) ours(ctx context.Context) map[string]bool {
	a.asking.Lock()
	defer a.asking.Unlock()
	if a.opts.Launched == nil || time.Since(a.asked) < askEvery {
		return a.launched
	}
	launched, err := a.opts.Launched(ctx)
	a.asked = time.Now()
	if err != nil {
		a.opts.Logger.Warn().Err(err).Msg("cannot tell which instances are about to register")
		return a.launched
	}
	a.launched = launched
	return launched
}

func noNode(n interruption.Notice) error {
	return fmt.Errorf("find node of instance %s: %w", n.InstanceID, interruption.ErrNoNode)
}

// Appeared takes the news that an instance has become a Node. It never blocks.
func (a *Accepter) Appeared(instance string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone.Remove(instance)
	if len(a.kept.of(instance)) == 0 {
		return
	}
	a.due[instance] = struct{}{}
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Gone takes the news that an instance is no Node any more. What comes about it from now on does
// not wait for a Node that is yet to be. It never blocks.
func (a *Accepter) Gone(instance string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range a.kept.of(instance) {
		delete(a.kept, keyOf(n))
		a.notices(expired).Inc()
	}
	a.gone.Add(instance, nil, registers) // what comes about one that has fallen out is kept in vain, and expires
}

// Run records what is kept as soon as its Node appears, until ctx ends; then it returns nil.
func (a *Accepter) Run(ctx context.Context) error {
	var attempts sync.WaitGroup
	defer attempts.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
		}
		for _, n := range a.takeDue() {
			attempts.Go(func() { a.record(ctx, n) })
		}
	}
}

func (a *Accepter) takeDue() []interruption.Notice {
	a.mu.Lock()
	defer a.mu.Unlock()
	var due []interruption.Notice
	for instance := range a.due {
		due = append(due, a.kept.of(instance)...)
	}
	clear(a.due)
	return due
}

// record submits a notice that was kept. If that fails, the source submits it again.
func (a *Accepter) record(ctx context.Context, n interruption.Notice) {
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	verdict, err := a.opts.Next.Accept(ctx, n)
	switch {
	case err != nil:
		a.opts.Logger.Debug().Err(err).Str("instance_id", n.InstanceID).Msg("cannot record notice that was kept")
	case verdict != interruption.Unknown:
		a.settled(n, verdict, false)
	}
}

// settled notes what became of a notice, if it was kept. Its source has the verdict, or
// gets it when it asks again.
func (a *Accepter) settled(n interruption.Notice, verdict interruption.Verdict, sourceHasIt bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.kept[keyOf(n)]
	if w == nil || w.verdict != "" {
		return
	}
	a.notices(recorded).Inc()
	w.verdict = verdict
	if sourceHasIt {
		delete(a.kept, keyOf(n))
	}
}

func (a *Accepter) notices(outcome string) prometheus.Counter {
	return a.total.WithLabelValues(outcome)
}
