// Package imds watches the EC2 instance metadata service of the node that it runs
// on, and hands every interruption that is announced there to an Accepter.
//
//	path                                   kind                       read every
//	spot/instance-action                   spot-interruption          interval (2 s)
//	autoscaling/target-lifecycle-state     instance-terminating       2 intervals
//	events/recommendations/rebalance       rebalance-recommendation   2 intervals
//	events/maintenance/scheduled, history  scheduled-event            15 intervals, 30 s at most
//
// That is about one small request a second. Each kind can be switched off: its paths are
// then never asked for.
//
// One connection is polled, one request at a time. New starts nothing, and Run can be called
// once. The poller submits a notice until Accept returns nil, with backoff, while polling
// goes on. Then this process does not submit the same word again before the service has said
// something else about the same event. If there are several words on one event that could
// not be submitted yet, only the latest is. A new process reads all of them again under the
// same ids, as the metadata service keeps them: Accept has to be idempotent.
//
// A scheduled event that is completed or canceled, or is in no list any more, is submitted
// once more, as withdrawn. So is all that the history of events holds, as a process does not
// know what the one before it has announced. No other kind is ever taken back.
//
// Faults of the metadata service are counted, logged when their reason changes and retried
// for ever; none of them ends Run. An announcement that is unknown in part, such as a code
// that is not documented, is acted on as the worst that it could be, counted and logged once.
//
// A spot notice is seen within one interval (2 s) while the service answers, and within
// maxBackoff + callTimeout (12 s) of its first answer after an outage. So backing off costs
// at most a tenth of the two minutes that EC2 gives.
package imds

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	smithytime "github.com/aws/smithy-go/time"
	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
)

const (
	// intervalJitter is by how much an interval is longer, at random, which keeps a poller out of step
	// with other agents on its node.
	intervalJitter = 0.1

	// callTimeout bounds one reading, with the token request that it may need first.
	// The service answers within milliseconds or not at all.
	callTimeout = 2 * time.Second

	// Between failed readings: exponential, up to maxBackoff with the jitter.
	firstBackoff   = 500 * time.Millisecond
	longestBackoff = 8 * time.Second
	backoffJitter  = 0.25
	maxBackoff     = longestBackoff + longestBackoff/4

	// maxBody is far more than any value that is read here has.
	maxBody = 64 << 10
)

// Client is the subset of the metadata client that the poller uses. NewClient makes
// one.
type Client interface {
	GetMetadata(ctx context.Context, in *imds.GetMetadataInput, opts ...func(*imds.Options)) (*imds.GetMetadataOutput, error)
}

// Options says what a Poller works with.
type Options struct {
	Client   Client
	Accepter interruption.Accepter

	// NodeName is the Node that this instance is; it is copied into every notice.
	NodeName string

	// Kinds are those to watch. The paths of the others are never asked for.
	Kinds []interruption.Kind

	// Interval is the time from one poll to the next, up to a tenth more. The less urgent paths are
	// read every few intervals.
	Interval time.Duration

	Registerer prometheus.Registerer
	Logger     zerolog.Logger
}

// Poller reads the metadata service of one instance.
type Poller struct {
	opts    Options
	log     zerolog.Logger
	source  *awsfault.Source
	watches []*watch // the most urgent first
	boxes   []*outbox
}

// New returns a poller; Run makes it poll.
func New(o Options) *Poller {
	p := &Poller{
		opts:   o,
		log:    o.Logger.With().Str("component", "imds").Logger(),
		source: awsfault.NewSource(o.Registerer, string(interruption.IMDS), "poll instance metadata", reasons()),
	}
	boxes := map[interruption.Kind]*outbox{}
	for _, s := range subjects(o.Kinds) {
		if boxes[s.kind] == nil {
			boxes[s.kind] = &outbox{}
			p.boxes = append(p.boxes, boxes[s.kind])
		}
		p.watches = append(p.watches, &watch{
			subject: s,
			box:     boxes[s.kind],
			backoff: awsfault.Pauses(firstBackoff, longestBackoff, backoffJitter),
		})
	}
	return p
}

// Run polls until ctx is canceled, and then returns nil. No fault of the metadata service or
// of the Accepter ends it earlier.
func (p *Poller) Run(ctx context.Context) error {
	instance, ok := p.readInstanceID(ctx)
	if !ok {
		return nil
	}
	p.log = p.log.With().Str("instance_id", instance).Str("node", p.opts.NodeName).Logger()
	p.log.Info().Float64("interval_seconds", p.opts.Interval.Seconds()).Msg("polling instance metadata")

	var deliveries sync.WaitGroup
	defer deliveries.Wait()
	for _, box := range p.boxes {
		box.open()
		deliveries.Go(func() { p.deliver(ctx, box) })
	}

	for {
		for _, w := range p.watches {
			p.pollDue(ctx, w, instance)
			// However many paths hang, the most urgent one waits for no more than one of them.
			p.pollDue(ctx, p.watches[0], instance)
		}
		if ctx.Err() != nil {
			return nil
		}
		if at := p.known(); !at.IsZero() {
			p.source.Read(at)
		}
		if smithytime.SleepWithContext(ctx, time.Until(p.next())) != nil {
			return nil
		}
	}
}

