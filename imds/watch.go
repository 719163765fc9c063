package imds

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
)

// slowest is the longest regular pause between two readings of any path: half of what
// the health of the source allows.
const slowest = awsfault.HealthyFor / 2

// A subject is one path of the metadata service on which interruptions of one kind are
// announced.
type subject struct {
	path string
	kind interruption.Kind

	// every is how many intervals pass from one reading to the next, up to slowest.
	every int

	// several: the path can hold several announcements at once, kept apart by their names.
	// On every other path a new announcement replaces the one before.
	several bool

	// parse finds what the path announces. Announcements that come with an error are complete.
	parse func(r reading) ([]announcement, error)
}

// subjects lists the paths of these kinds, the most urgent first.
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
	return slices.DeleteFunc(all, func(s subject) bool { return !slices.Contains(kinds, s.kind) })
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

// topic says which earlier announcement this one replaces.
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

func (w *watch) succeed(began time.Time, interval time.Duration) {
	w.due, w.read, w.failing = began.Add(wait.Jitter(w.period(interval), intervalJitter)), time.Now(), false
	w.backoff.Reset()
}

// retry gives the watch a turn of its own: a broken path does not slow down the others.
func (w *watch) retry() {
	w.due, w.failing = time.Now().Add(w.backoff.NextBackOff()), true
}

// current is until when the watch knows what its path holds: now while its readings are
// good, however rare; zero if it never knew.
func (w *watch) current() time.Time {
	if w.failing || w.read.IsZero() {
		return w.read
	}
	return time.Now()
}

const (
	// A time further away than these is not EC2's, or our clock is wrong. Either way it is
	// of no use. A spot instance can live long after a rebalance recommendation.
	maxAhead         = time.Hour
	maxSpotPast      = 24 * time.Hour
	maxRebalancePast = 365 * 24 * time.Hour
)

// parseInstanceAction reads spot/instance-action:
// {"action":"terminate","time":"2026-01-01T00:02:00Z"}.
//
// An action that EC2 does not document is reported, but counts as a termination: whatever it
// is, it comes at that time. Moving pods for nothing costs less than losing them.
func parseInstanceAction(body []byte, received time.Time) (announcement, error) {
	var doc struct {
		Action string `json:"action"`
		Time   string `json:"time"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return announcement{}, fault(reasonMalformed, "parse instance action: %w", err)
	}
	if doc.Action == "" {
		return announcement{}, fault(reasonMalformed, "parse instance action: no action")
	}
	at, err := parseTime(doc.Time, received, maxSpotPast)
	if err != nil {
		return announcement{}, fault(reasonMalformed, "parse instance action: time: %w", err)
	}

	a := announcement{name: at.Format(time.RFC3339), notice: interruption.Notice{
		Action:   doc.Action,
		Noticed:  interruption.Earlier(at.Add(-interruption.SpotNotice), received), // an estimate: the announcement does not say
		Received: received,
		Deadline: at,
	}}
	switch doc.Action {
	case interruption.ActionTerminate, interruption.ActionStop:
		return a, nil
	case interruption.ActionHibernate: // begins at once, without the two minutes
		a.notice.Noticed = interruption.Earlier(at, received)
		a.notice.Deadline = received
		return a, nil
	default:
		a.notice.Action = interruption.ActionTerminate
		return a, fault(reasonUnknownAction, "parse instance action: unknown action %.64q, treated as a termination", doc.Action)
	}
}

// parseRebalance reads events/recommendations/rebalance:
// {"noticeTime":"2026-01-01T00:00:00Z"}.
func parseRebalance(body []byte, received time.Time) (announcement, error) {
	var doc struct {
		NoticeTime string `json:"noticeTime"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return announcement{}, fault(reasonMalformed, "parse rebalance recommendation: %w", err)
	}
	at, err := parseTime(doc.NoticeTime, received, maxRebalancePast)
	if err != nil {
		return announcement{}, fault(reasonMalformed, "parse rebalance recommendation: noticeTime: %w", err)
	}
	return announcement{name: at.Format(time.RFC3339), notice: interruption.Notice{
		Noticed:  interruption.Earlier(at, received),
		Received: received,
	}}, nil
}

// stateTerminated is the state of an instance that its group is about to terminate. In all
// other states it goes on, or serves nobody, as in a warm pool (Warmed:Terminated too).
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/retrieving-target-lifecycle-state-through-imds.html
const stateTerminated = "Terminated"

// parseLifecycleState reads autoscaling/target-lifecycle-state: one word, without times. An
// instance is terminated once, so the announcement keeps its name for as long as the
// instance lives.
func parseLifecycleState(body []byte, received time.Time) (announcement, error) {
	if strings.TrimSpace(string(body)) != stateTerminated {
		return announcement{}, nil
	}
	return announcement{name: stateTerminated, notice: interruption.Notice{
		Action: interruption.ActionTerminate, Noticed: received, Received: received,
	}}, nil
}

func parseTime(text string, received time.Time, past time.Duration) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%.64q is not an RFC 3339 time", text)
	}
	if at.Before(received.Add(-past)) || at.After(received.Add(maxAhead)) {
		return time.Time{}, fmt.Errorf("%s is implausible at %s", text, received.UTC().Format(time.RFC3339))
	}
	return at.UTC(), nil
}

func parseInstanceID(r reading) (string, error) {
	id := strings.TrimSpace(string(r.body))
	switch {
	case !r.found:
		return "", fault(reasonStatus, "read instance-id: not found")
	case !validName(id):
		return "", fault(reasonMalformed, "read instance-id: %.64q is not an instance id", id)
	}
	return id, nil
}

// validName accepts what can be a label's value, as EC2's own ids and the last segments
// of providerIDs can.
func validName(id string) bool { return id != "" && len(validation.IsValidLabelValue(id)) == 0 }
