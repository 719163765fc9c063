package imds

import (
	"time"
)

// maxMissing is in how many readings in a row an event has to be in neither list to count
// as withdrawn.
const maxMissing = 3

// maxFollowed is how many announced events are followed; there is one or two.
const maxFollowed = 2 * maxEvents

// A schedule follows the scheduled events of the instance through the two lists that EC2
// has of them, the active ones and the history of those that were completed or canceled.
//
//	          listed as active               in the history, or listed as over
//	unknown ──────────────────────► announced ───────────────────────────────► withdrawn
//	                                    │      in neither list, three times
//	                                    └─────────────────────────────────────►
//
// An event usually leaves the first list for the second as it ends. The first one has the
// last word: what it lists as active stands, whatever the history says. An event that is in
// neither is not active by EC2's own account; should that have been a slip, then it is
// announced again with the next reading. All events of the history are withdrawn, also
// those that this process has not seen before: the one before it may have announced them,
// and for others a withdrawal means nothing.
//
// It is not safe for concurrent use.
type schedule struct {
	active    map[string]bool // by id: in the last reading of the first list; nil before
	announced map[string]*standing
}

// A standing is an event that this process has announced and not taken back.
type standing struct {
	event
	missing int // readings in a row
}

func newSchedule() *schedule { return &schedule{announced: map[string]*standing{}} }

// scheduled reads the list of active events.
func (s *schedule) scheduled(r reading) ([]announcement, error) {
	events, err := parseEvents(r.body, r.at)
	if err != nil && !usable(err) && len(events) == 0 {
		return nil, err
	}
	s.active = map[string]bool{}
	var said []announcement
	for _, e := range events {
		if e.over || s.active[e.id] {
			continue
		}
		s.active[e.id] = true
		if !e.notAfter.IsZero() && e.notAfter.Before(r.at) {
			continue // EC2 has yet to say how it went
		}
		if len(s.announced) < maxFollowed {
			s.announced[e.id] = &standing{event: e}
		}
		said = append(said, e.announced(r.at))
	}
	said = append(said, s.ended(events, r.at)...)
	if err != nil && !usable(err) {
		return said, err // what is missing may be what could not be read
	}
	return append(said, s.missing(r.at)...), err
}

// history reads the list of events that are over.
func (s *schedule) history(r reading) ([]announcement, error) {
	events, err := parseEvents(r.body, r.at)
	if s.active == nil {
		return nil, err // the first list could not be read yet
	}
	return s.ended(events, r.at), err
}

// ended withdraws those that are over, but for what stands.
func (s *schedule) ended(events []event, now time.Time) (said []announcement) {
	for _, e := range events {
		if e.over && !s.active[e.id] {
			said = append(said, s.end(e, now))
		}
	}
	return said
}

// missing withdraws what has been in no list for some time.
func (s *schedule) missing(now time.Time) (said []announcement) {
	for id, e := range s.announced {
		if s.active[id] {
			e.missing = 0
			continue
		}
		if e.missing++; e.missing >= maxMissing {
			said = append(said, s.end(e.event, now))
		}
	}
	return said
}

func (s *schedule) end(e event, now time.Time) announcement {
	delete(s.announced, e.id)
	return e.withdrawn(now)
}
