package imdsemu

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// eventTime is the date format of scheduled events, unlike all other dates of the service.
const eventTime = "2 Jan 2006 15:04:05 GMT"

// ScheduledEvent is a maintenance event of the instance.
type ScheduledEvent struct {
	// Code is instance-stop, instance-retirement, instance-reboot, system-reboot or system-maintenance.
	Code string
	// Description is free text. EC2 puts "[Canceled]" or "[Completed]" before that of an event that is over.
	Description string
	// EventID is like instance-event-0d59937288b749b32.
	EventID string
	// NotBefore and NotAfter are the window; a zero NotAfter is left out.
	NotBefore, NotAfter time.Time
	// State is active, completed or canceled.
	State string
}

// Interrupt announces that EC2 will terminate, stop or hibernate the instance at a time. A later call replaces it.
func (s *Server) Interrupt(action string, at time.Time) {
	s.Set(InstanceActionPath, mustJSON(struct {
		Action string `json:"action"`
		Time   string `json:"time"`
	}{action, at.UTC().Format(time.RFC3339)}))
}

// Rebalance announces that the instance is at an elevated risk of interruption since a time.
func (s *Server) Rebalance(noticed time.Time) {
	s.Set(RebalancePath, mustJSON(struct {
		NoticeTime string `json:"noticeTime"`
	}{noticed.UTC().Format(time.RFC3339)}))
}

// Schedule replaces the list of scheduled events, which is empty at the start. It lists all of them there, whatever
// their State; EC2 itself lists an event that is over in the history (see Cancel). Schedule empties the history.
func (s *Server) Schedule(events ...ScheduledEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scheduled = slices.Clone(events)
	s.list(events, nil)
}

// Cancel plays EC2 canceling a scheduled event: it moves from the list to the history, with its new state and
// "[Canceled]" before its description. Canceling an event that is not scheduled is the caller's error, and panics.
func (s *Server) Cancel(eventID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.scheduled, func(e ScheduledEvent) bool { return e.EventID == eventID })
	if i < 0 {
		panic(fmt.Sprintf("imdsemu: no scheduled event %q", eventID))
	}
	s.scheduled[i].State, s.scheduled[i].Description = "canceled", "[Canceled] "+s.scheduled[i].Description
	var active, over []ScheduledEvent
	for _, e := range s.scheduled {
		if e.State == "active" {
			active = append(active, e)
		} else {
			over = append(over, e)
		}
	}
	s.list(active, over)
}

// list writes both lists; the caller holds the lock.
func (s *Server) list(active, over []ScheduledEvent) {
	s.announced[absolute(ScheduledEventsPath)] = eventList(active)
	s.announced[absolute(EventHistoryPath)] = eventList(over)
}

func eventList(events []ScheduledEvent) string {
	type wire struct {
		NotBefore, Code, Description, EventId string
		NotAfter                              string `json:",omitempty"`
		State                                 string
	}
	list := make([]wire, 0, len(events))
	for _, e := range events {
		w := wire{
			NotBefore: e.NotBefore.UTC().Format(eventTime), Code: e.Code, Description: e.Description,
			EventId: e.EventID, State: e.State,
		}
		if !e.NotAfter.IsZero() {
			w.NotAfter = e.NotAfter.UTC().Format(eventTime)
		}
		list = append(list, w)
	}
	return mustJSON(list)
}

// SetTargetLifecycleState says what the Auto Scaling group wants of the instance: InService, Terminated,
// Warmed:Stopped and so on. Before the first call there is no such metadata.
func (s *Server) SetTargetLifecycleState(state string) { s.Set(TargetLifecycleStatePath, state) }

// Set puts any text at a metadata path until Clear, for payloads that EC2 never promised.
func (s *Server) Set(path, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.announced[absolute(path)] = text
}

// Clear takes back all that was announced: notices are 404 again, the lists of scheduled events are empty. Tokens,
// faults and counters stay.
func (s *Server) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.announced, s.scheduled = map[string]string{}, nil
	s.list(nil, nil)
}

func mustJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // only plain strings are marshaled here
	}
	return string(b)
}
