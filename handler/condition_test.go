package handler

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
	"spot-handler/e2e/patched"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// conditionNode carries that record, or none, and those conditions after Ready.
func conditionNode(rec *interruption.Record, conditions ...corev1.NodeCondition) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", UID: "u", Annotations: map[string]string{}}}
	node.Status.Conditions = append([]corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}, conditions...)
	if rec != nil {
		node.Annotations[interruption.Annotation] = rec.String()
	}
	return node
}

// conditionLines are the Node's conditions but Ready, for people.
func conditionLines(node *corev1.Node) (lines []string) {
	for _, c := range node.Status.Conditions {
		if c.Type != corev1.NodeReady {
			lines = append(lines, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
		}
	}
	return lines
}

// Conditions are written when they are not what the record says, with one patch, and not otherwise.
// Somebody else's stay.
func TestConditionPatch(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	spot := interruption.Record{Kind: interruption.SpotInterruption, Phase: interruption.Noticed, Deadline: now.Add(2 * time.Minute)}
	drained, hurried, failed, waiting := spot, spot, spot, spot
	drained.Phase, drained.Pods = interruption.Released, &interruption.Pods{Total: 3, Graceful: 3}
	hurried.Phase, hurried.Pods = interruption.Released, &interruption.Pods{Total: 3, Graceful: 1, Truncated: 2}
	failed.Phase, failed.Pods = interruption.DeadlineReached, &interruption.Pods{Total: 3, Graceful: 1, Left: 2}
	waiting.Phase = interruption.Waiting
	risk := interruption.Record{Kind: interruption.RebalanceRecommendation, Phase: interruption.Draining}
	inLine, cordoned, begun := risk, risk, risk
	inLine.Phase, cordoned.Phase = interruption.Waiting, interruption.Noticed
	begun.Phase, begun.Begun = interruption.Noticed, now
	window := interruption.Record{Kind: interruption.ScheduledEvent, Phase: interruption.Waiting, Deadline: now.Add(48 * time.Hour)}

	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: status, Reason: reason, Message: message}
	}
	const soon, never, later = "spot-interruption, deadline 2026-01-01T00:02:00Z", "rebalance-recommendation, no deadline",
		"scheduled-event, deadline 2026-01-03T00:00:00Z"
	var (
		interrupted = condition(interruption.ConditionType, corev1.ConditionTrue, "SpotInterruption", soon)
		draining    = condition(nodes.DrainInProgress, corev1.ConditionTrue, "SpotHandlerSpotInterruption", soon)
		isDrained   = condition(nodes.Drained, corev1.ConditionTrue, "SpotHandlerDrained", "3 of 3 pods have left")
		isNot       = condition(nodes.Drained, corev1.ConditionFalse, "SpotHandlerDeadlineReached", "1 of 3 pods have left")
		isHurried   = condition(nodes.Drained, corev1.ConditionTrue, "SpotHandlerDrained",
			"3 of 3 pods have left or are terminating; 2 got less than their grace period")
		atRisk         = condition(interruption.ConditionType, corev1.ConditionTrue, "RebalanceRecommendation", never)
		riskDraining   = condition(nodes.DrainInProgress, corev1.ConditionTrue, "SpotHandlerRebalanceRecommendation", never)
		riskPlanned    = condition(nodes.MaintenancePlanned, corev1.ConditionTrue, "SpotHandlerRebalanceRecommendation", never)
		windowPlanned  = condition(nodes.MaintenancePlanned, corev1.ConditionTrue, "SpotHandlerScheduledEvent", later)
		foreignDrain   = condition(nodes.DrainInProgress, corev1.ConditionFalse, "KubectlDrain", "by hand")
		foreignDrained = condition(nodes.Drained, corev1.ConditionUnknown, "", "")
		foreignPlanned = condition(nodes.MaintenancePlanned, corev1.ConditionTrue, "Kernel", "next week")
		foreign        = []corev1.NodeCondition{foreignDrain, foreignDrained, foreignPlanned}
	)
	type list = []corev1.NodeCondition
	for name, tt := range map[string]struct {
		rec         *interruption.Record
		cordonOnly  bool
		shown, want list
		written     string // types, and - before those that go
	}{
		"cordoned":    {&spot, false, nil, list{interrupted, draining}, "spot-handler/Interrupted DrainInProgress"},
		"shown":       {&spot, false, list{interrupted, draining}, list{interrupted, draining}, ""},
		"upgraded":    {&spot, false, list{interrupted}, list{interrupted, draining}, "DrainInProgress"},
		"drained":     {&drained, false, list{interrupted, draining}, list{interrupted, isDrained}, "-DrainInProgress Drained"},
		"as it ended": {&drained, false, list{interrupted, isDrained}, list{interrupted, isDrained}, ""},
		"some ending": {&hurried, false, list{interrupted, draining}, list{interrupted, isHurried}, "-DrainInProgress Drained"},
		"pods left":   {&failed, false, list{interrupted, isDrained}, list{interrupted, isNot}, "Drained"},

		"somebody else drains": {&spot, true, nil, list{interrupted}, "spot-handler/Interrupted"},

		"recommended":           {&inLine, false, nil, list{riskPlanned}, "MaintenancePlanned"},
		"policy cordon":         {&cordoned, false, nil, list{atRisk, riskPlanned}, "spot-handler/Interrupted MaintenancePlanned"},
		"its turn has come":     {&begun, false, nil, list{atRisk, riskDraining, riskPlanned}, "spot-handler/Interrupted DrainInProgress MaintenancePlanned"},
		"recommended, draining": {&risk, false, list{atRisk, riskPlanned}, list{atRisk, riskDraining, riskPlanned}, "DrainInProgress"},
		"a notice comes": {&spot, false, list{atRisk, riskDraining, riskPlanned}, list{interrupted, draining},
			"spot-handler/Interrupted DrainInProgress -MaintenancePlanned"},
		"scheduled":          {&window, false, nil, list{windowPlanned}, "MaintenancePlanned"},
		"not cordoned yet":   {&waiting, false, nil, nil, ""},
		"not cordoned again": {&waiting, false, list{interrupted, draining}, nil, "-spot-handler/Interrupted -DrainInProgress"},

		"undone": {nil, false, list{interrupted, isDrained, riskPlanned}, nil, "-spot-handler/Interrupted -Drained -MaintenancePlanned"},
		"none":   {nil, false, nil, nil, ""},

		"foreign, no record":   {nil, false, foreign, foreign, ""},
		"foreign, cordoned":    {&spot, false, foreign, append(foreign[:3:3], interrupted), "spot-handler/Interrupted"},
		"foreign, recommended": {&inLine, false, foreign, foreign, ""},
		"foreign, drained":     {&drained, false, append(foreign[:3:3], interrupted), append(foreign[:3:3], interrupted), ""},
		"foreign, undone":      {nil, false, append(foreign[:3:3], interrupted), foreign, "-spot-handler/Interrupted"},
	} {
		t.Run(name, func(t *testing.T) {
			node := conditionNode(tt.rec, tt.shown...)
			data, changed := conditionPatch(node, tt.cordonOnly, now)
			if written := entries(t, data); changed != (tt.written != "") || written != tt.written {
				t.Errorf("writes %q, want %q", written, tt.written)
			}
			if changed {
				after, err := patched.Node(node, types.StrategicMergePatchType, data)
				if err != nil {
					t.Fatal(err)
				}
				sort := cmp.Transformer("sorted", func(in []string) map[string]bool {
					out := map[string]bool{}
					for _, line := range in {
						out[line] = true
					}
					return out
				})
				if diff := cmp.Diff(conditionLines(conditionNode(nil, tt.want...)), conditionLines(after), sort); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
			node.Annotations[interruption.Annotation] = "}{"
			if data, changed := conditionPatch(node, tt.cordonOnly, now); changed {
				t.Errorf("an unreadable record changes it: %s", data)
			}
		})
	}
}

