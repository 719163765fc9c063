package notify

import (
	"context"
	"errors"
	"hash/fnv"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

const (
	// senders is how many webhooks are under way at the same time. Those of one node go
	// through one sender, so that its outcome never overtakes its notice.
	senders = 4

	// queued is how many webhooks wait for a sender before further ones are dropped: in
	// all, the notices and the outcomes of 2,000 nodes.
	queued = 1024

	// giveUpAfter is how long a webhook is tried again. Half an hour later the interruption
	// has been over for long, and people have seen it elsewhere.
	giveUpAfter = 30 * time.Minute

	// flushFor is how long what still waits is sent at the end of the process.
	flushFor = 3 * time.Second

	// The pauses between attempts, where the receiver names none.
	firstPause, longestPause = 500 * time.Millisecond, 30 * time.Second
)

// The values of webhooks_total's label result.
const (
	resultDelivered = "delivered" // answered with 2xx
	resultRejected  = "rejected"  // answered in a way that another attempt would not change, or the template failed
	resultExpired   = "expired"   // tried again until it was too late
	resultDropped   = "dropped"   // too many were waiting, or the process ended
)

// WebhookOptions configure a Webhook.
type WebhookOptions struct {
	Endpoint Endpoint  // whom to tell; the zero value is nobody
	Template *Template // what to say; nil is the payload that Slack understands
	Proxy    *url.URL  // by which way; nil is what HTTPS_PROXY, HTTP_PROXY and NO_PROXY say

	UserAgent  string
	Registerer prometheus.Registerer
	Logger     zerolog.Logger
}

// Webhook tells a URL of notices and of outcomes, each with one POST that is tried again
// until it is answered. Its methods never block: what they are told waits in memory for
// Run, and is lost with the process. They are safe for concurrent use.
type Webhook struct {
	opts    WebhookOptions
	client  *http.Client
	queues  []chan *parcel // nil if there is nobody to tell
	results *prometheus.CounterVec

	// Said once each time that it becomes so.
	failing, dropping atomic.Bool
}

// parcel is a message on its way.
type parcel struct {
	Message
	since time.Time
}

// NewWebhook returns a Webhook. It makes no call and starts nothing.
func NewWebhook(o WebhookOptions) *Webhook {
	w := &Webhook{opts: o, results: promauto.With(o.Registerer).NewCounterVec(prometheus.CounterOpts{
		Name: "spot_handler_webhooks_total",
		Help: "Webhooks, by what became of them.",
	}, []string{"result"})}
	for _, result := range []string{resultDelivered, resultRejected, resultExpired, resultDropped} {
		w.results.WithLabelValues(result)
	}
	if !o.Endpoint.Set() {
		return w
	}
	w.client = newClient(o.Proxy)
	for range senders {
		w.queues = append(w.queues, make(chan *parcel, queued))
	}
	return w
}

// Run sends what the Webhook is told until ctx ends, and for up to flushFor what is left
// then. Whoever tells should have ended before ctx does.
func (w *Webhook) Run(ctx context.Context) error {
	sending, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(flushFor, cancel) })
	defer stop()
	var wg sync.WaitGroup
	for _, queue := range w.queues {
		wg.Go(func() {
			for {
				select {
				case p := <-queue:
					w.deliver(sending, p)
					continue
				default:
				}
				select {
				case p := <-queue:
					w.deliver(sending, p)
				case <-ctx.Done():
					return // and nothing is left
				}
			}
		})
	}
	wg.Wait()
	return nil
}

// Noticed: EC2 is about to end the node.
func (w *Webhook) Noticed(node *corev1.Node, r interruption.Record) {
	w.tell(newMessage(node, r, EventNotice, noticeReason(r.Kind), noticeText(r)))
}

// Replacement is told with the outcome.
func (w *Webhook) Replacement(*corev1.Node, string, interruption.Replacement) {}

// Ended: the drain is over.
func (w *Webhook) Ended(node *corev1.Node, reason string, p interruption.Pods, slack time.Duration, refusal string) {
	p.Refusal = refusal
	m := newMessage(node, recordOf(node), EventOutcome, reason, endText(p, slack))
	m.Pods, m.SlackSeconds = p, int(slack.Seconds())
	w.tell(m)
}

// Canceled: the interruption was called off.
func (w *Webhook) Canceled(node *corev1.Node, r interruption.Record) {
	w.tell(newMessage(node, r, EventOutcome, ReasonCanceled, canceledText(r)))
}

// Returned: the instance has come back.
func (w *Webhook) Returned(node *corev1.Node, r interruption.Record) {
	w.tell(newMessage(node, r, EventOutcome, ReasonInstanceReturned, returnedText(r)))
}

// RecordUnreadable is neither a notice nor an outcome.
func (w *Webhook) RecordUnreadable(*corev1.Node, error) {}

func (w *Webhook) tell(m Message) {
	if w.queues == nil {
		return
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(m.NodeName)) // it never fails
	select {
	case w.queues[hash.Sum32()%senders] <- &parcel{Message: m, since: time.Now()}:
		w.dropping.Store(false)
	default:
		w.results.WithLabelValues(resultDropped).Inc()
		if w.dropping.CompareAndSwap(false, true) {
			w.opts.Logger.Error().Str("node", m.NodeName).Int("waiting", queued).Msg("webhooks dropped, too many are waiting")
		}
	}
}

// deliver sends one webhook, as often as it takes.
func (w *Webhook) deliver(ctx context.Context, p *parcel) {
	log := w.opts.Logger.With().Str("node", p.NodeName).Str("instance_id", p.InstanceID).Str("event", p.Event).Str("reason", p.Reason).Logger()
	attempt := 0
	var refused *refusedError
	post := func() (struct{}, error) {
		attempt++
		body, err := w.opts.Template.Render(p.Message)
		if err == nil {
			err = w.post(ctx, body)
		}
		if errors.As(err, &refused) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}
	pauses := &backoff.ExponentialBackOff{
		InitialInterval: firstPause, MaxInterval: longestPause, Multiplier: 2, RandomizationFactor: 0.25,
	}
	_, err := backoff.Retry(ctx, post, backoff.WithBackOff(pauses),
		backoff.WithMaxElapsedTime(max(time.Nanosecond, giveUpAfter-time.Since(p.since))),
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
