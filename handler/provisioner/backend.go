package provisioner

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
)

// Backend makes replacement nodes in one way. Its methods are safe for concurrent use, make
// at most a few API calls, and never wait for a machine: progress is announced through the
// notify function that the backend is made with.
type Backend interface {
	// Name is the backend's name in --provisioner, in the record and in metrics.
	Name() string

	// Made reports whether the backend's provisioner made the node, as far as the Node itself
	// says. Then no other backend is asked, whatever this one answers.
	Made(node *corev1.Node) bool

	// Request asks for a replacement, or says how far the one that the record names has come.
	// Unsupported with a reason means that this backend can do nothing for the node.
	Request(ctx context.Context, node *corev1.Node, rec interruption.Record, need Need) (interruption.Replacement, error)

	// Terminate ends the drained node if that is the backend's to do: its NodeClaim is deleted, or its
	// instance terminated. What the backend has made for its pods alone is removed. It is idempotent.
	Terminate(ctx context.Context, node *corev1.Node, rec interruption.Record) error

	// Run follows the backend's replacements until ctx is done, and then returns nil. Until
	// the first is requested it only removes what an earlier process has left behind.
	Run(ctx context.Context) error
}

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

// CapacityOf is what pods can wait for if r is their node's replacement. If r is nil none was asked for
// yet, and one may come.
func CapacityOf(r *interruption.Replacement) drain.Capacity {
	switch {
	case r == nil, Pending(r.State):
		return drain.PendingCapacity
	case r.State == StateReady:
		return drain.ReadyCapacity
	}
	return drain.NoCapacity
}

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

// Need is what has to find a new home.
type Need struct {
	// Moving are the pods that must leave the node, including those that a disruption budget
	// blocks and those that ask not to be disrupted. Their specs must be complete, as the
	// replacement's size and pool follow from them.
	Moving []*corev1.Pod
	// Daemons are the DaemonSet pods of the interrupted node, which its replacement will run
	// too.
	Daemons []*corev1.Pod
	// Surged are those of Moving whose replacement pods are made before they leave. A pending
	// replacement pod itself tells every autoscaler what it needs.
	Surged map[types.UID]bool
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

// report counts and logs each change of a replacement's state once, and logs once for each
// node which backend was chosen and why.
func (p *Provisioner) report(node *corev1.Node, rec interruption.Record, r interruption.Replacement, why string) {
	var last interruption.Replacement
	if prev := rec.Replacement; prev != nil && (prev.Backend != Spare || !Pending(prev.State)) {
		last = *prev
	}
	another := last.Name != "" && last.Name != r.Name
	p.mu.Lock()
	asked := p.asked[node.Name]
	switch {
	case !Pending(r.State):
		delete(p.asked, node.Name)
	case another, !Pending(last.State):
		p.asked[node.Name] = time.Now()
	}
	p.mu.Unlock()

	if n := r.Attempts() - last.Attempts(); n > 0 && r.Backend == last.Backend {
		p.metrics.replacements.WithLabelValues(r.Backend, strings.ToLower(StateFailed)).Add(float64(n))
	}
	if tried := r.State == StateFailed && r.Tried != ""; !tried && (another || last.State != r.State || last.Backend != r.Backend) {
		p.metrics.replacements.WithLabelValues(r.Backend, strings.ToLower(r.State)).Inc()
		if r.State == StateReady && !asked.IsZero() {
			p.metrics.ready.WithLabelValues(r.Backend).Observe(time.Since(asked).Seconds())
		}
	}
	undecided := r.Name == "" && Pending(r.State)
	wasUndecided := last.State == "" || last.Name == "" && Pending(last.State)
	if undecided || !wasUndecided {
		return
	}
	if r.State == StateUnsupported && !p.said.First(r.Reason) {
		return // what a thousand nodes have in common is logged for the first of them
	}
	event := p.log.Info().Str("node", node.Name).Str("instance_id", rec.Instance).Str("backend", r.Backend).Str("why", why).Str("state", r.State)
	for key, value := range map[string]string{"pool": r.Pool, "replacement": r.Name, "reason": r.Reason} {
		if value != "" {
			event = event.Str(key, value)
		}
	}
	event.Msg("provisioner chosen")
}

// Once remembers what was said, so as to say it once. It is safe for concurrent use.
type Once struct {
	said  sync.Map
	texts atomic.Int64
}

// maxSaid bounds the texts that are remembered as said. Beyond that all are forgotten, and said again.
const maxSaid = 1000

// First reports whether the text is new.
func (o *Once) First(text string) bool {
	_, again := o.said.LoadOrStore(text, nil)
	if !again && o.texts.Add(1) > maxSaid {
		o.texts.Store(0)
		o.said.Clear()
	}
	return !again
}

// Cause is the API server's text without the object's name, which differs between nodes.
func Cause(err error) string {
	text := err.Error()
	if _, why, ok := strings.Cut(text, "is forbidden: "); ok {
		return why
	}
	return text
}

type metrics struct {
	replacements *prometheus.CounterVec
	ready        *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer, backends []string) *metrics {
	m := &metrics{
		replacements: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
			Name: "spot_handler_replacements_total",
			Help: "Replacements that reached a state (requested, launched, ready, failed, unsupported), by backend. A state that nobody saw is not counted.",
		}, []string{"backend", "result"}),
		ready: promauto.With(reg).NewHistogramVec(prometheus.HistogramOpts{
			Name:                            "spot_handler_replacement_ready_seconds",
			Help:                            "Time from the request of a replacement until it was Ready.",
			Buckets:                         []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 40, 50, 60, 75, 90, 105, 120},
			NativeHistogramBucketFactor:     1.1,
			NativeHistogramMaxBucketNumber:  100,
			NativeHistogramMinResetDuration: time.Hour,
		}, []string{"backend"}),
	}
	for _, backend := range append([]string{None}, backends...) {
		for _, state := range States() {
			m.replacements.WithLabelValues(backend, strings.ToLower(state))
		}
	}
	for _, backend := range backends {
		m.ready.WithLabelValues(backend)
	}
	return m
}
