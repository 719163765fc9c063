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
	block := func(at time.Time) []interruption.Notice {
		return notice(interruption.CapacityBlockExpiration, "92345678-1234-1234-1234-123456789012", func(n *interruption.Notice) {
			n.InstanceID, n.Reservation, n.Action, n.Deadline = "cr-0123456789abcdef0", "cr-0123456789abcdef0", "terminate", at
		})
	}
	const end = `"2026-01-01T00:40:00Z"`
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

		{"capacity block", file("capacity_block.json"), block(sent.Add(10 * time.Minute))},
		{"by its other name", file("capacity_block_reservation.json"), block(sent.Add(10 * time.Minute))},
		{"the warning is early", file("capacity_block.json", end, `"2026-01-01T01:10:00Z"`), block(sent.Add(10 * time.Minute))},
		{"the warning is late", file("capacity_block.json", end, `"2026-01-01T00:35:00.250Z"`), block(sent.Add(5*time.Minute + 250*time.Millisecond))},
		{"its end is in another form", file("capacity_block.json", end, `"Thu Jan 01 00:40:00 UTC 2026"`), block(sent.Add(10 * time.Minute))},
		{"its end is a number", file("capacity_block.json", end, `1767228000`), block(sent.Add(10 * time.Minute))},
		{"it has no end", file("capacity_block.json", `"end-date"`, `"ends"`), block(sent.Add(10 * time.Minute))},
		{"its end is implausible", file("capacity_block.json", end, `"9999-01-01T00:40:00Z"`), block(sent.Add(10 * time.Minute))},

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

		{"block: not an id", file("malformed_capacity_block_id.json"), outcomeMalformed, rejectField},
		{"block: no id", file("malformed_capacity_block_no_id.json"), outcomeMalformed, rejectField},
		{"block: another reservation's event", file("capacity_block.json", "Expiration Warning", "Delivered"), outcomeUnsupported, rejectDetailType},
		{"block: somebody else's", file("capacity_block.json", "aws.ec2", "aws.health"), outcomeUnsupported, rejectSource},

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
// same event id: the record recognises duplicates by it.
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
		"Capacity Block Expiration Warning":                      "capacity_block.json",
		"Capacity Block Reservation Expiration Warning":          "capacity_block_reservation.json",
		"EC2 Instance State-change Notification":                 "state_change.json", "AWS Health Event": "health_event.json",
		"EC2 Instance-terminate Lifecycle Action": "lifecycle_terminate.json", "EC2 Instance-launch Lifecycle Action": "lifecycle_launch.json",
	}
	for i, name := range names {
		if files[name] == "" {
			f.Fatalf("no sample of %s", name)
		}
		o := parseBody(testdata(f, files[name]))
		if o.err != nil {
			f.Fatal(o.err)
		}
		f.Add(uint8(i), string(o.fields["detail"]))
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
