package handler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
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

// An interruption is shown as a condition of its Node too, for controllers that watch Nodes without
// knowing our record: kube-state-metrics, other controllers, people. The condition follows the
// record, and nothing follows the condition. It is written after the cordon, and no drain and no
// notice waits for it.
const (
	// Of conditionPlaces a Lane gives one tenant two: few conditions are written at once, as
	// evictions matter more.
	conditionPlaces = 4
	// conditionsWaiting is more Nodes than are interrupted at a time. One that finds no room is
	// shown at its next reconciliation.
	conditionsWaiting = 15_000
	// conditionRetry is when to try again one that could not be written.
	conditionRetry = 5 * time.Second
)

// conditions writes the Nodes' conditions.
type conditions struct {
	lane    *fair.Lane
	written sync.Map    // by Node, the resource version of our last write, until the watch has it
	refused atomic.Bool // that they must not be written was logged
}

// forget drops what was written of a Node's condition.
func (c *conditions) forget(node string) { c.written.Delete(node) }

// show has the Node's condition brought in line with its record, if it is not. It does not block.
func (r *reconciliation) show(ctx context.Context) (done bool, err error) {
	name := r.node.Name
	if _, changed := conditionPatch(r.node, time.Now()); !changed {
		r.conditions.forget(name)
		return false, nil
	}
	r.conditions.written.LoadOrStore(name, "")
	r.conditions.lane.Do(ctx, fair.Task{Who: r.node.UID, Run: func() { r.writeCondition(ctx, name) }})
	return false, nil
}

// writeCondition brings a Node's condition in line with its record. If that fails, the next
// reconciliation tries again.
func (h *Handler) writeCondition(ctx context.Context, name string) {
	// In this order: the Node that is read next is at least as new as that by which a reconciliation has
	// found it in line, which forgets what was written.
	before, shown := h.conditions.written.Load(name)
	node, ok := h.opts.Index.Get(name)
	if !shown || !ok {
		return // if it has changed again, its own reconciliation shows it
	}
	data, changed := conditionPatch(node, time.Now())
	written, _ := before.(string)
	if !changed || nodes.Older(node.ResourceVersion, written) {
		return // what we wrote has not come back yet; when it does, the Node is reconciled again
	}
	patched, err := h.opts.Nodes.Patch(ctx, name, types.StrategicMergePatchType, data, metav1.PatchOptions{}, "status")
	switch {
	case apierrors.IsNotFound(err), apierrors.IsInvalid(err), apierrors.IsConflict(err):
		return // the Node is gone, or another has its name: the UID is a precondition
	case apierrors.IsForbidden(err):
		if h.conditions.refused.CompareAndSwap(false, true) {
			h.opts.Logger.Warn().Err(err).Str("node", name).Msg("condition of interrupted nodes is not written")
		}
		return
	case err != nil:
		h.opts.Logger.Debug().Err(err).Str("node", name).Msg("write condition")
		h.queue.AddAfter(name, conditionRetry)
		return
	}
	h.conditions.written.CompareAndSwap(name, before, patched.ResourceVersion) // unless it has come back already
}

// conditionPatch is what brings the Node's condition in line with its record; changed is false if it is.
// A record that cannot be read says nothing.
func conditionPatch(node *corev1.Node, now time.Time) (data []byte, changed bool) {
	rec, err := nodes.Record(node)
	none := errors.Is(err, nodes.ErrNoRecord)
	if err != nil && !none {
		return nil, false
	}
	shown := nodes.Condition(node, interruption.ConditionType)
	reason, message := notify.NoticeReason(rec.Kind), conditionText(rec)
	var entry map[string]any
	switch {
	case none || rec.Phase == interruption.Waiting:
		if shown == nil {
			return nil, false
		}
		entry = map[string]any{"$patch": "delete", "type": interruption.ConditionType}
	case shown != nil && shown.Status == corev1.ConditionTrue && shown.Reason == reason && shown.Message == message:
		return nil, false
	default:
		at := metav1.NewTime(now).Rfc3339Copy()
		entry = map[string]any{
			"type":              interruption.ConditionType,
			"status":            corev1.ConditionTrue,
			"reason":            reason,
			"message":           message,
			"lastHeartbeatTime": at,
		}
		if shown == nil || shown.Status != corev1.ConditionTrue {
			entry["lastTransitionTime"] = at
		}
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
