package queue

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"spot-handler/handler/interruption"
)

// sent is the time in the payloads.
var sent = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func testdata(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestParse(t *testing.T) {
	received := sent.Add(1500 * time.Millisecond)
	spot := interruption.Notice{
		Kind: interruption.SpotInterruption, Source: interruption.Queue,
		EventID: "12345678-1234-1234-1234-123456789012", InstanceID: "i-1234567890abcdef0",
		Action: "terminate", Noticed: sent, Received: received, Deadline: sent.Add(2 * time.Minute),
	}
	with := func(change func(*interruption.Notice)) interruption.Notice {
		n := spot
		change(&n)
		return n
	}
	good := testdata(t, "spot_interruption.json")
	tests := []struct {
		name, body string
		want       interruption.Notice
	}{
		{"spot interruption", good, spot},
		{"resources are a string", testdata(t, "resources_string.json"), spot},
		{"rebalance", testdata(t, "rebalance.json"), interruption.Notice{
			Kind: interruption.RebalanceRecommendation, Source: interruption.Queue,
			EventID: "22345678-1234-1234-1234-123456789012", InstanceID: "i-1234567890abcdef0",
			Noticed: sent, Received: received,
		}},
		{"stop", strings.ReplaceAll(good, "terminate", "stop"), with(func(n *interruption.Notice) { n.Action = "stop" })},
		{"hibernate begins at once", strings.ReplaceAll(good, "terminate", "hibernate"), with(func(n *interruption.Notice) {
			n.Action, n.Deadline = "hibernate", received
		})},
		{"unknown action is taken for a termination", strings.ReplaceAll(good, "terminate", "melt"), spot},
		{"not an EC2 id", strings.ReplaceAll(good, "i-1234567890abcdef0", "node-7.pool_a"), with(func(n *interruption.Notice) {
			n.InstanceID = "node-7.pool_a"
		})},
		{"clock of EC2 ahead", strings.ReplaceAll(good, "00:00:00Z", "00:00:10Z"), with(func(n *interruption.Notice) {
			n.Noticed, n.Deadline = received, sent.Add(130*time.Second)
		})},
		{"space around", " \n" + good + "\t\n", spot},
		{"escaped names", strings.ReplaceAll(good, `"instance-id"`, `"instance\u002did"`), spot},
		{"hours old", strings.ReplaceAll(good, "2026-01-01T00", "2025-12-31T05"), with(func(n *interruption.Notice) {
			n.Noticed, n.Deadline = sent.Add(-19*time.Hour), sent.Add(-19*time.Hour+2*time.Minute)
		})},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parse(tt.body, received)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]interruption.Notice{tt.want}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseRejects(t *testing.T) {
	good := testdata(t, "spot_interruption.json")
	replace := func(old, new string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("payload has no %s", old)
		}
		return strings.Replace(good, old, new, 1)
	}
	tests := []struct {
		name, body string
		outcome    outcome
		reason     rejectReason
	}{
		{"empty", "", outcomeMalformed, rejectJSON},
		{"garbage", testdata(t, "malformed_garbage.txt"), outcomeMalformed, rejectJSON},
		{"200 kB of garbage", strings.Repeat("garbage ", 25_000), outcomeMalformed, rejectJSON},
		{"200 kB in a name", `{"` + strings.Repeat("x", 200_000) + `":1}`, outcomeMalformed, rejectField},
		{"truncated", testdata(t, "malformed_truncated.txt"), outcomeMalformed, rejectJSON},
		{"null", "null", outcomeMalformed, rejectJSON},
		{"array", "[" + good + "]", outcomeMalformed, rejectJSON},
		{"string", `"hello"`, outcomeMalformed, rejectJSON},
		{"two objects", good + good, outcomeMalformed, rejectJSON},
		{"trailing brace", good + "}", outcomeMalformed, rejectJSON},
		{"invalid UTF-8", testdata(t, "malformed_utf8.txt"), outcomeMalformed, rejectJSON},
		{"too large", strings.Repeat(" ", maxBody) + good, outcomeMalformed, rejectTooLarge},
		{"deep nesting", replace(`"version": "0"`, `"version": `+strings.Repeat("[", 100_000)+strings.Repeat("]", 100_000)), outcomeMalformed, rejectJSON},
		{"deep detail", replace(`"terminate"`, strings.Repeat(`{"a":`, 20_000)+"1"+strings.Repeat("}", 20_000)), outcomeMalformed, rejectJSON},
		{"key twice in the envelope", replace(`"version": "0"`, `"id": "0"`), outcomeMalformed, rejectJSON},
		{"key twice in the detail", testdata(t, "malformed_duplicate_key.txt"), outcomeMalformed, rejectField},
		{"huge number", testdata(t, "malformed_huge_number.txt"), outcomeMalformed, rejectField},
		{"id is a number", testdata(t, "malformed_id_type.json"), outcomeMalformed, rejectField},
		{"id with control characters", replace("12345678-", `\u0000-`), outcomeMalformed, rejectField},
		{"long id", replace("12345678-", strings.Repeat("1", 200)), outcomeMalformed, rejectField},
		{"no id", replace(`"id"`, `"ID"`), outcomeMalformed, rejectField},
		{"no detail", replace(`"detail":`, `"details":`), outcomeMalformed, rejectField},
		{"null detail", testdata(t, "malformed_detail_null.json"), outcomeMalformed, rejectField},
		{"array for detail", testdata(t, "malformed_detail_array.json"), outcomeMalformed, rejectField},
		{"types in detail", testdata(t, "malformed_detail_types.json"), outcomeMalformed, rejectField},
		{"no action", testdata(t, "malformed_no_action.json"), outcomeMalformed, rejectField},
		{"no detail-type", replace(`"detail-type"`, `"detail-typ"`), outcomeMalformed, rejectField},
		{"null source", replace(`"aws.ec2"`, `null`), outcomeMalformed, rejectField},
		{"no time", testdata(t, "malformed_no_time.json"), outcomeMalformed, rejectField},
		{"not a time", replace("2026-01-01T00:00:00Z", "yesterday"), outcomeMalformed, rejectTime},
		{"zero time", replace("2026-01-01T00:00:00Z", "0001-01-01T00:00:00Z"), outcomeMalformed, rejectTime},
		{"year 9999", testdata(t, "malformed_year_9999.json"), outcomeMalformed, rejectTime},
		{"hours in the future", replace("2026-01-01T00", "2026-01-01T03"), outcomeMalformed, rejectTime},
		{"instance id is a path", testdata(t, "malformed_instance_id.json"), outcomeMalformed, rejectInstanceID},
		{"instance id is long", strings.ReplaceAll(good, "i-1234567890abcdef0", strings.Repeat("i", 64)), outcomeMalformed, rejectInstanceID},
		{"instance id ends badly", strings.ReplaceAll(good, "i-1234567890abcdef0", "i-"), outcomeMalformed, rejectInstanceID},
		{"empty instance id", strings.ReplaceAll(good, "i-1234567890abcdef0", ""), outcomeMalformed, rejectField},
		{"another kind", testdata(t, "unsupported.json"), outcomeUnsupported, rejectDetailType},
		{"somebody else's spot warning", replace("aws.ec2", "my.app"), outcomeUnsupported, rejectSource},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parse(tt.body, sent.Add(time.Second))
			r, ok := errors.AsType[*rejection](err)
			if !ok {
				t.Fatalf("got %v, %v, want a rejection", got, err)
			}
			if r.outcome != tt.outcome || r.reason != tt.reason {
				t.Errorf("%s, %s (%v), want %s, %s", r.outcome, r.reason, err, tt.outcome, tt.reason)
			}
			if len(err.Error()) > 1000 || !utf8.ValidString(err.Error()) {
				t.Errorf("error of %d bytes", len(err.Error()))
			}
		})
	}
}

