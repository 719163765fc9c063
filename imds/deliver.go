package imds

import (
	"context"
	"errors"
	"maps"
	"math/bits"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/rs/zerolog"
	"k8s.io/client-go/util/workqueue"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
)

const (
	// acceptTimeout makes a connection to the API server that hangs cost one attempt, not the
	// notice. Accept is a single patch.
	acceptTimeout = 10 * time.Second

	// Between failed attempts, give or take half.
	firstAcceptPause = 200 * time.Millisecond
	maxAcceptPause   = 5 * time.Second
)

// deliver submits the notices of one kind, one after another, until ctx is canceled. A
// notice that cannot be accepted yet is kept until it is, or until the service says
// something else about the same event.
func (p *Poller) deliver(ctx context.Context, box *outbox) {
	defer context.AfterFunc(ctx, box.topics.ShutDown)()
	for {
		topic, ended := box.topics.Get()
		if ended || ctx.Err() != nil {
			return
		}
		if w := box.waits(topic); w != nil {
			p.submit(ctx, box, w)
		}
		box.topics.Done(topic)
	}
}

// submit makes one attempt to have a notice accepted.
func (p *Poller) submit(ctx context.Context, box *outbox, w *outgoing) {
	n := w.notice
	log := p.log.With().Str("kind", string(n.Kind)).Str("event_id", n.EventID).Uint("attempt", w.attempt).Logger()
	if !n.Deadline.IsZero() {
		log = log.With().Time("deadline", n.Deadline).Logger()
	}
	verdict, err := p.accept(ctx, n)
	if err == nil {
		level := zerolog.DebugLevel          // the accepter logs what it did
		if verdict == interruption.Unknown { // although it is about our own Node
			level = zerolog.WarnLevel
		}
		log.WithLevel(level).Str("verdict", string(verdict)).Msg("notice settled")
		box.markDelivered(w)
		return
	}
	if ctx.Err() != nil {
		return
	}
	if bits.OnesCount(w.attempt) == 1 && !errors.Is(err, interruption.ErrNotYet) { // the first, the second, the fourth...
		log.Error().Err(err).Msg("cannot accept notice, trying again")
	}
	box.topics.AddAfter(w.topic, w.pauses.NextBackOff())
}

func (p *Poller) accept(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	return p.opts.Accepter.Accept(ctx, n)
}

// maxTopics bounds the topics of one kind that are remembered: twice as many as both lists of
// scheduled events can have. A settled one that is forgotten is submitted again, which changes
// nothing; one that finds no room is polled again.
const maxTopics = 4 * maxEvents

// An outbox holds the notices of one kind: the latest word on each topic. Any number of
// goroutines can post, and one can deliver.
type outbox struct {
	topics workqueue.TypedDelayingInterface[string] // with a word that waits; nil before open

	mu     sync.Mutex
	latest map[string]*outgoing // by topic
}

// outgoing is what one announcement says of its topic.
type outgoing struct {
	topic, word string
	notice      interruption.Notice
	attempt     uint
	pauses      *backoff.ExponentialBackOff
	delivered   bool
}

// open starts the outbox, until its topics are shut down.
func (b *outbox) open() {
	b.topics, b.latest = workqueue.NewTypedDelayingQueue[string](), map[string]*outgoing{}
}

// acceptPauses are those between attempts to submit a notice.
func acceptPauses() *backoff.ExponentialBackOff {
	return awsfault.Pauses(firstAcceptPause, maxAcceptPause, 0.5)
}

// post takes a notice for delivery, unless the same word on its topic waits or was the last
// to be settled. It replaces another word that waits, even if it withdraws that one: an attempt
// might have succeeded without an answer.
func (b *outbox) post(topic, word string, n interruption.Notice) {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := b.latest[topic]
	if last != nil && last.word == word && last.notice.EventID == n.EventID {
		return
	}
	if last == nil && len(b.latest) >= maxTopics {
		maps.DeleteFunc(b.latest, func(_ string, s *outgoing) bool { return s.delivered })
		if len(b.latest) >= maxTopics {
			return
		}
	}
	b.latest[topic] = &outgoing{topic: topic, word: word, notice: n, pauses: acceptPauses()}
	b.topics.Add(topic)
}

// waits is the word on the topic for its next attempt, or nil if it is settled.
func (b *outbox) waits(topic string) *outgoing {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.latest[topic]
	if w == nil || w.delivered {
		return nil
	}
	w.attempt++
	return w
}

// markDelivered notes that the word was delivered.
func (b *outbox) markDelivered(w *outgoing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w.delivered = true
}
