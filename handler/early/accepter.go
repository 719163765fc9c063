// Package early has notices about instances that are no Node yet recorded as soon as they are.
// Otherwise the pods that wait for such a Node would be put on it, and would have to leave at once.
//
//	source ─► early.Accepter ─► the next Accepter ─┬─ anything else ► settled
//	   ▲                                           └─ Unknown ─┐
//	   └── NoNodeError: the source keeps the message ──────────┘
//	       and asks again when the Node appears, or now and then
//
// The notice is kept by its source alone, so it is not lost with this process. It is waited for until
// its deadline, but for no longer than a Node can take to register. How many are is bounded; when
// there are too many, those go first that matter least. Then, and only then, somebody who knows
// machines that are about to register, such as Karpenter by its NodeClaims, is asked which of the
// instances are ours: those stay.
package early

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/rs/zerolog"
	"k8s.io/apimachinery/pkg/util/cache"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

const (
	// maxKept bounds the notices that are kept, at about 500 bytes each, and 8 KB with their
	// messages.
	maxKept = 2000

	// maxGone bounds the instances that are remembered as gone, at about 100 bytes each.
	maxGone = 5000

	// registers is the longest that an instance takes from its launch until it is a Node:
	// Karpenter gives up on a machine after as long.
	// https://github.com/kubernetes-sigs/karpenter/blob/v1.14.1/pkg/controllers/nodeclaim/lifecycle/liveness.go
	registers = 15 * time.Minute

	// askEvery is how often Launched is asked: the answer grows with the cluster.
	askEvery = 10 * time.Second
)

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

	mu   sync.Mutex
	kept map[key]*waiting
	gone *cache.LRUExpireCache // instances that stopped being Nodes

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
		opts: o, kept: map[key]*waiting{}, gone: cache.NewLRUExpireCache(maxGone),
		total: promauto.With(o.Registerer).NewCounterVec(prometheus.CounterOpts{
			Name: "spot_handler_early_notices_total",
			Help: "Notices about instances that were no Node, by what became of them.",
		}, []string{"outcome"}),
	}
	for _, outcome := range []string{recorded, expired, dropped} {
		a.total.WithLabelValues(outcome)
	}
	return a
}

// Accept is as [spot-handler/handler.Handler]'s, except that a notice about an unknown instance
// may be worth waiting for. Then the error is a NoNodeError.
func (a *Accepter) Accept(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
	verdict, err := a.opts.Next.Accept(ctx, n)
	if err != nil || verdict != interruption.Unknown {
		return verdict, err
	}
	if _, gone := a.gone.Get(n.InstanceID); gone || !time.Now().Before(until(n)) {
		a.drop(expired, func(w *waiting) bool { return keyOf(w.notice) == keyOf(n) })
		return verdict, nil
	}
	w := a.keep(ctx, n)
	if w == nil {
		a.total.WithLabelValues(dropped).Inc()
		a.opts.Logger.Debug().Str("instance_id", n.InstanceID).Str("kind", string(n.Kind)).
			Msg("too many notices wait for nodes, notice taken for another cluster's")
		return verdict, nil
	}
	if _, registered := a.opts.Nodes.Find(n); registered { // meanwhile, or it is gone and the index does not know yet
		a.Appeared(n.InstanceID)
		return "", &interruption.NoNodeError{Instance: n.InstanceID}
	}
	return "", &interruption.NoNodeError{Instance: n.InstanceID, Over: w.over}
}

// keep keeps a notice, in place of what matters less if it has to be. It returns nil if all the
// others matter more.
func (a *Accepter) keep(ctx context.Context, n interruption.Notice) *waiting {
	a.drop(expired, func(w *waiting) bool { return !time.Now().Before(until(w.notice)) })
	a.mu.Lock()
	known, full := a.kept[keyOf(n)], len(a.kept) >= maxKept
	a.mu.Unlock()
	if known != nil {
		return known
	}
	var launched map[string]bool
	if full {
		launched = a.ours(ctx)
	}
	w := &waiting{notice: n, ours: launched[n.InstanceID], over: make(chan struct{})}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, other := range a.kept {
		other.ours = other.ours || launched[other.notice.InstanceID]
	}
	if len(a.kept) >= maxKept {
		least := slices.MinFunc(slices.Collect(maps.Values(a.kept)), byWorth)
		if byWorth(least, w) >= 0 {
			return nil
		}
		delete(a.kept, keyOf(least.notice)) // its source asks again, and gets the verdict then
		close(least.over)
	}
	a.kept[keyOf(n)] = w
	return w
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

// Appeared takes the news that an instance has become a Node. It never blocks.
func (a *Accepter) Appeared(instance string) {
	a.gone.Remove(instance)
	a.drop(recorded, func(w *waiting) bool { return w.notice.InstanceID == instance })
}

// Gone takes the news that an instance is no Node any more. What comes about it from now on does
// not wait for a Node that is yet to be. It never blocks.
func (a *Accepter) Gone(instance string) {
	a.gone.Add(instance, nil, registers) // what comes about one that has fallen out waits in vain, and expires
	a.drop(expired, func(w *waiting) bool { return w.notice.InstanceID == instance })
}

// drop keeps those notices no longer: a caller that waits asks once more.
func (a *Accepter) drop(outcome string, which func(*waiting) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, w := range a.kept {
		if which(w) {
			delete(a.kept, key)
			close(w.over)
			a.total.WithLabelValues(outcome).Inc()
		}
	}
}

// until is when a notice is not worth keeping any more; zero if it never is. A scheduled event
// is days ahead and about machines that have run for long; a state says that the instance is
// going already; and a lifecycle hook is completed without a Node.
func until(n interruption.Notice) time.Time {
	switch n.Kind {
	case interruption.SpotInterruption, interruption.CapacityReservationInterruption, interruption.RebalanceRecommendation:
	default:
		return time.Time{}
	}
	return interruption.Earlier(n.Noticed.Add(registers), n.Deadline)
}

// key names a notice: two announcements about one instance are kept side by side.
type key struct{ instance, event string }

func keyOf(n interruption.Notice) key { return key{n.InstanceID, n.EventID} }

// waiting is a notice that is kept.
type waiting struct {
	notice interruption.Notice
	ours   bool          // the instance is about to be a Node of this cluster
	over   chan struct{} // closed when it is not kept any more
}

// byWorth orders notices by how much they matter, the least first: those not known to be ours, then
// mere recommendations, then those of which less is left of the time in which their Node has not
// appeared so far.
func byWorth(a, b *waiting) int {
	rank := func(w *waiting) (rank int) {
		if w.ours {
			rank = 2
		}
		if w.notice.Kind != interruption.RebalanceRecommendation {
			rank++
		}
		return rank
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), until(a.notice).Compare(until(b.notice)))
}
