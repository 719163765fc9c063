package plan

import "time"

// lane decides when the next of the evictions under one disruption budget begins. The zero value is one in which
// none has begun yet.
//
// An eviction that meets another at the budget's status is tried again by the API server, half a second later.
// It does not say so: the eviction takes that much longer than others. If many meet, hardly any gets
// through, as each attempt slows the rest down. So slow requests begin farther apart once one seems to
// have met another, and closer together with each that has not. That they meet shows half a second late,
// and then of many at a time, which is one reason and not many.
type lane struct {
	underWay  int
	last      time.Time     // when the last request began
	slow      bool          // requests take longer than laneSlow
	usual     time.Duration // what one takes that has met no other, by those that were slow; zero if there was none
	apart     time.Duration // between the beginnings of slow requests; zero is laneFirst
	backedOff time.Time     // when that last became more
}

const (
	// laneTime is how long one request can keep the others of its budget waiting, whatever that allows.
	laneTime = 250 * time.Millisecond
	// laneSlow is how long a request takes that does not wait for the budget's status: an eviction takes
	// milliseconds, so an admission webhook is slow.
	laneSlow = 50 * time.Millisecond

	// laneApart is how far apart requests begin that are under way at the same time, at least: 55 a second. An
	// API server on two processors gets some 45 a second through for one budget. If they begin closer
	// together, it gets no more through, and the last take seconds longer.
	laneApart = 18 * time.Millisecond
	// laneFirst is how far apart they begin before it is known how long they take.
	laneFirst = 50 * time.Millisecond
	// laneMost is how far apart they begin at most: 14 a second.
	laneMost = 70 * time.Millisecond
	// laneReacts is how long they then begin that far apart before it shows whether they still meet.
	laneReacts = time.Second
	// laneMet is how much longer a request takes that has met another: the API server waits for 500 ms at least.
	laneMet = 400 * time.Millisecond
	// laneSleeps is how much longer than usual a request takes that will have met another.
	laneSleeps = 100 * time.Millisecond
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

// awake is how long a request takes at most that does not sleep in the API server; zero if nobody knows yet.
func (l *lane) awake() time.Duration {
	if !l.slow || l.usual == 0 {
		return 0
	}
	return l.usual + laneSleeps
}

// end takes in how long a request has taken.
func (l *lane) end(now time.Time, took time.Duration) {
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
		l.apart = max(l.apart*96/100, laneApart)
		l.usual += (took - l.usual) / 16
		return
	}
	if now.Sub(l.backedOff) > laneReacts {
		l.apart, l.backedOff = min(l.apart*3/2, laneMost), now
	}
	l.usual += (took - l.usual) / 64 // it might be the webhook, or the API server, that has become slower
}