// Every payload in testdata is what its name says.
func TestTestdata(t *testing.T) {
	files, err := filepath.Glob("testdata/*.*")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	for _, f := range files {
		name := filepath.Base(f)
		_, err := parse(testdata(t, name), sent.Add(time.Second))
		if r, ok := errors.AsType[*rejection](err); strings.HasPrefix(name, "malformed_") != (ok && r.outcome == outcomeMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.*")
	for _, name := range files {
		f.Add(testdata(f, filepath.Base(name)))
	}
	received := sent.Add(time.Second)
	f.Fuzz(func(t *testing.T, body string) {
		notices, err := parse(body, received)
		if err != nil {
			if _, ok := errors.AsType[*rejection](err); !ok {
				t.Fatalf("error is not a rejection: %v", err)
			}
		}
		wellFormed(t, notices, received)
	})
}

// wellFormed checks what every notice promises, whatever the message.
func wellFormed(t *testing.T, notices []interruption.Notice, received time.Time) {
	t.Helper()
	seen := map[string]bool{}
	for _, n := range notices {
		switch {
		case n.Source != interruption.Queue, !slices.Contains(interruption.Kinds(), n.Kind), n.EventID == "", len(n.EventID) > maxEventARN, !printable(n.EventID):
			t.Errorf("notice %+v", n)
		case !validInstanceID(n.InstanceID) || strings.ContainsAny(n.InstanceID, "/ \n\x00\"") || seen[n.InstanceID]:
			t.Errorf("instance id %q", n.InstanceID)
		case !n.Received.Equal(received), n.Noticed.After(received), n.Noticed.Before(received.Add(-maxPast)):
			t.Errorf("times of %+v", n)
		case n.Withdrawn && n.Kind != interruption.ScheduledEvent:
			t.Errorf("withdrawn: %+v", n)
		}
		seen[n.InstanceID] = true

		hasDeadline, hasHook, latest := true, false, received.Add(maxAhead+interruption.SpotNotice)
		var actions []string
		switch n.Kind {
		case interruption.SpotInterruption:
			actions = []string{"terminate", "stop", "hibernate"}
		case interruption.CapacityReservationInterruption:
			actions, latest = []string{"terminate", "stop", "hibernate"}, received.Add(maxCapacityLead)
		case interruption.CapacityBlockExpiration:
			actions, latest = []string{"terminate"}, received.Add(interruption.CapacityBlockNotice)
			if n.Reservation != n.InstanceID {
				t.Errorf("notice %+v", n)
			}
		case interruption.RebalanceRecommendation:
			actions, hasDeadline = []string{""}, false
		case interruption.StateChange:
			actions, latest = []string{"stopping", "stopped", "shutting-down", "terminated"}, received
		case interruption.ScheduledEvent:
			actions, latest, hasDeadline = []string{"retirement", "stop", "reboot", "maintenance"}, received.Add(maxWindow), !n.Withdrawn || !n.Deadline.IsZero()
		case interruption.InstanceTerminating:
			actions, hasDeadline, hasHook = []string{"", "terminate"}, false, true
		}
		if !slices.Contains(actions, n.Action) || n.Deadline.IsZero() == hasDeadline || n.Deadline.After(latest) || (n.Hook != nil) != hasHook {
			t.Errorf("notice %+v", n)
		}
		if h := n.Hook; h != nil && (h.Group == "" || h.Name == "" || len(h.Group) > maxName || len(h.Name) > maxName ||
			h.Since.After(received) || h.Launching != (n.Action == "") || !h.Until.IsZero() || h.Heartbeats != 0 || h.Done) {
			t.Errorf("hook %+v", *h)
		}
	}
}

// BenchmarkParse also gives the ratio to encoding/json's own decoding of the same
// text, which checks nothing.
func BenchmarkParse(b *testing.B) {
	body := testdata(b, "spot_interruption.json")
	received := sent.Add(time.Second)
	began := time.Now()
	const plain = 2000
	for range plain {
		var doc struct {
			ID, Source, Time string
			DetailType       string `json:"detail-type"`
			Detail           struct {
				Instance string `json:"instance-id"`
				Action   string `json:"instance-action"`
			}
		}
		if err := json.Unmarshal([]byte(body), &doc); err != nil {
			b.Fatal(err)
		}
	}
	limit := time.Since(began) / plain

	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parse(body, received); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(limit), "x-unmarshal")
}