// entries are the types that a patch writes, and - before those that it removes.
func entries(t *testing.T, data []byte) string {
	t.Helper()
	if data == nil {
		return ""
	}
	var patch struct {
		Metadata struct{ UID string }
		Status   struct{ Conditions []map[string]any }
	}
	if err := json.Unmarshal(data, &patch); err != nil || patch.Metadata.UID != "u" {
		t.Fatalf("%v: %s", err, data)
	}
	var types []string
	for _, c := range patch.Status.Conditions {
		name := fmt.Sprint(c["type"])
		if c["$patch"] == "delete" {
			name = "-" + name
		} else if c["lastHeartbeatTime"] != "2026-01-01T00:00:00Z" {
			t.Errorf("%v has no time", c)
		}
		types = append(types, name)
	}
	return strings.Join(types, " ")
}

// The last record of a drain and the condition Drained take one request, which changes no other condition.
func TestConclude(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	rec := interruption.Record{Kind: interruption.SpotInterruption, Phase: interruption.Draining}
	end := rec
	end.Phase, end.Pods = interruption.Released, &interruption.Pods{Total: 2, Graceful: 2}
	draining := corev1.NodeCondition{Type: nodes.DrainInProgress, Status: corev1.ConditionTrue, Reason: "SpotHandlerSpotInterruption"}
	pressure := corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure"}
	foreign, other := draining, corev1.NodeCondition{Type: nodes.Drained, Status: corev1.ConditionFalse, Reason: "Kubectl"}
	foreign.Reason = "Kubectl"

	node := conditionNode(&rec, draining, pressure)
	patch, ok := concluding(node, end, now)
	if !ok || len(patch.Subresources) != 1 || patch.Subresources[0] != "status" {
		t.Fatalf("%v, on %q", ok, patch.Subresources)
	}
	after, err := patched.Node(node, patch.Type, patch.Data)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"Drained=True SpotHandlerDrained: 2 of 2 pods have left", "DiskPressure=False KubeletHasNoDiskPressure: "}
	if diff := cmp.Diff(want, conditionLines(after)); diff != "" || after.Annotations[interruption.Annotation] != end.String() {
		t.Errorf("record %s, conditions (-want +got):\n%s", after.Annotations[interruption.Annotation], diff)
	}
	for name, meanwhile := range map[string]*corev1.Node{
		"another place":  conditionNode(&rec, pressure, draining),
		"another owner":  conditionNode(&rec, foreign, pressure),
		"another record": conditionNode(&end, draining, pressure),
	} {
		if after, err := patched.Node(meanwhile, patch.Type, patch.Data); err == nil {
			t.Errorf("%s: patched to %q", name, conditionLines(after))
		}
	}
	for name, node := range map[string]*corev1.Node{
		"not shown":               conditionNode(&rec),
		"foreign drain":           conditionNode(&rec, foreign),
		"another Drained":         conditionNode(&rec, draining, other),
		"a node of another drain": conditionNode(&rec, draining, corev1.NodeCondition{Type: nodes.Drained, Reason: "SpotHandlerDrained"}),
	} {
		if patch, ok := concluding(node, end, now); ok {
			t.Errorf("%s: %s", name, patch.Data)
		}
	}
	if _, ok := concluding(node, rec, now); ok {
		t.Error("a drain that goes on is concluded")
	}
}

