package workloads

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
)

// A notice is a CloudEvent with all that a pod has to know; its id depends only on its content.
func TestEvent(t *testing.T) {
	deadline := noon.Add(2 * time.Minute)
	in := interrupted(deadline)
	in.Replacement = "Requested"
	risk := interrupted(time.Time{})
	risk.Record.Kind, risk.Record.Action = interruption.RebalanceRecommendation, ""
	pod := podOf("a", plan.NoticeAnnotation, "80")
	clamped := asks(pod, deadline.Add(-40*time.Second))
	clamped.Grace = new(int64(7))
	const head = `{"specversion":"1.0","id":"event-1/uid-a/%s","source":"/spot-handler/nodes/node-a",` +
		`"type":"%s","subject":"shop/a","time":"2026-01-01T12:00:00Z","datacontenttype":"application/json","data":{%s}}`
	const spot = `"kind":"spot-interruption","action":"terminate","node":"node-a",`
	for _, tt := range []struct {
		what     string
		in       Interruption
		decision plan.Decision
		id, data string
	}{
		{typeNotice, in, asks(pod, deadline.Add(-40*time.Second)), "spot-handler.notice/1767268920/1767268880",
			spot + `"deadline":"2026-01-01T12:02:00Z","evictBy":"2026-01-01T12:01:20Z","gracePeriodSeconds":30,"replacement":"Requested"`},
		{typeNotice, in, clamped, "spot-handler.notice/1767268920/1767268880",
			spot + `"deadline":"2026-01-01T12:02:00Z","evictBy":"2026-01-01T12:01:20Z","gracePeriodSeconds":7,"replacement":"Requested"`},
		{typeNotice, risk, asks(pod, time.Time{}), "spot-handler.notice/0/0",
			`"kind":"rebalance-recommendation","node":"node-a","gracePeriodSeconds":30,"replacement":"None"`},
		{typeCanceled, in, asks(pod, time.Time{}), "spot-handler.canceled/1767268920/0",
			spot + `"gracePeriodSeconds":30,"replacement":"Requested"`},
	} {
		got, err := json.Marshal(newEvent(noon, tt.in, tt.what, tt.decision))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fmt.Sprintf(head, tt.id, tt.what, tt.data), string(got)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// The manual has every field that a notice can have.
func TestManualNamesWhatArrives(t *testing.T) {
	text, err := os.ReadFile("../../deploy/docs/workloads.md")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{typeNotice, typeReplacementReady, typeCanceled}
	data := reflect.TypeFor[eventData]()
	for i := range data.NumField() {
		name, _, _ := strings.Cut(data.Field(i).Tag.Get("json"), ",")
		names = append(names, name)
	}
	for _, name := range names {
		if !strings.Contains(string(text), "\n| `"+name+"` |") {
			t.Errorf("the manual has no row for %s", name)
		}
	}
}
