package imds

import (
	"context"
	"math/bits"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/rs/zerolog"

	"spot-handler/handler/interruption"
)

const (
	// acceptTimeout makes a hung connection to the API server cost one attempt, not
	// the notice. Accept is a single patch.
	acceptTimeout = 10 * time.Second

	// Between failed attempts, give or take half.
	firstAcceptBackoff = 200 * time.Millisecond
	maxAcceptBackoff   = 5 * time.Second

	// maxSettled is how many settled announcements of one kind are remembered; EC2
	// makes one, two at most, in the life of an instance.
	maxSettled = 16
)

// deliver submits the notices of one kind, one after another, until ctx is
// canceled. A notice that cannot be accepted yet is kept until it is, or until the
// service announces something else in its place.
func (p *Poller) deliver(ctx context.Context, mail <-chan interruption.Notice) {
	var settled []string
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-mail:
			if slices.Contains(settled, n.EventID) {
				continue
			}
			last, ok := p.submitUntilAccepted(ctx, n, mail)
			if !ok {
				return
			}
			settled = append(settled, last.EventID)
			if len(settled) > maxSettled {
				settled = settled[1:]
			}
		}
	}
}

// submitUntilAccepted returns the notice that was settled: n, or one that took its
// place. False means that ctx was canceled first.
func (p *Poller) submitUntilAccepted(ctx context.Context, n interruption.Notice, mail <-chan interruption.Notice) (interruption.Notice, bool) {
	wait := newAcceptBackoff()
	for attempt := uint(1); ; attempt++ {
		log := p.log.With().Str("kind", string(n.Kind)).Time("deadline", n.Deadline).Uint("attempt", attempt).Logger()
		verdict, err := p.accept(ctx, n)
		if ctx.Err() != nil && err != nil {
			return n, false
		}
		if err == nil {
			level := zerolog.DebugLevel          // the accepter tells what it did
			if verdict == interruption.Unknown { // of the very node that we run on
				level = zerolog.WarnLevel
			}
			log.WithLevel(level).Str("verdict", string(verdict)).Msg("notice settled")
			return n, true
		}
		if bits.OnesCount(attempt) == 1 { // the first, the second, the fourth...
			log.Error().Err(err).Msg("cannot accept notice, trying again")
		}

		pause := time.NewTimer(wait.NextBackOff())
	waiting:
		for {
			select {
			case <-ctx.Done():
				pause.Stop()
				return n, false
			case <-pause.C:
				break waiting
			case newer := <-mail:
				if newer.EventID != n.EventID { // else it is the same one, polled again
					pause.Stop()
					n, attempt, wait = newer, 0, newAcceptBackoff()
					break waiting
				}
			}
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
