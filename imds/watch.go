package imds

import (
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
)

// slowest is the longest regular pause between two readings of any path: half of what
// the health of the source allows.
const slowest = healthyFor / 2

// A subject is one path of the metadata service on which interruptions of one kind are
// announced.
type subject struct {
	path string
	kind interruption.Kind

	// every is how many intervals pass from one reading to the next, up to slowest.
	every int

	// several: the path can hold several announcements at once, told apart by their names.
	// On every other path a new announcement replaces the one before.
	several bool

	// parse finds what the path announces. Announcements that come with an error are complete.
	parse func(r reading) ([]announcement, error)
}

// subjects lists the paths of these kinds, the most urgent first; none is all kinds.
//
// Only the spot notice leaves as little as two minutes, so only that is looked for at every
// poll. A lifecycle hook waits for at least 30 s and a recommendation has no deadline: they
// are read within the 5 s that AWS advises. Scheduled events are known days ahead.
func subjects(kinds []interruption.Kind) []subject {
	events := newFollower()
	all := []subject{
		{path: "spot/instance-action", kind: interruption.SpotInterruption, every: 1, parse: one(parseInstanceAction)},
		{path: "autoscaling/target-lifecycle-state", kind: interruption.InstanceTerminating, every: 2, parse: one(parseLifecycleState)},
		{path: "events/recommendations/rebalance", kind: interruption.RebalanceRecommendation, every: 2, parse: one(parseRebalance)},
		{path: "events/maintenance/scheduled", kind: interruption.ScheduledEvent, every: 15, several: true, parse: events.scheduled},
		{path: "events/maintenance/history", kind: interruption.ScheduledEvent, every: 15, several: true, parse: events.history},
	}
	if len(kinds) == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(s subject) bool { return !slices.Contains(kinds, s.kind) })
}

// Kinds lists the kinds that the metadata service announces, the most urgent first.
func Kinds() []interruption.Kind {
	var kinds []interruption.Kind
	for _, s := range subjects(nil) {
		kinds = append(kinds, s.kind)
	}
	return slices.Compact(kinds)
}

// period is the regular time from one reading to the next.
func (s subject) period(interval time.Duration) time.Duration {
	return max(interval, min(time.Duration(s.every)*interval, slowest))
}

// notice makes a notice of the announcement.
func (s subject) notice(a announcement, instance, node string) interruption.Notice {
	n := a.notice
	n.Kind, n.Source = s.kind, interruption.IMDS
	n.InstanceID, n.NodeName = instance, node
	n.EventID = fmt.Sprintf("%s/%s/%s/%s", interruption.IMDS, instance, s.kind, a.name)
	return n
}

// topic tells which earlier announcement this one replaces.
func (s subject) topic(a announcement) string {
	if s.several {
		return a.name
	}
	return ""
}

// A reading is what a path held at one moment.
type reading struct {
	body  []byte
	found bool // false: 404, which is the normal answer
	at    time.Time
}

// An announcement is what a path says: the parts of a notice that stand there, and a name by
// which a later process, too, knows the same announcement again.
type announcement struct {
	name   string
	word   string // what is said of it now, where that can change
	notice interruption.Notice
}

// one makes the reader of a path that holds at most one announcement. What parse returns
// with a usable error is used.
func one(parse func(body []byte, received time.Time) (announcement, error)) func(reading) ([]announcement, error) {
	return func(r reading) ([]announcement, error) {
		if !r.found {
			return nil, nil
		}
		a, err := parse(r.body, r.at)
		if a.name == "" || err != nil && !usable(err) {
			return nil, err
		}
		return []announcement{a}, err
	}
}

// A watch is the state of polling one subject. It belongs to Run's goroutine.
type watch struct {
	subject
	box      *outbox   // shared with the other paths of the same kind
	due      time.Time // zero: at once
	read     time.Time // last good reading
	failing  bool      // the last reading was none
	odd      string    // the usable fault that was logged last
	backoff  *backoff.ExponentialBackOff
	reporter awsfault.Reporter
}

func newWatch(s subject, box *outbox) *watch {
	return &watch{subject: s, box: box, backoff: newBackoff()}
}

func (w *watch) succeed(began time.Time, interval time.Duration) {
	w.due, w.read, w.failing = began.Add(jittered(w.period(interval))), time.Now(), false
	w.backoff.Reset()
}

// retry gives the watch a turn of its own: a broken path does not slow down the others.
func (w *watch) retry() {
	w.due, w.failing = time.Now().Add(bounded(w.backoff.NextBackOff())), true
}

// current is until when the watch knows what its path holds: now while its readings are
// good, however rare; zero if it never knew.
func (w *watch) current() time.Time {
	if w.failing || w.read.IsZero() {
		return w.read
	}
	return time.Now()
}
