package imds

import (
	"context"
	"slices"
	"sync"
	"time"

	"spot-handler/handler/interruption"
)

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
	waiting []letter  // the next one first
	settled []heading // the oldest first; one for each topic
	news    chan struct{}
}

// A heading tells letters apart.
type heading struct {
	topic string
	event string // EventID
	word  string
}

type letter struct {
	heading
	notice  interruption.Notice
	attempt uint
}

func newOutbox() *outbox { return &outbox{news: make(chan struct{}, 1)} }

// post takes a notice for delivery, unless the same word on its topic waits or was the last
// to be settled. It replaces another word that waits.
func (b *outbox) post(topic, word string, n interruption.Notice) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := letter{heading: heading{topic, n.EventID, word}, notice: n}
	if i := slices.IndexFunc(b.waiting, func(o letter) bool { return o.topic == topic }); i >= 0 {
		if b.waiting[i].heading == l.heading {
			return
		}
		// Also if it takes back what waits: an attempt can have succeeded without an answer.
		b.waiting[i] = l
	} else if slices.Contains(b.settled, l.heading) || len(b.waiting) >= maxWaiting {
		return
	} else {
		b.waiting = append(b.waiting, l)
	}
	select {
	case b.news <- struct{}{}:
	default: // one is enough
	}
}

// next waits for a letter to be delivered; false means that ctx was canceled first.
func (b *outbox) next(ctx context.Context) (letter, bool) {
	for {
		if l, ok := b.first(); ok {
			return l, ctx.Err() == nil
		}
		select {
		case <-ctx.Done():
			return letter{}, false
		case <-b.news:
		}
	}
}

func (b *outbox) first() (letter, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) == 0 {
		return letter{}, false
	}
	select {
	case <-b.news: // what has come so far is in the box
	default:
	}
	b.waiting[0].attempt++
	return b.waiting[0], true
}

// settle notes that the letter was delivered.
func (b *outbox) settle(l letter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = slices.DeleteFunc(b.waiting, func(o letter) bool { return o.heading == l.heading })
	b.settled = slices.DeleteFunc(b.settled, func(o heading) bool { return o.topic == l.topic })
	b.settled = append(b.settled, l.heading)
	b.settled = b.settled[max(0, len(b.settled)-maxSettled):]
}

// postpone lets the others go first.
func (b *outbox) postpone(l letter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) > 1 && b.waiting[0].heading == l.heading {
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
