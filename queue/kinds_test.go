package queue

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spot-handler/handler/interruption"
)

// The instances of the payloads.
const (
	instance  = "i-1234567890abcdef0"
	instance2 = "i-0fedcba0987654321"
	instance3 = "i-0aaaabbbbccccdddd"
)

const retirementARN = "arn:aws:health:us-east-2::event/EC2/AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED/" +
	"AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED_90353408-5943-5398-3000-123456789012"

// edit changes a payload in place; every text that it looks for has to be there.
func edit(t testing.TB, body string, oldnew ...string) string {
	t.Helper()
	for i := 0; i < len(oldnew); i += 2 {
		if !strings.Contains(body, oldnew[i]) {
			t.Fatalf("payload has no %s", oldnew[i])
		}
		body = strings.ReplaceAll(body, oldnew[i], oldnew[i+1])
	}
	return body
}

func TestKinds(t *testing.T) {
	received := sent.Add(1500 * time.Millisecond)
	notice := func(kind interruption.Kind, id string, change func(*interruption.Notice)) []interruption.Notice {
		n := interruption.Notice{Kind: kind, Source: interruption.Queue, EventID: id, InstanceID: instance, Noticed: sent, Received: received}
		change(&n)
		return []interruption.Notice{n}
	}
	state := func(name string) []interruption.Notice {
		return notice(interruption.StateChange, "32345678-1234-1234-1234-123456789012", func(n *interruption.Notice) {
			n.Action, n.Deadline = name, sent
		})
	}
	capacity := func(action string, at time.Time) []interruption.Notice {
		return notice(interruption.CapacityReservationInterruption, "42345678-1234-1234-1234-123456789012", func(n *interruption.Notice) {
			n.Action, n.Deadline = action, at
		})
	}
	const token = "87654321-4321-4321-4321-210987654321"
	hook := func(id string, at time.Time, token string) []interruption.Notice {
		return notice(interruption.InstanceTerminating, id, func(n *interruption.Notice) {
			n.Action, n.Noticed = "terminate", at
			n.Hook = &interruption.Hook{Group: "nodes", Name: "drain", Token: token, Since: at}
		})
	}
	direct := sent.Add(414 * time.Millisecond)
	launching := notice(interruption.InstanceTerminating, "82345678-1234-1234-1234-123456789012", func(n *interruption.Notice) {
		n.Hook = &interruption.Hook{Group: "nodes", Name: "ready", Token: token, Since: sent, Launching: true}
	})
	spot := notice(interruption.SpotInterruption, "12345678-1234-1234-1234-123456789012", func(n *interruption.Notice) {
		n.Action, n.Deadline = "terminate", sent.Add(2*time.Minute)
	})

	file := func(name string, oldnew ...string) string { return edit(t, testdata(t, name), oldnew...) }
	tests := []struct {
		name, body string
		want       []interruption.Notice
	}{
		{"stopping", file("state_change.json"), state("stopping")},
		{"shutting-down", file("state_change.json", `"stopping"`, `"shutting-down"`), state("shutting-down")},
		{"stopped", file("state_change.json", `"stopping"`, `"stopped"`), state("stopped")},
		{"terminated", file("state_change.json", `"stopping"`, `"terminated"`), state("terminated")},
		{"pending is nothing to act on", file("state_change_pending.json"), nil},
		{"nor is running", file("state_change_pending.json", `"pending"`, `"running"`), nil},

		{"capacity reservation", file("capacity_reservation.json"), capacity("terminate", sent.Add(123*time.Second))},
		{"resources are an array there, too", file("capacity_reservation.json",
			`"arn:aws:ec2:us-east-2:123456789012:instance/i-1234567890abcdef0"`, `[]`), capacity("terminate", sent.Add(123*time.Second))},
		{"its action is not documented", file("capacity_reservation.json", `"terminate"`, `"melt"`), capacity("terminate", sent.Add(123*time.Second))},
		{"its time has a zone", file("capacity_reservation.json", "2026-01-01T00:02:03Z", "2026-01-01T01:02:03+01:00"),
			capacity("terminate", sent.Add(123*time.Second))},

		{"terminate hook", file("lifecycle_terminate.json"), hook("72345678-1234-1234-1234-123456789012", sent, token)},
		{"hook without a token", file("lifecycle_terminate.json", `"LifecycleActionToken"`, `"Token"`), hook("72345678-1234-1234-1234-123456789012", sent, "")},
		{"launch hook", file("lifecycle_launch.json"), launching},
		{"hook straight from the group", file("lifecycle_direct.json"), hook(token, direct, token)},
		{"without a token it is known by the request", file("lifecycle_direct.json", `"LifecycleActionToken"`, `"Token"`),
			hook("b36d6757-57c7-11e8-a9ca-b3409db76d91", direct, "")},
		{"hook by SNS", file("lifecycle_sns.json"), hook(token, direct, token)},
		{"anything by SNS", file("sns_eventbridge.json"), spot},
		{"test notification", file("test_notification.json"), nil},
		{"test notification by SNS", file("test_notification_sns.json"), nil},
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

// withEntities is a Health message about these entities.
func withEntities(t testing.TB, entities string) string {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal([]byte(testdata(t, "health_event.json")), &doc); err != nil {
		t.Fatal(err)
	}
	doc["detail"].(map[string]any)["affectedEntities"] = json.RawMessage(entities)
	body, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

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

// An ARN can be longer than what a record should hold; it is then told by its sum, and
// two such are told apart.
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
	if room := 1 + maxEntities/noticesPerRoom; room > maxInFlight-defaultReceivers*batchSize {
		t.Errorf("a message of %d notices takes %d places, and would never have them", maxEntities, room)
	}
}

func TestKindsReject(t *testing.T) {
	file := func(name string, oldnew ...string) string { return edit(t, testdata(t, name), oldnew...) }
	tests := []struct {
		name, body string
		outcome    outcome
		reason     rejectReason
	}{
		{"state is not text", file("malformed_state_type.json"), outcomeMalformed, rejectField},
		{"state is new", file("state_change.json", `"stopping"`, `"melting"`), outcomeUnsupported, rejectState},
		{"no state", file("state_change.json", `"state"`, `"State"`), outcomeMalformed, rejectField},
		{"state of nothing", file("state_change.json", `"i-1234567890abcdef0"`, `""`), outcomeMalformed, rejectField},

		{"capacity: no time", file("malformed_capacity_no_time.json"), outcomeMalformed, rejectField},
		{"capacity: not a time", file("malformed_capacity_time.json"), outcomeMalformed, rejectTime},
		{"capacity: year 9999", file("capacity_reservation.json", "2026-01-01T00:02:03Z", "9999-01-01T00:02:03Z"), outcomeMalformed, rejectTime},
		{"capacity: long ago", file("capacity_reservation.json", "2026-01-01T00:02:03Z", "2025-01-01T00:02:03Z"), outcomeMalformed, rejectTime},
		{"capacity: instance", file("capacity_reservation.json", `"i-1234567890abcdef0"`, `"i/1"`), outcomeMalformed, rejectInstanceID},

		{"health: no start", file("malformed_health_no_start.json"), outcomeMalformed, rejectField},
		{"health: other zone", file("health_event.json", "09:00:43 GMT", "09:00:43 PST"), outcomeMalformed, rejectTime},
		{"health: years ahead", file("health_event.json", "Sat, 10 Jan 2026", "Sat, 10 Jan 2028"), outcomeMalformed, rejectTime},
		{"health: entities are no array", file("malformed_health_entities.json"), outcomeMalformed, rejectField},
		{"health: only bad entities", file("malformed_health_entity_id.json"), outcomeMalformed, rejectInstanceID},
		{"health: no ARN", file("health_event.json", `"eventArn"`, `"arn"`), outcomeMalformed, rejectField},
		{"health: ARN with a line break", file("health_event.json", "arn:aws:health:", `arn:\n`), outcomeMalformed, rejectField},
		{"health: no status", file("health_event.json", `"statusCode"`, `"status"`), outcomeMalformed, rejectField},

		{"hook: no instance", file("malformed_lifecycle_no_instance.json"), outcomeMalformed, rejectField},
		{"hook: the other transition", file("malformed_lifecycle_transition.json"), outcomeMalformed, rejectState},
		{"hook: no group", file("lifecycle_terminate.json", `"nodes"`, `""`), outcomeMalformed, rejectField},
		{"hook: long name", file("lifecycle_terminate.json", `"drain"`, `"`+strings.Repeat("x", 256)+`"`), outcomeMalformed, rejectField},
		{"hook: name with a line break", file("lifecycle_terminate.json", `"drain"`, `"a\nb"`), outcomeMalformed, rejectField},
		{"hook: token is empty", file("lifecycle_terminate.json", `"87654321-4321-4321-4321-210987654321"`, `""`), outcomeMalformed, rejectField},
		{"hook: token with spaces", file("lifecycle_terminate.json", `"87654321-4321-4321-4321-210987654321"`, `"a b"`), outcomeMalformed, rejectField},
		{"direct: group is a list", file("malformed_lifecycle_direct_group.json"), outcomeMalformed, rejectField},
		{"direct: another transition", file("lifecycle_direct.json", "EC2_INSTANCE_TERMINATING", "EC2_INSTANCE_RESTING"), outcomeUnsupported, rejectState},
		{"direct: no time", file("lifecycle_direct.json", `"Time"`, `"time"`), outcomeMalformed, rejectField},
		{"direct: neither token nor request", file("lifecycle_direct.json", `"LifecycleActionToken"`, `"a"`, `"RequestId"`, `"b"`), outcomeMalformed, rejectField},
		{"direct: notification of the past", file("test_notification.json", "TEST_NOTIFICATION", "EC2_INSTANCE_TERMINATE"), outcomeUnsupported, rejectDetailType},
		{"SNS: not JSON inside", file("malformed_sns_message.json"), outcomeMalformed, rejectJSON},
		{"SNS: twice", file("malformed_sns_twice.json"), outcomeMalformed, rejectJSON},
		{"SNS: a subscription to confirm", file("lifecycle_sns.json", `"Notification"`, `"SubscriptionConfirmation"`), outcomeUnsupported, rejectDetailType},
		{"SNS: something else inside", file("malformed_sns_message.json", `"hello"`, `"{\"hello\":1}"`), outcomeMalformed, rejectField},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parse(tt.body, sent.Add(time.Second))
			r, ok := errors.AsType[*rejection](err)
			if !ok || len(got) > 0 {
				t.Fatalf("got %v, %v, want a rejection", got, err)
			}
			if r.outcome != tt.outcome || r.reason != tt.reason {
				t.Errorf("%s, %s (%v), want %s, %s", r.outcome, r.reason, err, tt.outcome, tt.reason)
			}
		})
	}
}

