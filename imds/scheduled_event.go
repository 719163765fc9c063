package imds

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"spot-handler/handler/interruption"
)

const (
	// eventTime is how EC2 writes the dates of scheduled events, unlike all its other dates.
	eventTime = "2 Jan 2006 15:04:05 GMT"

	// maxEvents is how many events of one list are read. EC2 has one or two for an instance,
	// and forgets those that are over after a week.
	maxEvents = 32

	// maxEventAway is far more than the few weeks that EC2 plans ahead.
	maxEventAway = 365 * 24 * time.Hour
)

// eventActions are the codes that EC2 documents, and what they announce.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceStatusEvent.html
var eventActions = map[string]string{
	"instance-stop":       interruption.ActionStop,
	"instance-retirement": interruption.ActionRetirement,
	"instance-reboot":     interruption.ActionReboot,
	"system-reboot":       interruption.ActionReboot,
	"system-maintenance":  interruption.ActionMaintenance,
}

// The states of an event. A description that begins with one of the latter two in brackets
// says the same.
const (
	stateActive    = "active"
	stateCompleted = "completed"
	stateCanceled  = "canceled"
)

// An event is one scheduled event.
type event struct {
	id        string
	action    string
	over      bool      // canceled or completed
	notBefore time.Time // zero where it is over and no time can be read
	notAfter  time.Time // zero where there is none
}

// parseEvents reads events/maintenance/scheduled and events/maintenance/history:
//
//	[{"NotBefore":"21 Jan 2026 09:00:43 GMT","Code":"system-reboot","Description":"scheduled reboot",
//	  "EventId":"instance-event-0d59937288b749b32","NotAfter":"21 Jan 2026 09:17:23 GMT","State":"active"}]
//
// The events that can be read are returned even with an error. It is about the others, or
// usable: an undocumented code counts as maintenance, an undocumented state as active. Of
// several errors, one that is not usable is returned.
func parseEvents(body []byte, now time.Time) ([]event, error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, nil
	}
	var list *[]json.RawMessage
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fault(reasonMalformed, "parse scheduled events: %w", err)
	}
	if list == nil {
		return nil, fault(reasonMalformed, "parse scheduled events: no list")
	}
	var events []event
	var worst error
	for i, entry := range *list {
		if i == maxEvents {
			worst = worse(worst, fault(reasonTooLarge, "parse scheduled events: %d of them, want at most %d", len(*list), maxEvents))
			break
		}
		e, err := parseEvent(entry, now)
		worst = worse(worst, err)
		if err == nil || usable(err) {
			events = append(events, e)
		}
	}
	return events, worst
}

// parseEvent reads one entry of the list.
func parseEvent(entry []byte, now time.Time) (event, error) {
	malformed := func(format string, args ...any) (event, error) {
		return event{}, fault(reasonMalformed, "parse scheduled event: "+format, args...)
	}
	var doc struct{ Code, Description, EventId, NotBefore, NotAfter, State string }
	if err := json.Unmarshal(entry, &doc); err != nil {
		return malformed("%w", err)
	}
	if !validName(doc.EventId) {
		return malformed("EventId %.64q", doc.EventId)
	}
	e := event{id: doc.EventId, over: saysOver(doc.State, doc.Description)}
	var err error
	if e.notBefore, err = parseEventTime(doc.NotBefore, now); err != nil && !e.over {
		return malformed("%s: NotBefore: %w", e.id, err)
	}
	// Not every event has an end, and it matters little: one that cannot be read is ignored.
	e.notAfter, _ = parseEventTime(doc.NotAfter, now)

	var known bool
	if e.action, known = eventActions[doc.Code]; !known {
		e.action = interruption.ActionMaintenance
	}
	switch {
	case e.over:
		return e, nil
	case !known:
		return e, fault(reasonUnknownAction, "parse scheduled event: %s: unknown code %.64q, taken for maintenance", e.id, doc.Code)
	case doc.State != stateActive:
		return e, fault(reasonUnknownState, "parse scheduled event: %s: unknown state %.64q, taken for active", e.id, doc.State)
	}
	return e, nil
}

// saysOver reports whether the event is canceled or completed.
func saysOver(state, description string) bool {
	if state == stateCanceled || state == stateCompleted {
		return true
	}
	text := strings.ToLower(strings.TrimSpace(description[:min(len(description), 64)]))
	return strings.HasPrefix(text, "["+stateCanceled+"]") || strings.HasPrefix(text, "["+stateCompleted+"]")
}