// next is the earliest turn of any watch.
func (p *Poller) next() time.Time {
	return slices.MinFunc(p.watches, func(a, b *watch) int { return a.due.Compare(b.due) }).due
}

// known is until when every path is known; zero if one never was.
func (p *Poller) known() time.Time {
	oldest := time.Now()
	for _, w := range p.watches {
		if at := w.current(); at.Before(oldest) {
			oldest = at
		}
	}
	return oldest
}

// Healthy returns nil while no path has failed for more than a minute, see [awsfault.Source].
func (p *Poller) Healthy() error { return p.source.Healthy() }

func (p *Poller) pollDue(ctx context.Context, w *watch, instance string) {
	if ctx.Err() == nil && !w.due.After(time.Now()) {
		p.poll(ctx, w, instance)
	}
}

// poll reads one path once and queues what it announces for delivery.
func (p *Poller) poll(ctx context.Context, w *watch, instance string) {
	began := time.Now()
	now, err := p.read(ctx, w.path)
	if ctx.Err() != nil {
		return
	}
	var said []announcement
	if err == nil {
		said, err = w.parse(now)
	}
	for _, a := range said {
		w.box.post(w.topic(a), a.word, w.notice(a, instance, p.opts.NodeName))
	}
	switch {
	case err == nil:
		w.odd = ""
	case usable(err):
		p.logOdd(w, err)
	default:
		p.fail(w.path, &w.reporter, err)
		w.retry()
		return
	}
	if w.reporter.Recovered() {
		p.log.Info().Str("path", w.path).Msg("instance metadata is readable again")
	}
	w.succeed(began, p.opts.Interval)
}

// logOdd counts and logs an announcement that is unknown in part, once for as long as it
// stands.
func (p *Poller) logOdd(w *watch, err error) {
	if w.odd == err.Error() {
		return
	}
	w.odd = err.Error()
	p.source.Errors(awsfault.Of(err)).Inc()
	p.log.Error().Err(err).Str("path", w.path).Str("reason", string(awsfault.Of(err))).Msg("unknown announcement in instance metadata")
}

// readInstanceID reads until it has a plausible instance id; false means that ctx
// was canceled first.
func (p *Poller) readInstanceID(ctx context.Context) (string, bool) {
	const path = "instance-id"
	var r awsfault.Reporter
	id, err := backoff.Retry(ctx, func() (string, error) {
		now, err := p.read(ctx, path)
		if err != nil {
			return "", err
		}
		return parseInstanceID(now)
	}, backoff.WithBackOff(awsfault.Pauses(firstBackoff, longestBackoff, backoffJitter)), backoff.WithMaxElapsedTime(0),
		backoff.WithNotify(func(err error, _ time.Duration) { p.fail(path, &r, err) }))
	if err == nil && r.Recovered() {
		p.log.Info().Str("path", path).Msg("instance metadata is readable again")
	}
	return id, err == nil
}

// read returns what path holds, which normally is nothing.
func (p *Poller) read(ctx context.Context, path string) (reading, error) {
	now, err := p.readOnce(ctx, path)
	if awsfault.Of(err) == reasonUnauthorized {
		// The SDK drops its token on a 401 and leaves the second attempt to its retryer, of
		// which there is none here. Ask again at once, with a new token.
		p.source.Errors(reasonUnauthorized).Inc()
		now, err = p.readOnce(ctx, path)
	}
	return now, err
}

func (p *Poller) readOnce(ctx context.Context, path string) (reading, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	ctx, last := watchExchanges(ctx)

	out, err := p.opts.Client.GetMetadata(ctx, &imds.GetMetadataInput{Path: path})
	if err != nil {
		if notFound(err) {
			return reading{at: time.Now()}, nil
		}
		return reading{}, classify(path, err, last)
	}
	defer out.Content.Close()
	body, err := io.ReadAll(out.Content)
	if err != nil {
		return reading{}, classify(path, err, last)
	}
	return reading{body: body, found: true, at: time.Now()}, nil
}

// fail notes that a path could not be read.
func (p *Poller) fail(path string, r *awsfault.Reporter, err error) {
	p.source.Failed(err)
	p.source.Fault(p.log.With().Str("path", path).Logger(), r, err, "cannot read instance metadata")
}