// The same message delivered again, and the same event through another way in, has the
// same event id: the record tells duplicates by it.
func TestEventIDsAreStable(t *testing.T) {
	for _, name := range []string{"health_event.json", "lifecycle_direct.json", "lifecycle_sns.json", "state_change.json"} {
		body := testdata(t, name)
		first, _ := parse(body, sent.Add(time.Second))
		later, _ := parse(body, sent.Add(time.Hour))
		if len(first) == 0 || first[0].EventID != later[0].EventID {
			t.Errorf("%s: other ids when it comes again", name)
		}
	}
	// Health says more of an event in a message with an id of its own.
	again := edit(t, testdata(t, "health_event.json"), "52345678-", "59999999-")
	a, _ := parse(testdata(t, "health_event.json"), sent)
	b, _ := parse(again, sent)
	if a[0].EventID != b[0].EventID {
		t.Errorf("event ids %s and %s of one event", a[0].EventID, b[0].EventID)
	}
}

// The details alone, each in a good envelope: the fuzzer need not find one.
func FuzzDetails(f *testing.F) {
	names := slices.Sorted(maps.Keys(formats))
	files := map[string]string{
		"EC2 Spot Instance Interruption Warning": "spot_interruption.json", "EC2 Instance Rebalance Recommendation": "rebalance.json",
		"EC2 Capacity Reservation Instance Interruption Warning": "capacity_reservation.json",
		"EC2 Instance State-change Notification":                 "state_change.json", "AWS Health Event": "health_event.json",
		"EC2 Instance-terminate Lifecycle Action": "lifecycle_terminate.json", "EC2 Instance-launch Lifecycle Action": "lifecycle_launch.json",
	}
	for i, name := range names {
		if files[name] == "" {
			f.Fatalf("no sample of %s", name)
		}
		fields, err := parseBody(testdata(f, files[name]))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), string(fields["detail"]))
		f.Add(uint8(i), "{}")
	}
	received := sent.Add(time.Second)
	f.Fuzz(func(t *testing.T, kind uint8, detail string) {
		name := names[int(kind)%len(names)]
		notices, err := parse(fmt.Sprintf(`{"id":"1","detail-type":%q,"source":%q,"time":"2026-01-01T00:00:00Z","detail":%s}`,
			name, formats[name].source, detail), received)
		if err != nil {
			if _, ok := errors.AsType[*rejection](err); !ok {
				t.Fatalf("error is not a rejection: %v", err)
			}
		}
		wellFormed(t, notices, received)
	})
}

// What SNS can wrap, which is anything.
func FuzzSNS(f *testing.F) {
	for _, name := range []string{"lifecycle_direct.json", "test_notification.json", "spot_interruption.json", "health_event.json", "lifecycle_sns.json", "malformed_garbage.txt"} {
		f.Add(testdata(f, name))
	}
	received := sent.Add(time.Second)
	f.Fuzz(func(t *testing.T, message string) {
		text, err := json.Marshal(message)
		if err != nil { // cannot happen: whatever a string holds has a JSON form
			t.Fatal(err)
		}
		notices, err := parse(`{"Type":"Notification","TopicArn":"arn","Message":`+string(text)+`}`, received)
		if err != nil {
			if _, ok := errors.AsType[*rejection](err); !ok {
				t.Fatalf("error is not a rejection: %v", err)
			}
		}
		wellFormed(t, notices, received)
	})
}
