package webhook

import (
	"encoding/json"
	"strings"
	"testing"

	"spot-handler/handler/interruption"
	"spot-handler/handler/notify"
)

// A Message is made from what the Node carries; a record that cannot be read leaves its
// fields empty and the rest as it is.
func TestMessage(t *testing.T) {
	node, rec := interrupted("node-1")
	rec.Replacement = &interruption.Replacement{Name: "claim-1"}
	news := notify.News{Node: node, Record: rec, Stage: notify.Notice, Reason: "SpotInterruption", Text: "why"}
	m := newMessage(news)
	if m.Text != "SpotInterruption on node-1: why" || m.AvailabilityZone != "eu-west-1a" || m.InstanceID != rec.Instance ||
		m.Replacement.Name != "claim-1" || !m.StartTime.Equal(rec.Deadline) || m.SecondsLeft < 100 {
		t.Errorf("%+v", m)
	}
	rec.Source = interruption.Rehearsal
	if m := newMessage(notify.Noticed(node, rec)); !strings.HasPrefix(m.Text, "SpotInterruption on node-1: rehearsal: spot-interruption") || m.Source != "rehearsal" {
		t.Errorf("%+v", m)
	}
	node.Annotations[interruption.Annotation] = "}{"
	if m := newMessage(notify.Ended(node, notify.ReasonDrained, interruption.Pods{}, 0)); m.NodeName != "node-1" || m.Kind != "" {
		t.Errorf("%+v", m)
	}
}

// Whatever is in it, the default payload is JSON, and Slack shows it as it is.
func FuzzDefaultPayload(f *testing.F) {
	f.Add("node-1", `a "quoted" <!channel> & \ line`+"\n\x00\xff\u2028")
	f.Fuzz(func(t *testing.T, node, description string) {
		var none *Template
		body, err := none.render(Message{NodeName: node, Text: node + description})
		if err != nil || !json.Valid(body) {
			t.Fatalf("%s: %v", body, err)
		}
		var payload map[string]string
		if err := json.Unmarshal(body, &payload); err != nil || len(payload) != 1 {
			t.Fatalf("%s: %v", body, err)
		}
		if strings.ContainsAny(payload["text"], "<>") {
			t.Errorf("markup in %s", payload["text"])
		}
	})
}
