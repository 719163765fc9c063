package imds

import "time"

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

func (f *follower) withdraw(e event, now time.Time) announcement {
	delete(f.open, e.id)
	return e.withdrawal(now)
}
