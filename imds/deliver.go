package imds

import (
	"context"
	"errors"
	"math/bits"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/rs/zerolog"

	"spot-handler/handler/interruption"
)

const (
	// acceptTimeout makes a connection to the API server that hangs cost one attempt, not the
	// notice. Accept is a single patch.
	acceptTimeout = 10 * time.Second

	// Between failed attempts, give or take half.
	firstAcceptBackoff = 200 * time.Millisecond
	maxAcceptBackoff   = 5 * time.Second
)

// deliver submits the notices of one kind, one after another, until ctx is canceled. A
// notice that cannot be accepted yet is kept until it is, or until the service says
// something else about the same event.
func (p *Poller) deliver(ctx context.Context, box *outbox) {
	wait := newAcceptBackoff()
	for {
		l, ok := box.next(ctx)
		if !ok {
			return
		}
		n := l.notice
		log := p.log.With().Str("kind", string(n.Kind)).Str("event_id", n.EventID).Uint("attempt", l.attempt).Logger()
		if !n.Deadline.IsZero() {
			log = log.With().Time("deadline", n.Deadline).Logger()
		}
		verdict, err := p.accept(ctx, n)
		if err == nil {
			level := zerolog.DebugLevel          // the accepter tells what it did
			if verdict == interruption.Unknown { // although it is about our own Node
				level = zerolog.WarnLevel
			}
			log.WithLevel(level).Str("verdict", string(verdict)).Msg("notice settled")
			box.settle(l)
			wait.Reset()
			continue
		}
		if ctx.Err() != nil {
			return
		}
		if bits.OnesCount(l.attempt) == 1 && !errors.Is(err, interruption.ErrNotYet) { // the first, the second, the fourth...
			log.Error().Err(err).Msg("cannot accept notice, trying again")
		}
		box.postpone(l)
		news, ok := box.pause(ctx, wait.NextBackOff())
		if !ok {
			return
		}
		if news {
			wait.Reset()
		}
	}
}

func (p *Poller) accept(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	return p.accepter.Accept(ctx, n)
}

func newAcceptBackoff() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval:     firstAcceptBackoff,
		RandomizationFactor: 0.5,
		Multiplier:          2,
		MaxInterval:         maxAcceptBackoff,
	}
}
