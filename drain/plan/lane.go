package plan

import "time"

// lane decides when the next of the evictions under one disruption budget begins. The zero value is one in which
// none has begun yet.
//
// An eviction that meets another at the budget's status is tried again by the API server, half a second later.
// It does not say so: the eviction takes that much longer than others. If many meet, hardly any gets
// through, as each attempt slows the rest down. So slow requests begin farther apart after each that seems to
// have met another, and closer together after each that has not, until about a third have.
type lane struct {
	underWay int
	last     time.Time     // when the last request began
	slow     bool          // requests take longer than laneSlow
	usual    time.Duration // what one takes that has met no other, by those that were slow; zero if there was none
	apart    time.Duration // between the beginnings of slow requests; zero is laneFirst
}

const (
	// laneTime is how long one request can keep the others of its budget waiting, whatever that allows.
	laneTime = 250 * time.Millisecond
	// laneSlow is how long a request takes that does not wait for the budget's status: an eviction takes
	// milliseconds, so an admission webhook is slow.
	laneSlow = 50 * time.Millisecond

	// laneApart is how far apart requests begin that are under way at the same time, at least.
	laneApart = 10 * time.Millisecond
	// laneFirst is how far apart they begin before it is known how long they take.
	laneFirst = 50 * time.Millisecond
	// laneMost is how far apart they begin at most: 14 a second.
	laneMost = 70 * time.Millisecond
	// laneMet is how much longer a request takes that has met another: the API server waits for 500 ms at least.
	laneMet = 400 * time.Millisecond
)

// opensAt is when the next request can begin, if the budget lets so many pods go.
func (l *lane) opensAt(allowed int) time.Time {
	switch {
	case l.underWay == 0:
		return time.Time{}
	case l.underWay >= allowed:
		return l.last.Add(laneTime)
	case !l.slow:
		return l.last.Add(laneSlow)
	case l.apart == 0:
		return l.last.Add(laneFirst)
	}
	return l.last.Add(l.apart)
}

func (l *lane) begin(now time.Time) {
	l.slow = l.slow || l.underWay > 0
	l.underWay++
	l.last = now
}

// end takes in how long a request has taken.
func (l *lane) end(took time.Duration) {
	l.underWay--
	l.slow = took > laneSlow
	if !l.slow {
		return
	}
	if l.usual == 0 || took < l.usual {
		l.usual = took
	}
	if l.apart == 0 {
		l.apart = laneFirst
	}
	if took < l.usual+laneMet {
		l.apart = max(l.apart*93/100, laneApart)
	} else {
		l.apart = min(l.apart*115/100, laneMost)
	}
	l.usual += (took - l.usual) / 16 // the webhook, or the API server, might have become slower
}
