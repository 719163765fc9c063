package drain

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

// Options configure a Drainer.
type Options struct {
	// Pods and Budgets are the REST clients of the API groups core/v1 and policy/v1.
	// The generated clients are no use here: they retry by themselves what a
	// disruption budget refuses.
	Pods    rest.Interface
	Budgets rest.Interface

	Policy Policy

	// Notify is called with a node's name when anything about its drain may have
	// changed. It is called from any goroutine, often, and must not block.
	Notify func(node string)

	// Refused is called once for each pod that a disruption budget holds back for
	// seconds, with the API server's own words. It must not block.
	Refused func(node string, pod *corev1.Pod, reason string)

	// Workers is how many evictions are under way at once; 32 where it is zero.
	Workers int

	Registerer prometheus.Registerer
	Logger     zerolog.Logger
}

// startsAtOnce is how many watches are opened at the same moment: each has the API
// server read a node's pods, and a thousand at once would hold up all else.
const startsAtOnce = 32

// Drainer drains nodes. Its methods are safe for concurrent use and none waits for
// a pod.
type Drainer struct {
	opts    Options
	metrics *metrics
	queue   *queue
	budgets *budgets

	starting *semaphore.Weighted // of startsAtOnce

	mu       sync.Mutex
	sessions map[string]*session
}

// New returns a Drainer. It makes no call and starts nothing.
func New(opts Options) *Drainer {
	if opts.Workers == 0 {
		opts.Workers = 32
	}
	d := &Drainer{opts: opts, queue: newQueue(), starting: semaphore.NewWeighted(startsAtOnce), sessions: map[string]*session{}}
	d.budgets = newBudgets(opts.Budgets, d.queue.wake, opts.Logger)
	d.metrics = newMetrics(opts.Registerer, d)
	return d
}

// Run evicts until ctx ends. Pods that were already evicted go on terminating.
func (d *Drainer) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, d.queue.close)
	defer stop()
	var workers sync.WaitGroup
	for range d.opts.Workers {
		workers.Go(func() {
			for {
				t, ok := d.queue.next()
				if !ok {
					return
				}
				d.evict(ctx, t)
			}
		})
	}
	workers.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	for node, s := range d.sessions {
		s.stop()
		delete(d.sessions, node)
	}
	d.budgets.forget()
	return nil
}

// View is what is on a node now.
type View struct {
	Moving  []*corev1.Pod // have to leave
	Daemons []*corev1.Pod // DaemonSet pods, which stay
	Plan    []Decision    // one for every pod of the node
}

// Look reads a node's pods and plans, without evicting any. The first call starts
// the node's watch, which lives until Forget or the end of ctx; until the pods are
// known it returns false, and Notify is called when they are.
func (d *Drainer) Look(ctx context.Context, node string, in Interruption) (View, bool) {
	s := d.session(ctx, node)
	if !s.synced() {
		return View{}, false
	}
	return s.view(time.Now(), in, d.opts.Policy), true
}

// Status is how far a node's drain is.
type Status struct {
	View
	// Total is how many pods had to leave since the drain began.
	Total int
	// Begun: some pod has been evicted, or is to be evicted now.
	Begun bool
	// Done: nothing is left to move.
	Done bool
	// Next is when the plan changes by the clock alone; zero if it does not.
	Next time.Time
}

// Drain plans and evicts what is due. It returns at once; call it again whenever
// Notify says so, at Status.Next, and when the interruption changes.
func (d *Drainer) Drain(ctx context.Context, node string, in Interruption) (Status, bool) {
	s := d.session(ctx, node)
	if !s.synced() {
		return Status{}, false
	}
	now := time.Now()
	status, due := s.advance(now, in, d.opts.Policy)
	for _, t := range due {
		d.queue.push(t)
	}
	return status, true
}

// Finish ends a node's drain and returns what became of every pod, each counted
// once. Pods that are still on the node and have not been evicted are left; those
// that are terminating past the deadline had less than their grace.
func (d *Drainer) Finish(node string) Result {
	d.mu.Lock()
	s, ok := d.sessions[node]
	d.mu.Unlock()
	if !ok {
		return Result{}
	}
	result := s.result()
	d.Forget(node)
	d.metrics.count(result)
	return result
}

// Forget ends a node's drain: pods that wait for their eviction are not evicted,
// nothing is counted. It is a no-op for a node that is not being drained.
func (d *Drainer) Forget(node string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, ok := d.sessions[node]
	if !ok {
		return
	}
	s.stop()
	delete(d.sessions, node)
	if len(d.sessions) == 0 {
		d.budgets.forget()
	}
}

func (d *Drainer) session(ctx context.Context, node string) *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, ok := d.sessions[node]
	if !ok {
		s = startSession(ctx, node, d.opts.Pods, d.starting, func() { d.opts.Notify(node) })
		d.sessions[node] = s
	}
	return s
}

// blocked counts the pods that a budget holds back at this moment.
func (d *Drainer) blocked() float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, s := range d.sessions {
		n += s.blocked()
	}
	return float64(n)
}