// What cannot be written with the condition is written without it.
func TestConcludeWithoutCondition(t *testing.T) {
	for name, refusal := range map[string]error{
		"written":                nil,
		"forbidden":              apierrors.NewForbidden(nodesResource, "node-a", nil),
		"conditions have moved":  apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Node").GroupKind(), "node-a", nil),
		"the API server is busy": apierrors.NewInternalError(fmt.Errorf("busy")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rec := interruption.Record{Kind: interruption.SpotInterruption, Event: "e", Instance: instance, Phase: interruption.Draining}
				node := conditionNode(&rec, corev1.NodeCondition{Type: nodes.DrainInProgress, Reason: "SpotHandlerSpotInterruption"})
				f := newFakeNodes(node)
				f.refuseStatus = refusal
				h := newTestHandler(t, f, nil)
				r := &reconciliation{Handler: h, node: node, rec: rec, known: h.memory.get("node-a")}
				end := rec
				end.Phase, end.Pods = interruption.Drained, &interruption.Pods{Total: 1, Graceful: 1}
				err := r.conclude(t.Context(), end)
				after, _ := f.raw(t)
				want := "Drained=True SpotHandlerDrained: 1 of 1 pods have left"
				switch {
				case apierrors.IsInternalError(refusal):
					if !apierrors.IsInternalError(err) || after.Annotations[interruption.Annotation] != rec.String() {
						t.Errorf("%v, record %s", err, after.Annotations[interruption.Annotation])
					}
					return
				case refusal != nil:
					want = "DrainInProgress= SpotHandlerSpotInterruption: "
				}
				if err != nil || r.rec.Phase != interruption.Drained || after.Annotations[interruption.Annotation] != end.String() {
					t.Errorf("%v, record %s", err, after.Annotations[interruption.Annotation])
				}
				if diff := cmp.Diff([]string{want}, conditionLines(after)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// The conditions of a drain that begins take no request of their own: they come with the record's first
// progress. If that doesn't come, or the Node has changed meanwhile, they are written alone.
func TestFirstConditionsComeWithTheProgress(t *testing.T) {
	shown := []string{
		"spot-handler/Interrupted=True SpotInterruption: spot-interruption, deadline 2000-01-01T00:02:00Z",
		"DrainInProgress=True SpotHandlerSpotInterruption: spot-interruption, deadline 2000-01-01T00:02:00Z",
	}
	for name, tt := range map[string]struct {
		prepare        func(f *fakeNodes, h *Handler)
		patches, alone int
		want           []string
	}{
		"together":  {func(*fakeNodes, *Handler) {}, 2, 0, shown},
		"forbidden": {func(f *fakeNodes, _ *Handler) { f.refuseStatus = apierrors.NewForbidden(nodesResource, "node-a", nil) }, 2, 1, nil},
		"the Node has changed": {func(f *fakeNodes, _ *Handler) {
			f.beforePatch = func() { f.change(func(n *corev1.Node) { n.Labels = map[string]string{"a": "b"} }) }
		}, 3, 1, nil},
		"its pods are not known": {func(_ *fakeNodes, h *Handler) {
			h.opts.Drainer = &fakeDrainer{LookFunc: func(string, plan.NodeState) (plan.View, bool) { return plan.View{}, false }}
		}, 1, 1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, _ *script, f *fakeNodes, h *Handler) {
				accept(t, h, notice(interruption.SpotInterruption))
				tt.prepare(f, h)
				for range 3 {
					again, err := step(t, h)
					if err != nil {
						t.Fatal(err)
					}
					time.Sleep(min(again, conditionsWait))
				}
				after, _ := f.raw(t)
				if diff := cmp.Diff(tt.want, conditionLines(after)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if f.patches != tt.patches || f.written < tt.alone || f.written > 0 && tt.alone == 0 {
					t.Errorf("%d patches and the conditions alone %d times, want %d and %d", f.patches, f.written, tt.patches, tt.alone)
				}
			})
		})
	}
}
