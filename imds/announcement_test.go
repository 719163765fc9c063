package imds

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
)

func TestParseInstanceAction(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 3, 0, time.UTC)
	at := time.Date(2026, 1, 1, 0, 2, 0, 0, time.UTC)
	tests := []struct {
		name, body string
		want       announcement
		reason     awsfault.Reason
	}{
		{name: "terminate", body: `{"action":"terminate","time":"2026-01-01T00:02:00Z"}`, want: announcement{
			name: "2026-01-01T00:02:00Z", notice: interruption.Notice{Action: "terminate", Noticed: at.Add(-2 * time.Minute), Received: now, Deadline: at}}},
		{name: "stop, other zone", body: `{"action":"stop","time":"2026-01-01T02:02:00+02:00"}`, want: announcement{
			name: "2026-01-01T00:02:00Z", notice: interruption.Notice{Action: "stop", Noticed: at.Add(-2 * time.Minute), Received: now, Deadline: at}}},
		{name: "notice is never later than its receipt", body: `{"action":"stop","time":"2026-01-01T00:10:00Z"}`, want: announcement{
			name: "2026-01-01T00:10:00Z", notice: interruption.Notice{Action: "stop", Noticed: now, Received: now, Deadline: at.Add(8 * time.Minute)}}},
		{name: "hibernate begins at once", body: `{"action":"hibernate","time":"2026-01-01T00:02:00Z"}`, want: announcement{
			name: "2026-01-01T00:02:00Z", notice: interruption.Notice{Action: "hibernate", Noticed: now, Received: now, Deadline: now}}},
		{name: "unknown action", body: `{"action":"defenestrate","time":"2026-01-01T00:02:00Z"}`, reason: reasonUnknownAction, want: announcement{
			name: "2026-01-01T00:02:00Z", notice: interruption.Notice{Action: "terminate", Noticed: at.Add(-2 * time.Minute), Received: now, Deadline: at}}},
		{name: "empty", body: ``, reason: reasonMalformed},
		{name: "HTML", body: `<html>`, reason: reasonMalformed},
		{name: "null", body: `null`, reason: reasonMalformed},
		{name: "array", body: `[]`, reason: reasonMalformed},
		{name: "cut off", body: `{"action":"terminate","time":"2026-`, reason: reasonMalformed},
		{name: "two documents", body: `{"action":"terminate","time":"2026-01-01T00:02:00Z"}{}`, reason: reasonMalformed},
		{name: "no action", body: `{"time":"2026-01-01T00:02:00Z"}`, reason: reasonMalformed},
		{name: "no time", body: `{"action":"terminate"}`, reason: reasonMalformed},
		{name: "number for time", body: `{"action":"terminate","time":1767225720}`, reason: reasonMalformed},
		{name: "no time at all", body: `{"action":"terminate","time":"soon"}`, reason: reasonMalformed},
		{name: "zero time", body: `{"action":"terminate","time":"0001-01-01T00:00:00Z"}`, reason: reasonMalformed},
		{name: "year 9999", body: `{"action":"terminate","time":"9999-12-31T23:59:59Z"}`, reason: reasonMalformed},
		{name: "hours ahead", body: `{"action":"terminate","time":"2026-01-01T03:00:00Z"}`, reason: reasonMalformed},
		{name: "deep", body: strings.Repeat("[", 30_000), reason: reasonMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseInstanceAction([]byte(tt.body), now)
			if awsfault.Of(err) != tt.reason {
				t.Fatalf("error %v, want awsfault.Reason %q", err, tt.reason)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(announcement{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseRebalance(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 3, 0, time.UTC)
	tests := []struct {
		name, body string
		noticed    time.Time
		reason     awsfault.Reason
	}{
		{name: "now", body: `{"noticeTime":"2026-01-01T00:00:00Z"}`, noticed: now.Add(-3 * time.Second)},
		{name: "a month ago", body: `{"noticeTime":"2025-12-01T00:00:00Z"}`, noticed: time.Date(2025, 12, 1, 0, 0, 0, 0, time.UTC)},
		{name: "clock behind", body: `{"noticeTime":"2026-01-01T00:00:09Z"}`, noticed: now},
		{name: "absurd", body: `{"noticeTime":"1970-01-01T00:00:00Z"}`, reason: reasonMalformed},
		{name: "missing", body: `{}`, reason: reasonMalformed},
		{name: "wrong type", body: `{"noticeTime":{}}`, reason: reasonMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseRebalance([]byte(tt.body), now)
			if awsfault.Of(err) != tt.reason {
				t.Fatalf("error %v, want awsfault.Reason %q", err, tt.reason)
			}
			if !got.notice.Noticed.Equal(tt.noticed) || !got.notice.Deadline.IsZero() {
				t.Errorf("noticed %v, deadline %v, want %v and none", got.notice.Noticed, got.notice.Deadline, tt.noticed)
			}
		})
	}
}

func TestParseInstanceID(t *testing.T) {
	for text, want := range map[string]string{
		"i-0123456789abcdef0\n":     "i-0123456789abcdef0",
		"node-7.kwok_x":             "node-7.kwok_x",
		"":                          "",
		"-i":                        "",
		"i/0":                       "",
		"<html>":                    "",
		strings.Repeat("i", 64):     "",
		"i-0123\x00":                "",
		"i-0123456789abcdef0 other": "",
	} {
		got, err := parseInstanceID(reading{body: []byte(text), found: true})
		if got != want || (err == nil) != (want != "") {
			t.Errorf("parseInstanceID(%q) = %q, %v, want %q", text, got, err, want)
		}
	}
}
