// Package webhook sends notices and outcomes to a URL: one POST each, with the body that
// Slack's incoming webhooks take or one that the operator's template makes.
//
// Nothing here blocks or fails: a webhook that nobody takes is tried again for half an hour
// and dropped, as the record on the Node is what counts. URLs and headers are secrets, and
// stand in no error and no log.
package webhook

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/rs/zerolog"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/fair"
	"spot-handler/handler/notify"
	"spot-handler/handler/ratelimit"
)

const (
	// senders is how many webhooks are sent at the same time. Those of one node are sent one after the
	// other, so its outcome never overtakes its notice.
	senders = 4

	// queued is how many webhooks wait before further ones are dropped: the notices and the outcomes
	// of 2,000 nodes.
	queued = 4096

	// A node's share is nodeBurst webhooks and then one every nodeEvery: an interruption has a notice and
	// an outcome, and few nodes have a second one within the hour. Its kubelet can write one notice
	// after the other into its record, and receivers refuse what comes too often.
	nodeBurst = 20
	nodeEvery = 3 * time.Minute

	// giveUpAfter is how long a webhook is tried. Half an hour later the interruption is long
	// over, and people have seen it elsewhere.
	giveUpAfter = 30 * time.Minute

	// flushFor is how long Run still sends what waits at the end of the process.
	flushFor = 3 * time.Second

	// The pauses between attempts, where the receiver names none.
	firstPause, longestPause = 500 * time.Millisecond, 30 * time.Second
)

// The values of webhooks_total's label result.
const (
	resultDelivered = "delivered" // answered with 2xx
	resultRejected  = "rejected"  // answered in a way that another attempt would not change, or the template failed
	resultExpired   = "expired"   // tried again until it was too late
	resultDropped   = "dropped"   // the node had too many, too many were waiting, or the process ended
)

// Options configure a Sender.
type Options struct {
	Endpoint Endpoint  // where to send; the zero value is nowhere
	Template *Template // of the body; nil is the payload that Slack understands
	Proxy    *url.URL  // nil is what HTTPS_PROXY, HTTP_PROXY and NO_PROXY say

	UserAgent  string
	Registerer prometheus.Registerer
	Logger     zerolog.Logger
}

// Sender sends notices and outcomes to a URL, each with one POST that is tried again
// until it is answered. Notify never blocks: news waits in memory, and is lost with the
// process. It is safe for concurrent use.
type Sender struct {
	opts    Options
	client  *http.Client
	lane    *fair.Lane // nil without an Endpoint; each node is a tenant
	shares  *ratelimit.PerNode
	number  atomic.Int64
	sending context.Context // of all attempts
	cancel  context.CancelFunc
	results *prometheus.CounterVec

	// Logged when they become true.
	failing, dropping atomic.Bool
}

// New returns a Sender. It makes no call and starts nothing.
func New(o Options) *Sender {
	w := &Sender{
		opts:   o,
		shares: ratelimit.New(nodeEvery, nodeBurst, senders),
		results: promauto.With(o.Registerer).NewCounterVec(prometheus.CounterOpts{
			Name: "spot_handler_webhooks_total",
			Help: "Webhooks, by what became of them.",
		}, []string{"result"}),
	}
	for _, result := range []string{resultDelivered, resultRejected, resultExpired, resultDropped} {
		w.results.WithLabelValues(result)
	}
	if o.Endpoint.URLFile == "" {
		return w
	}
	w.client = newClient(o.Proxy)
	w.lane = fair.NewLane(senders, queued)
	w.sending, w.cancel = context.WithCancel(context.Background())
	return w
}

// Run returns when ctx has ended and what still waited then was sent, after flushFor at most. All
// users of the Sender should have stopped before ctx ends.
func (w *Sender) Run(ctx context.Context) error {
	if w.lane == nil {
		return nil
	}
	<-ctx.Done()
	defer time.AfterFunc(flushFor, w.cancel).Stop()
	w.lane.Wait()
	return nil
}

// Notify has a notice or an outcome sent.
func (w *Sender) Notify(n notify.News) {
	if w.lane == nil || n.Stage == "" {
		return
	}
	if !w.shares.Allow(n.Node.Name) {
		w.drop(n, "the node has had its share")
		return
	}
	m, since := newMessage(n), time.Now()
	task := fair.Task{
		Tenant: m.NodeName,
		Who:    types.UID(m.NodeName),
		What:   strconv.FormatInt(w.number.Add(1), 10),
		Run:    func() { w.deliver(w.sending, m, since) },
	}
	if !w.lane.Do(context.Background(), task) { // even when the process ends: deliver says what was dropped
		w.drop(n, "too many are waiting")
		return
	}
	w.dropping.Store(false)
}

// drop counts a webhook that is not sent, and logs the first.
func (w *Sender) drop(n notify.News, reason string) {
	w.results.WithLabelValues(resultDropped).Inc()
	if w.dropping.CompareAndSwap(false, true) {
		w.opts.Logger.Error().Str("node", n.Node.Name).Str("reason", reason).Msg("webhooks dropped")
	}
}

// pauses are those between attempts at the same webhook.
func pauses() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval: firstPause, MaxInterval: longestPause, Multiplier: 2, RandomizationFactor: 0.25,
	}
}

// deliver sends one webhook, with as many attempts as it takes.
func (w *Sender) deliver(ctx context.Context, m Message, since time.Time) {
	log := w.opts.Logger.With().Str("node", m.NodeName).Str("instance_id", m.InstanceID).Str("event", m.Event).Str("reason", m.Reason).Logger()
	attempt := 0
	var refused *refusedError
	post := func() (struct{}, error) {
		attempt++
		body, err := w.opts.Template.render(m)
		if err == nil {
			err = w.post(ctx, body)
		}
		if errors.As(err, &refused) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}
	_, err := backoff.Retry(ctx, post, backoff.WithBackOff(pauses()),
		backoff.WithMaxElapsedTime(max(time.Nanosecond, giveUpAfter-time.Since(since))),
		backoff.WithNotify(func(err error, pause time.Duration) {
			if w.failing.CompareAndSwap(false, true) {
				log.Warn().Err(err).Float64("retry_seconds", pause.Seconds()).Msg("webhook not delivered, tried again")
			}
		}))

	var result string
	switch {
	case err == nil:
		result = resultDelivered
		if w.failing.CompareAndSwap(true, false) {
			log.Info().Int("attempt", attempt).Msg("webhooks are delivered again")
		}
		log.Debug().Int("attempt", attempt).Msg("webhook delivered")
	case refused != nil:
		result = resultRejected
	case ctx.Err() != nil:
		result, err = resultDropped, errors.New("the process ends")
	default:
		result = resultExpired
	}
	w.results.WithLabelValues(result).Inc()
	if err != nil {
		log.Error().Err(err).Int("attempt", attempt).Msg("webhook given up")
	}
}
