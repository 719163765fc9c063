package handler

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/fair"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/notify"
)

// An interruption is shown as a condition of its Node too, for those who watch Nodes without
// knowing our record: kube-state-metrics, other controllers, people. The condition follows the
// record, and nothing follows the condition. It is written after the cordon, and no drain and no
// notice waits for it.
const (
	// Of conditionPlaces a Lane gives one tenant two: few conditions are written at once, as
	// evictions matter more.
	conditionPlaces = 4
	// conditionsWaiting is more Nodes than are interrupted at a time. One that finds no room is
	// shown at its next visit.
	conditionsWaiting = 15_000
	// conditionRetry is when to try again one that could not be written.
	conditionRetry = 5 * time.Second
)

// show has the Node's condition brought in line with its record, if it is not. It does not block.
func (v *visit) show(ctx context.Context) (done bool, err error) {
	if _, changed := conditionPatch(v.node, time.Now()); changed {
		name := v.node.Name
		v.conditions.Do(ctx, fair.Task{Who: v.node.UID, Run: func() { v.writeCondition(ctx, name) }})
	}
	return false, nil
}

// writeCondition brings a Node's condition in line with its record. If that fails, the next visit
// tries again.
func (h *Handler) writeCondition(ctx context.Context, name string) {
	node, ok := h.opts.Index.Get(name)
	if !ok {
		return
	}
	data, changed := conditionPatch(node, time.Now())
	var written string
	h.memory.change(func() {
		if k := h.memory.byNode[name]; k != nil {
			written = k.conditionVersion
		}
	})
	if !changed || nodes.Older(node.ResourceVersion, written) {
		return // what we wrote has not come back yet; when it does, the Node is visited again
	}
	patched, err := h.opts.Nodes.Patch(ctx, name, types.StrategicMergePatchType, data, metav1.PatchOptions{}, "status")
	switch {
	case apierrors.IsNotFound(err), apierrors.IsInvalid(err), apierrors.IsConflict(err): // or another Node has its name: the UID is a precondition
		return
	case apierrors.IsForbidden(err):
		if h.refused.CompareAndSwap(false, true) {
			h.opts.Logger.Warn().Err(err).Str("node", name).Msg("condition of interrupted nodes is not written")
		}
		return
	case err != nil:
		h.opts.Logger.Debug().Err(err).Str("node", name).Msg("write condition")
		h.queue.AddAfter(name, conditionRetry)
		return
	}
	h.memory.change(func() {
		if k := h.memory.byNode[name]; k != nil {
			k.conditionVersion = patched.ResourceVersion
		}
	})
}

// conditionPatch is what brings the Node's condition in line with its record; changed is false if it is.
// A record that cannot be read says nothing.
func conditionPatch(node *corev1.Node, now time.Time) (data []byte, changed bool) {
	rec, has, err := nodes.Record(node)
	if err != nil {
		return nil, false
	}
	shown := shownOn(node)
	var entry map[string]any
	switch stands := has && rec.Phase != interruption.Waiting; {
	case stands && shown != nil && shown.Status == corev1.ConditionTrue && shown.Reason == notify.NoticeReason(rec.Kind) && shown.Message == conditionText(rec),
		!stands && shown == nil:
		return nil, false
	case stands:
		at := metav1.NewTime(now).Rfc3339Copy()
		entry = map[string]any{
			"type": interruption.ConditionType, "status": corev1.ConditionTrue, "reason": notify.NoticeReason(rec.Kind), "message": conditionText(rec),
			"lastHeartbeatTime": at,
		}
		if shown == nil || shown.Status != corev1.ConditionTrue {
			entry["lastTransitionTime"] = at
		}
	default:
		entry = map[string]any{"$patch": "delete", "type": interruption.ConditionType}
	}
	data, err = json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID},
		"status":   map[string]any{"conditions": []any{entry}},
	})
	return data, err == nil
}

// conditionText says what ends the node, and when.
func conditionText(r interruption.Record) string {
	if d := r.Deadline; !d.IsZero() {
		return fmt.Sprintf("%s, deadline %s", r.Kind, d.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("%s, no deadline", r.Kind)
}

// shownOn is the condition as it stands on the Node; nil if there is none.
func shownOn(node *corev1.Node) *corev1.NodeCondition {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == interruption.ConditionType })
	if i < 0 {
		return nil
	}
	return &node.Status.Conditions[i]
}
