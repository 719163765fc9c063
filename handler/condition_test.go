package handler

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
)

// A condition is written when it is not what the record says, and not otherwise.
func TestConditionPatch(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	deadline := now.Add(2 * time.Minute)
	spot := interruption.Record{Kind: interruption.SpotInterruption, Phase: interruption.Noticed, Deadline: deadline}
	drained, waiting, risk := spot, spot, interruption.Record{Kind: interruption.RebalanceRecommendation, Phase: interruption.Draining}
	drained.Phase, waiting.Phase = interruption.Drained, interruption.Waiting
	shows := func(reason, message string) *corev1.NodeCondition {
		return &corev1.NodeCondition{Type: interruption.ConditionType, Status: corev1.ConditionTrue, Reason: reason, Message: message}
	}
	asSpot := shows("SpotInterruption", "spot-interruption, deadline 2026-01-01T00:02:00Z")
	asRisk := shows("RebalanceRecommendation", "rebalance-recommendation, no deadline")
	const head, at = `{"metadata":{"uid":"u"},"status":{"conditions":[`, `"2026-01-01T00:00:00Z"`
	remove := head + `{"$patch":"delete","type":"spot-handler/Interrupted"}]}}`
	for name, tt := range map[string]struct {
		rec   *interruption.Record
		shown *corev1.NodeCondition
		want  string // empty: nothing is written
	}{
		"cordoned": {&spot, nil, head + `{"lastHeartbeatTime":` + at + `,"lastTransitionTime":` + at +
			`,"message":"spot-interruption, deadline 2026-01-01T00:02:00Z","reason":"SpotInterruption","status":"True","type":"spot-handler/Interrupted"}]}}`},
		"shown":       {&spot, asSpot, ""},
		"drained":     {&drained, asSpot, ""},
		"no deadline": {&risk, asRisk, ""},
		"a recommendation ends": {&spot, asRisk, head + `{"lastHeartbeatTime":` + at +
			`,"message":"spot-interruption, deadline 2026-01-01T00:02:00Z","reason":"SpotInterruption","status":"True","type":"spot-handler/Interrupted"}]}}`},
		"not cordoned yet":   {&waiting, nil, ""},
		"not cordoned again": {&waiting, asSpot, remove},
		"undone":             {nil, asSpot, remove},
		"nothing":            {nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", UID: "u", Annotations: map[string]string{}}}
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			if tt.rec != nil {
				node.Annotations[interruption.Annotation] = tt.rec.String()
			}
			if tt.shown != nil {
				node.Status.Conditions = append(node.Status.Conditions, *tt.shown)
			}
			if data, changed := conditionPatch(node, now); changed != (tt.want != "") || string(data) != tt.want {
				t.Errorf("%t %s\nwant %s", changed, data, tt.want)
			}
			node.Annotations[interruption.Annotation] = "}{"
			if data, changed := conditionPatch(node, now); changed {
				t.Errorf("an unreadable record changes it: %s", data)
			}
		})
	}
}
