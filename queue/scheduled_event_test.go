package queue

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spot-handler/handler/interruption"
)

func TestHealthEvents(t *testing.T) {
	received := sent.Add(1500 * time.Millisecond)
	window := time.Date(2026, 1, 10, 9, 0, 43, 0, time.UTC)
	notices := func(change func(*interruption.Notice), instances ...string) []interruption.Notice {
		var list []interruption.Notice
		for _, id := range instances {
			n := interruption.Notice{
				Kind: interruption.ScheduledEvent, Source: interruption.Queue, EventID: retirementARN, InstanceID: id,
				Action: "retirement", Noticed: sent, Received: received, Deadline: window,
			}
			if change != nil {
				change(&n)
			}
			list = append(list, n)
		}
		return list
	}
	all := []string{instance, instance2, instance3}
	withdrawn := func(n *interruption.Notice) { n.Withdrawn = true }
	file := func(oldnew ...string) string { return edit(t, testdata(t, "health_event.json"), oldnew...) }
	tests := []struct {
		name, body string
		want       []interruption.Notice
	}{
		{"one message, three instances, one of them by its ARN", file(), notices(nil, all...)},
		{"a page of several", file(`"page": "1"`, `"page": "3"`, `"totalPages": "1"`, `"totalPages": "7"`, `5678-1"`, `5678-3"`), notices(nil, all...)},
		{"one digit for the day", file("Sat, 10 Jan 2026", "Fri, 9 Jan 2026"), notices(func(n *interruption.Notice) { n.Deadline = window.AddDate(0, 0, -1) }, all...)},
		{"a zero before it", file("Sat, 10 Jan 2026", "Fri, 09 Jan 2026"), notices(func(n *interruption.Notice) { n.Deadline = window.AddDate(0, 0, -1) }, all...)},
		{"RFC 3339", file("Sat, 10 Jan 2026 09:00:43 GMT", "2026-01-10T09:00:43Z"), notices(nil, all...)},
		{"the window has begun", file("Sat, 10 Jan 2026", "Wed, 31 Dec 2025", `"upcoming"`, `"open"`), notices(func(n *interruption.Notice) {
			n.Deadline = time.Date(2025, 12, 31, 9, 0, 43, 0, time.UTC)
		}, all...)},
		{"closed", testdata(t, "health_event_closed.json"), notices(withdrawn, all...)},
		{"closed, and no start", file(`"upcoming"`, `"closed"`, `"startTime"`, `"begin"`), notices(func(n *interruption.Notice) {
			n.Withdrawn, n.Deadline = true, time.Time{}
		}, all...)},
		{"canceled by its description alone", file(`"EC2 has`, `"[Canceled] EC2 has`), notices(withdrawn, all...)},
		{"completed by its description", file(`"EC2 has`, `" [COMPLETED] EC2 has`), notices(withdrawn, all...)},
		{"a description that speaks of cancelation", file(`"EC2 has`, `"It cannot be canceled or [Completed]. EC2 has`), notices(nil, all...)},
		{"no description", file(`"eventDescription"`, `"description"`), notices(nil, all...)},
		{"over for one of them", withEntities(t, `[{"entityValue":"`+instance+`","status":"RESOLVED"},{"entityValue":"`+instance2+`","status":"PENDING"}]`),
			append(notices(withdrawn, instance), notices(nil, instance2)...)},
		{"an instance twice", withEntities(t, `[{"entityValue":"`+instance+`"},{"entityValue":"arn:aws:ec2:us-east-2:1:instance/`+instance+`"},{"entityValue":"`+instance2+`"}]`),
			notices(nil, instance, instance2)},
		{"a volume between instances", withEntities(t, `[{"entityValue":"arn:aws:ec2:us-east-2:1:volume/vol-1"},{"entityValue":"`+instance+`"}]`), notices(nil, instance)},
		{"no entity", withEntities(t, `[]`), nil},
		{"a public event", file(`"affectedEntities"`, `"others"`), nil},
		{"another service", file(`"EC2"`, `"RDS"`), nil},
		{"another category", file(`"scheduledChange"`, `"issue"`), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parse(tt.body, received)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestHealthActions(t *testing.T) {
	for code, want := range map[string]string{
		"AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED":       "retirement",
		"AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED":                  "retirement",
		"AWS_EC2_INSTANCE_RETIREMENT_EXPEDITED":                  "retirement",
		"AWS_EC2_INSTANCE_STOP_SCHEDULED":                        "stop",
		"AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED":          "reboot",
		"AWS_EC2_SYSTEM_REBOOT_MAINTENANCE_SCHEDULED":            "reboot",
		"AWS_EC2_INSTANCE_REBOOT_FLEXIBLE_MAINTENANCE_SCHEDULED": "reboot",
		"AWS_EC2_INSTANCE_NETWORK_MAINTENANCE_SCHEDULED":         "maintenance",
		"AWS_EC2_INSTANCE_POWER_MAINTENANCE_SCHEDULED":           "maintenance",
		"AWS_EC2_SYSTEM_MAINTENANCE_EVENT":                       "maintenance",
		"AWS_EC2_SOMETHING_NEW":                                  "maintenance",
	} {
		if got := healthAction(code); got != want {
			t.Errorf("%s: %s, want %s", code, got, want)
		}
	}
}

// One entity that cannot be read does not lose the others, and does not go unsaid.
func TestHealthEventWithABadEntity(t *testing.T) {
	for _, bad := range []string{`{"entityValue":"../../etc/passwd"}`, `{"entityValue":7}`, `{}`, `"i-1"`, `null`, `{"entityValue":"i-1","entityValue":"i-2"}`} {
		got, err := parse(withEntities(t, `[{"entityValue":"`+instance+`"},`+bad+`,{"entityValue":"`+instance2+`"}]`), sent)
		if r, ok := errors.AsType[*rejection](err); !ok || r.outcome != outcomeMalformed {
			t.Errorf("%s: %v, want a rejection", bad, err)
		}
		if len(got) != 2 || got[0].InstanceID != instance || got[1].InstanceID != instance2 {
			t.Errorf("%s: %d notices, want those of the other two", bad, len(got))
		}
	}
}

// An ARN can be longer than what a record should hold; its hash stands for it, and
// two such have different ones.
func TestLongEventARN(t *testing.T) {
	long := func(end string) string {
		got, err := parse(edit(t, testdata(t, "health_event.json"), retirementARN, "arn:"+strings.Repeat("x", 1500)+end), sent)
		if err != nil || len(got) != 3 {
			t.Fatalf("%d notices, %v", len(got), err)
		}
		if len(got[0].EventID) > maxEventARN {
			t.Errorf("event id of %d bytes", len(got[0].EventID))
		}
		return got[0].EventID
	}
	if a, b := long("a"), long("b"); a == b || a != long("a") {
		t.Errorf("event ids %s and %s of two events", a, b)
	}
}

// As many entities as EventBridge can carry are read; what no EventBridge has sent is not.
func TestManyEntities(t *testing.T) {
	list := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `%c{"entityValue":"i-%017x"}`, "[,"[min(i, 1)], i)
		}
		return b.String() + "]"
	}
	const most = 256 << 10 / len(`{"entityValue":"i-1234567890abcdef0"},`)
	if most > maxEntities {
		t.Fatalf("%d entities fit into 256 KB, %d are read", most, maxEntities)
	}
	if got, err := parse(withEntities(t, list(maxEntities)), sent); err != nil || len(got) != maxEntities {
		t.Errorf("%d notices, %v", len(got), err)
	}
	got, err := parse(withEntities(t, list(maxEntities+1)), sent)
	if r, ok := errors.AsType[*rejection](err); !ok || r.reason != rejectTooLarge || len(got) != 0 {
		t.Errorf("%d notices, %v, want too many", len(got), err)
	}
	if room := 1 + maxEntities/noticesPerRoom; room > maxInFlight-receivers*batchSize {
		t.Errorf("a message of %d notices takes %d places, and would never have them", maxEntities, room)
	}
}
