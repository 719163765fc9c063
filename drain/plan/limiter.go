package plan

import (
	"slices"
	"time"

	"spot-handler/handler/interruption"
)

const (
	// patience is how long a request keeps its seat. The API server answers in milliseconds,
	// or in a second or two when a burst is more than its processors can take. An admission
	// webhook that hangs has up to EvictTimeout, and others must not stand still for it.
	patience = 3 * time.Second

	// lentPerSeat is how many requests without a seat there can be for each seat, as long as no more than
	// mostUnderWay are under way in all: about half of what the API server lets through at once for all
	// workloads by default.
	lentPerSeat  = 3
	mostUnderWay = 128

	// calm is how long ago the API server's last refusal must be before a seat is lent.
	calm = 10 * time.Second
)

// limiter decides how many requests are under way at once: as many as there are seats, and
// fewer when the API server's priority and fairness turns some away. Each refusal halves the
// limit, and a full round of requests without one adds one. A request that takes longer than
// patience lends its seat to another, but not soon after a refusal: then it might be slow
// because the API server has too much to do.
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/
//
// What hangs for one namespace, such as an admission webhook, must not hold up the requests for
// others: a namespace can take seven eighths of the seats that the others leave, and half of
// them while some of its requests have lent theirs. It can have half of those requests that can
// be under way without a seat, or seven eighths if they are answered and there is a hurry.
//
// An eviction that has met another at its disruption budget sleeps in the API server, see [lane]. It lends
// its seat too, as soon as it takes longer than others: nothing hangs, so its namespace keeps its seats. So do
// requests that are only slow, if others would be late: see hurry. One that is not answered within patience all the
// same counts as any other that hangs.
type limiter struct {
	most     int     // seats
	limit    int     // of them, those that can be taken now
	seats    []*seat // of the requests under way, the oldest first
	active   int     // requests with a seat
	lent     int     // requests that have lent theirs, those that sleep among them
	answered int     // answers in a row that were not refusals
	stale    int     // requests under way that were sent before the limit was last cut
	of       map[string]*seatShare

	refused time.Time // last; zero is never
}

// seat is what a request has while it is under way.
type seat struct {
	namespace string
	lends     time.Time // when it is lent
	sleeps    bool      // and then its request sleeps
	lent      bool
	early     bool // it was lent before its time, in a hurry
}

// seatShare is what a namespace has.
type seatShare struct{ active, lent, asleep int }

func newLimiter(most int) *limiter {
	return &limiter{most: most, limit: most, of: map[string]*seatShare{}}
}

// free reports whether any request can begin.
func (l *limiter) free() bool { return l.active < l.limit }

// room reports whether one for the namespace can.
func (l *limiter) room(namespace string) bool {
	own := seatShare{}
	if has := l.of[namespace]; has != nil {
		own = *has
	}
	left := l.most - l.active + own.active
	if own.lent > 0 {
		left /= 2
	} else {
		left -= (left + 7) / 8
	}
	return own.active < max(1, left)
}

// begin takes a seat. The request sleeps if it takes longer than awake; zero if it never does.
func (l *limiter) begin(now time.Time, namespace string, awake time.Duration) *seat {
	own := l.of[namespace]
	if own == nil {
		own = &seatShare{}
		l.of[namespace] = own
	}
	own.active++
	l.active++
	s := &seat{namespace: namespace, lends: now.Add(patience)}
	if awake > 0 && awake < patience {
		s.lends, s.sleeps = now.Add(awake), true
	}
	l.seats = append(l.seats, s)
	return s
}

// end gives the seat back. The API server was too busy for the request, or it was not.
func (l *limiter) end(now time.Time, s *seat, busy bool) {
	l.seats = slices.DeleteFunc(l.seats, func(other *seat) bool { return other == s })
	own := l.of[s.namespace]
	switch {
	case s.lent && (s.sleeps || s.early):
		own.asleep--
		l.lent--
	case s.lent:
		own.lent--
		l.lent--
	default:
		own.active--
		l.active--
	}
	if own.active+own.lent+own.asleep == 0 {
		delete(l.of, s.namespace)
	}
	l.adapt(now, busy)
}

// adapt adapts the limit to what the API server has said.
func (l *limiter) adapt(now time.Time, busy bool) {
	old := l.stale > 0
	if old {
		l.stale--
	}
	if busy {
		l.refused = now
	}
	switch {
	case busy && !old:
		l.limit, l.answered, l.stale = max(1, l.limit/2), 0, l.active+l.lent
	case busy:
		l.answered = 0
	default:
		l.answered++
		if l.answered >= l.limit && l.limit < l.most {
			l.limit, l.answered = l.limit+1, 0
		}
	}
}

// lend has requests lend their seats that have taken too long, and returns when the next might; zero if
// none does.
func (l *limiter) lend(now time.Time) (next time.Time) {
	for _, s := range l.seats {
		if s.early && !s.sleeps && !now.Before(s.lends) {
			own := l.of[s.namespace]
			s.early, own.asleep, own.lent = false, own.asleep-1, own.lent+1
		}
		if !l.canLend(s, l.half()) {
			continue
		}
		at := interruption.Later(s.lends, l.calmAt())
		if now.Before(at) {
			next = interruption.Earlier(next, at)
			continue
		}
		l.lendSeat(s)
	}
	return next
}

// hurry has requests lend their seats early, the oldest first, until atOnce can be under way, and reports whether any
// did. None does soon after a refusal.
func (l *limiter) hurry(now time.Time, atOnce int) (lent bool) {
	if now.Before(l.calmAt()) {
		return false
	}
	for _, s := range l.seats {
		if l.limit+l.lent >= atOnce {
			break
		}
		most := l.lendable() * 7 / 8
		if l.of[s.namespace].lent > 0 { // some of its requests hang
			most = l.half()
		}
		if l.canLend(s, most) {
			s.early, lent = true, true
			l.lendSeat(s)
		}
	}
	return lent
}

// lendable is how many requests can be under way without a seat.
func (l *limiter) lendable() int { return min(l.most*lentPerSeat, mostUnderWay-l.most) }

// half is half of those.
func (l *limiter) half() int { return (l.lendable() + 1) / 2 }

// canLend reports whether the request can lend its seat, if at most ofNamespace requests of its namespace may have lent
// theirs.
func (l *limiter) canLend(s *seat, ofNamespace int) bool {
	own := l.of[s.namespace]
	return !s.lent && l.lent < l.lendable() && own.lent+own.asleep < ofNamespace
}

func (l *limiter) lendSeat(s *seat) {
	own := l.of[s.namespace]
	s.lent = true
	if s.sleeps || s.early {
		own.asleep++
	} else {
		own.lent++
	}
	own.active--
	l.lent++
	l.active--
}

func (l *limiter) calmAt() time.Time {
	if l.refused.IsZero() {
		return time.Time{}
	}
	return l.refused.Add(calm)
}