func parseEventTime(text string, now time.Time) (time.Time, error) {
	at, err := time.Parse(eventTime, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%.64q is not a date like %q", text, eventTime)
	}
	if at.Sub(now).Abs() > maxEventAway {
		return time.Time{}, fmt.Errorf("%s is implausible at %s", text, now.UTC().Format(eventTime))
	}
	return at, nil
}

// worse is the error that matters more.
func worse(a, b error) error {
	if a == nil || usable(a) && b != nil && !usable(b) {
		return b
	}
	return a
}

// announcement is what is announced of an event that stands.
func (e event) announcement(now time.Time) announcement {
	return announcement{name: e.id, word: e.action + " at " + e.notBefore.Format(time.RFC3339), notice: interruption.Notice{
		Action: e.action,
		// EC2 does not say, but it was before the event begins. For a process that the reboot
		// itself starts, now would be after it.
		Noticed:  interruption.Earlier(now, e.notBefore),
		Received: now,
		Deadline: e.notBefore,
	}}
}

// maxMissing is how many readings in a row an event has to be missing from both lists to
// count as withdrawn. That takes five minutes: a node that stays cordoned for so long costs
// less than one that is not drained because of a slip.
const maxMissing = 10

// maxFollowed is how many announced events are followed; there is one or two.
const maxFollowed = 2 * maxEvents

// A follower follows the scheduled events of the instance through the two lists that EC2
// has of them, the active ones and the history of those that were completed or canceled.
//
//	          listed as active          in the history, or listed as over
//	unknown ──────────────────────► open ───────────────────────────────► withdrawn
//	                                 │      in neither list, ten times
//	                                 └──────────────────────────────────►
//
// An event usually moves from the first list to the second as it ends. The first one
// decides: what it lists as active stands, whatever the history says. If an event that was
// in neither is listed again, it is announced again. All events of the history are
// withdrawn, even those that are new to this process: the one before it can have announced
// them, and a withdrawal of others means nothing.
//
// It is not safe for concurrent use.
type follower struct {
	active map[string]bool // by id: in the last reading of the first list; nil before
	open   map[string]*openEvent
}

// An openEvent is one that this process has announced and not taken back.
type openEvent struct {
	event
	missing int // readings in a row
}

func newFollower() *follower { return &follower{open: map[string]*openEvent{}} }

// scheduled reads the list of active events.
func (f *follower) scheduled(r reading) ([]announcement, error) {
	events, err := parseEvents(r.body, r.at)
	if err != nil && !usable(err) && len(events) == 0 {
		return nil, err
	}
	f.active = map[string]bool{}
	var said []announcement
	for _, e := range events {
		if e.over || f.active[e.id] {
			continue
		}
		f.active[e.id] = true
		if !e.notAfter.IsZero() && e.notAfter.Before(r.at) {
			continue // EC2 has yet to say what became of it
		}
		if len(f.open) < maxFollowed {
			f.open[e.id] = &openEvent{event: e}
		}
		said = append(said, e.announcement(r.at))
	}
	said = append(said, f.withdrawOver(events, r.at)...)
	if err != nil && !usable(err) {
		return said, err // what is missing can be what could not be read
	}
	return append(said, f.withdrawMissing(r.at)...), err
}

// history reads the list of events that are over.
func (f *follower) history(r reading) ([]announcement, error) {
	events, err := parseEvents(r.body, r.at)
	if f.active == nil {
		return nil, err // the first list could not be read yet
	}
	return f.withdrawOver(events, r.at), err
}

// withdrawOver withdraws those that are over, but for what stands.
func (f *follower) withdrawOver(events []event, now time.Time) (said []announcement) {
	for _, e := range events {
		if e.over && !f.active[e.id] {
			said = append(said, f.withdraw(e, now))
		}
	}
	return said
}

// withdrawMissing withdraws what has been in no list for some time.
func (f *follower) withdrawMissing(now time.Time) (said []announcement) {
	for id, e := range f.open {
		if f.active[id] {
			e.missing = 0
			continue
		}
		if e.missing++; e.missing >= maxMissing {
			said = append(said, f.withdraw(e.event, now))
		}
	}
	return said
}

// withdraw announces that the event is withdrawn.
func (f *follower) withdraw(e event, now time.Time) announcement {
	delete(f.open, e.id)
	return announcement{name: e.id, word: "withdrawn", notice: interruption.Notice{
		Action: e.action, Noticed: now, Received: now, Deadline: e.notBefore, Withdrawn: true,
	}}
}
