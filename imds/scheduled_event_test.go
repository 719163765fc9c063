package imds

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
)

func testdata(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// newYear is a moment before all windows of the samples.
var newYear = time.Date(2026, 1, 1, 0, 0, 3, 0, time.UTC)

func TestParseEvents(t *testing.T) {
	window := time.Date(2026, 1, 21, 9, 0, 43, 0, time.UTC)
	end := time.Date(2026, 1, 21, 9, 17, 23, 0, time.UTC)
	tests := []struct {
		name   string
		body   string
		want   []event
		reason awsfault.Reason
	}{
		{name: "active", body: string(testdata(t, "scheduled_events.json")), want: []event{
			{id: "instance-event-0d59937288b749b32", action: "reboot", notBefore: window, notAfter: end},
			{id: "instance-event-087e363178449a61e", action: "stop", notBefore: time.Date(2026, 2, 5, 2, 0, 0, 0, time.UTC)},
		}},
		{name: "history", body: string(testdata(t, "scheduled_history.json")), want: []event{
			{id: "instance-event-0d59937288b749b32", action: "reboot", over: true, notBefore: window, notAfter: end},
			{id: "instance-event-0d59937288b749b33", action: "reboot", over: true,
				notBefore: time.Date(2025, 12, 29, 9, 0, 43, 0, time.UTC), notAfter: time.Date(2025, 12, 29, 9, 17, 23, 0, time.UTC)},
		}},
		{name: "one that cannot be read does not hide the others", body: string(testdata(t, "scheduled_mixed.json")), reason: reasonMalformed, want: []event{
			{id: "instance-event-00000000000000002", action: "maintenance", notBefore: window},
			{id: "instance-event-00000000000000003", action: "retirement", over: true},
			{id: "instance-event-00000000000000004", action: "reboot", notBefore: window},
		}},
		{name: "unknown code", body: `[{"EventId":"e","Code":"melt","State":"active","NotBefore":"21 Jan 2026 09:00:43 GMT"}]`,
			reason: reasonUnknownAction, want: []event{{id: "e", action: "maintenance", notBefore: window}}},
		{name: "unknown state", body: `[{"EventId":"e","Code":"instance-stop","NotBefore":"21 Jan 2026 09:00:43 GMT"}]`,
			reason: reasonUnknownState, want: []event{{id: "e", action: "stop", notBefore: window}}},
		{name: "what is over may have any code", body: `[{"EventId":"e","Code":"melt","State":"completed"}]`,
			want: []event{{id: "e", action: "maintenance", over: true}}},
		{name: "a day of one digit, an end that is no date", body: `[{"EventId":"e","Code":"system-maintenance","State":"active","NotBefore":"2 Jan 2026 09:00:43 GMT","NotAfter":"later"}]`,
			want: []event{{id: "e", action: "maintenance", notBefore: time.Date(2026, 1, 2, 9, 0, 43, 0, time.UTC)}}},
		{name: "none", body: "[]"},
		{name: "empty", body: ""},
		{name: "blank", body: " \n"},
		{name: "null", body: "null", reason: reasonMalformed},
		{name: "HTML", body: string(testdata(t, "malformed_html.txt")), reason: reasonMalformed},
		{name: "no list", body: string(testdata(t, "malformed_no_list.json")), reason: reasonMalformed},
		{name: "cut off", body: string(testdata(t, "malformed_truncated.txt")), reason: reasonMalformed},
		{name: "no events in it", body: string(testdata(t, "malformed_entries.json")), reason: reasonMalformed},
		{name: "year 9999", body: string(testdata(t, "malformed_year_9999.json")), reason: reasonMalformed},
		{name: "RFC 3339", body: `[{"EventId":"e","Code":"instance-stop","State":"active","NotBefore":"2026-01-21T09:00:43Z"}]`, reason: reasonMalformed},
		{name: "deep", body: strings.Repeat("[", 30_000), reason: reasonMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseEvents([]byte(tt.body), newYear)
			if awsfault.Of(err) != tt.reason {
				t.Fatalf("error %v, want awsfault.Reason %q", err, tt.reason)
			}
			if err != nil && len(err.Error()) > 512 {
				t.Errorf("error of %d bytes", len(err.Error()))
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(event{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestManyEventsAreBounded(t *testing.T) {
	entries := make([]string, 500)
	for i := range entries {
		entries[i] = fmt.Sprintf(`{"EventId":"e-%d","Code":"instance-stop","State":"active","NotBefore":"21 Jan 2026 09:00:43 GMT"}`, i)
	}
	events, err := parseEvents([]byte("["+strings.Join(entries, ",")+"]"), newYear)
	if awsfault.Of(err) != reasonTooLarge || len(events) != maxEvents {
		t.Errorf("%d events, error %v; want %d and reason %s", len(events), err, maxEvents, reasonTooLarge)
	}
}

func TestEventActionsAreThoseOfTheModel(t *testing.T) {
	want := map[string]string{
		"instance-stop": interruption.ActionStop, "instance-retirement": interruption.ActionRetirement,
		"instance-reboot": interruption.ActionReboot, "system-reboot": interruption.ActionReboot,
		"system-maintenance": interruption.ActionMaintenance,
	}
	if diff := cmp.Diff(want, eventActions); diff != "" {
		t.Error(diff)
	}
}

func TestNoticeOfAScheduledEvent(t *testing.T) {
	s := newFollower()
	said, err := s.scheduled(reading{testdata(t, "scheduled_events.json"), true, newYear})
	if err != nil {
		t.Fatal(err)
	}
	window := time.Date(2026, 1, 21, 9, 0, 43, 0, time.UTC)
	want := interruption.Notice{Action: interruption.ActionReboot, Noticed: newYear, Received: newYear, Deadline: window}
	if diff := cmp.Diff(want, said[0].notice); diff != "" {
		t.Error(diff)
	}
	// A process that the reboot itself has started: this was announced before its deadline.
	within := window.Add(5 * time.Minute)
	said, _ = s.scheduled(reading{testdata(t, "scheduled_events.json"), true, within})
	if n := said[0].notice; n.Noticed.After(n.Deadline) || !n.Received.Equal(within) {
		t.Errorf("noticed %v, received %v; want it noticed before the deadline", n.Noticed, n.Received)
	}
	said, err = s.history(reading{testdata(t, "scheduled_history.json"), true, within})
	if err != nil || len(said) != 1 { // the other one is listed as active still
		t.Fatalf("%v, %v", said, err)
	}
	if n := said[0].notice; !n.Withdrawn || n.Deadline.IsZero() || n.Action != interruption.ActionReboot {
		t.Errorf("withdrawn by %+v", n)
	}
}

// What is usable is announced and counted as a fault all the same: EC2 has a word that is not
// known here.
func TestUsableFaultsAreReported(t *testing.T) {
	const unknown = `[{"EventId":"e","Code":"melt","State":"active","NotBefore":"21 Jan 2026 09:00:43 GMT"}]`
	said, err := newFollower().scheduled(reading{[]byte(unknown), true, newYear})
	if len(said) != 1 || said[0].name != "e" || awsfault.Of(err) != reasonUnknownAction {
		t.Errorf("said %v, error %v; want the event, and reason %s", said, err, reasonUnknownAction)
	}
}

// An event that cannot be read is an error, also beside one that can: that one is announced, and none counts as withdrawn.
func TestUnreadableEventBesideAnother(t *testing.T) {
	f := newFollower()
	const both = `[{"EventId":"a","Code":"system-reboot","State":"active","NotBefore":"21 Jan 2026 09:00:43 GMT"},
		{"EventId":"b","Code":"system-reboot","State":"active","NotBefore":"%s"}]`
	if _, err := f.scheduled(reading{fmt.Appendf(nil, both, "21 Jan 2026 09:00:43 GMT"), true, newYear}); err != nil {
		t.Fatal(err)
	}
	said, err := f.scheduled(reading{fmt.Appendf(nil, both, "some day"), true, newYear})
	if len(said) != 1 || said[0].name != "a" || awsfault.Of(err) != reasonMalformed {
		t.Errorf("said %v, error %v; want the first event, and reason %s", said, err, reasonMalformed)
	}
}
