package queue

import (
	"sync"
	"time"

	"spot-handler/handler/interruption"
)

// What makes a queue look as if consumers of other clusters read it, too.
//
// Which cluster's messages a queue gets does not tell: EventBridge sends those of every
// instance in the account to each. And what another consumer takes for good is never seen
// here. But one that does not know an instance gives the message back for a second look,
// and if that is ours, we get it second-hand. With two clusters of one size that is so
// for one in three of the messages that we accept, and one in four is lost; alone on the
// queue it happens only where the replica that had it first did not know the Node yet. One
// that a process had in hand when it was killed comes back too, but only when it was hidden
// for all its time.
const (
	sharingSeen   = 1000      // the last messages that count,
	sharingWithin = time.Hour // if they are not older than this
	sharingLeast  = 3         // second-hand messages among them, at least,
	sharingShare  = 0.2       // and as a part of those that were accepted

	// sharingQuiet is how long the warning is not repeated.
	sharingQuiet = time.Hour
)

// sharing is what became of the last messages. The zero value is ready.
type sharing struct {
	mu     sync.Mutex
	seen   [sharingSeen]sighting
	next   int
	warned time.Time
}

type sighting struct {
	at                            time.Time
	accepted, secondHand, foreign bool
}

// A suspicion is the numbers on which it rests.
type suspicion struct{ accepted, secondHand, foreign int }

// note adds a message, and reports whether it is time to say that others read the queue.
func (s *sharing) note(now sighting) (suspicion, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[s.next] = now
	s.next = (s.next + 1) % len(s.seen)
	var sum suspicion
	for _, v := range s.seen {
		if v.at.IsZero() || now.at.Sub(v.at) > sharingWithin {
			continue
		}
		sum.accepted += one(v.accepted)
		sum.secondHand += one(v.secondHand)
		sum.foreign += one(v.foreign)
	}
	if sum.secondHand < sharingLeast || float64(sum.secondHand) < sharingShare*float64(sum.accepted) ||
		!s.warned.IsZero() && now.at.Sub(s.warned) < sharingQuiet {
		return sum, false
	}
	s.warned = now.at
	return sum, true
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}

// abandoned reports whether who had the message first has not given it back: that was hiddenFor
// ago, give or take what the clocks differ by.
func (m *message) abandoned() bool {
	return !m.first.IsZero() && m.received.Sub(m.first) >= hiddenFor-5*time.Second
}

// noteSharing looks for signs of other consumers in a message that was settled. One that
// was new to us and about a Node of ours, though somebody had received it before, is
// such a sign. A dry run sees nothing but that beside the consumer that is not dry.
func (c *Consumer) noteSharing(m *message, v interruption.Verdict) {
	if c.dryRun {
		return
	}
	secondHand := v == interruption.Accepted && m.receives > 1 && !m.abandoned() && !c.retried.has(m.id)
	if secondHand {
		c.metrics.secondHand.Inc()
	}
	sum, suspect := c.sharing.note(sighting{
		at: time.Now(), accepted: v == interruption.Accepted, secondHand: secondHand, foreign: v == interruption.Unknown,
	})
	if suspect {
		c.log.Warn().Str("queue", c.queue).Int("accepted", sum.accepted).Int("second_hand", sum.secondHand).Int("foreign", sum.foreign).
			Msg("another cluster seems to read this queue, and takes messages about nodes of this one: give each cluster a queue of its own")
	}
}
