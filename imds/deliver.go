package imds

import (
	"context"
	"errors"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

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
	wait := awsfault.Pauses(firstAcceptPause, maxAcceptPause, 0.5)
	for {
		w, ok := box.next(ctx)
		if !ok {
			return
		}
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
			box.settle(w)
			wait.Reset()
			continue
		}
		if ctx.Err() != nil {
			return
		}
		if bits.OnesCount(w.attempt) == 1 && !errors.Is(err, interruption.ErrNotYet) { // the first, the second, the fourth...
			log.Error().Err(err).Msg("cannot accept notice, trying again")
		}
		box.postpone(w)
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
	return p.opts.Accepter.Accept(ctx, n)
}

const (
	// maxWaiting bounds the notices of one kind that wait: as many as both lists of
	// scheduled events can have. One that finds no room is read again.
	maxWaiting = 2 * maxEvents

	// maxSettled is how many settled notices of one kind are remembered. One that is
	// forgotten is submitted again, which changes nothing.
	maxSettled = 2 * maxWaiting
)

// An outbox holds the notices of one kind that are not accepted yet: for each topic the
// latest word on it. Any number of goroutines can post, and one can take.
type outbox struct {
	mu      sync.Mutex
	waiting []waiting // the next one first
	settled []saying  // the oldest first; one for each topic
	news    chan struct{}
}

// A saying is what one announcement says of its topic.
type saying struct {
	topic string
	event string // EventID
	word  string
}

// waiting is a notice that is not accepted yet.
type waiting struct {
	saying
	notice  interruption.Notice
	attempt uint
}

func newOutbox() *outbox { return &outbox{news: make(chan struct{}, 1)} }

// post takes a notice for delivery, unless the same word on its topic waits or was the last
// to be settled. It replaces another word that waits.
func (b *outbox) post(topic, word string, n interruption.Notice) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := waiting{saying: saying{topic, n.EventID, word}, notice: n}
	if i := slices.IndexFunc(b.waiting, func(o waiting) bool { return o.topic == topic }); i >= 0 {
		if b.waiting[i].saying == w.saying {
			return
		}
		// Also if it takes back what waits: an attempt can have succeeded without an answer.
		b.waiting[i] = w
	} else if slices.Contains(b.settled, w.saying) || len(b.waiting) >= maxWaiting {
		return
	} else {
		b.waiting = append(b.waiting, w)
	}
	select {
	case b.news <- struct{}{}:
	default: // one is enough
	}
}

// next waits for a notice to be delivered; false means that ctx was canceled first.
func (b *outbox) next(ctx context.Context) (waiting, bool) {
	for {
		if w, ok := b.first(); ok {
			return w, ctx.Err() == nil
		}
		select {
		case <-ctx.Done():
			return waiting{}, false
		case <-b.news:
		}
	}
}

func (b *outbox) first() (waiting, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) == 0 {
		return waiting{}, false
	}
	select {
	case <-b.news: // what has come so far is in the box
	default:
	}
	b.waiting[0].attempt++
	return b.waiting[0], true
}

// settle notes that the notice was delivered.
func (b *outbox) settle(w waiting) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = slices.DeleteFunc(b.waiting, func(o waiting) bool { return o.saying == w.saying })
	b.settled = slices.DeleteFunc(b.settled, func(o saying) bool { return o.topic == w.topic })
	b.settled = append(b.settled, w.saying)
	b.settled = b.settled[max(0, len(b.settled)-maxSettled):]
}

// postpone lets the others go first.
func (b *outbox) postpone(w waiting) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) > 1 && b.waiting[0].saying == w.saying {
		b.waiting = append(b.waiting[1:], b.waiting[0])
	}
}

// pause waits until something new has come, which it reports, or d has passed. ok is false
// if ctx was canceled first.
func (b *outbox) pause(ctx context.Context, d time.Duration) (news, ok bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return false, true
	case <-b.news:
		return true, true
	case <-ctx.Done():
		return false, false
	}
}
