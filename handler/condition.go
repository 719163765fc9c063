package handler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/fair"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
	"spot-handler/handler/nodes"
	"spot-handler/handler/notify"
)

// An interruption is shown as conditions of its Node too, for controllers that watch Nodes without
// knowing our record: kube-state-metrics, other controllers, people. One is our own; the others are those
// that Kubernetes has names for, since 1.37, but any version stores them. The conditions follow the
// record, and nothing follows the conditions. They are written after the cordon, and no drain and no
// notice waits for them. When a drain begins, they go with its first write, in one request.
//
//	                          Waiting      cordoned     over         undone
//	spot-handler/Interrupted  -            True         True         -
//	MaintenancePlanned        True         True         True         -        recommendations, scheduled events
//	DrainInProgress           -            True         -            -        unless somebody else drains
//	Drained                   -            -            True, False  -        False if pods were left
//
// The standard ones are "the admin's", so somebody else may set them too. A condition is ours if its
// reason begins with nodes.ConditionReasonPrefix; any other stays as it is, and we then show none of
// that type. https://github.com/kubernetes/enhancements/issues/5683
const (
	// Of conditionPlaces a Lane gives one tenant two: few conditions are written at once, as
	// evictions matter more.
	conditionPlaces = 4
	// conditionsWaiting is more Nodes than are interrupted at a time. One that finds no room is
	// shown at its next reconciliation.
	conditionsWaiting = 15_000
	// conditionRetry is when to try again one that could not be written.
	conditionRetry = 5 * time.Second
	// conditionsWait is how long the first conditions wait for the first progress of the drain. Before it
	// writes that, the drain lists the node's pods and has a replacement requested.
	conditionsWait = 2 * time.Second
)

// conditions writes the Nodes' conditions.
type conditions struct {
	lane    *fair.Lane
	written sync.Map    // by Node, the resource version of our last write, until the watch has it
	refused atomic.Bool // that they must not be written was logged
}

// forget drops what was written of a Node's conditions.
func (c *conditions) forget(node string) { c.written.Delete(node) }

// show has the Node's conditions brought in line with its record, if they are not. It does not block.
func (r *reconciliation) show(ctx context.Context) (done bool, err error) {
	name := r.node.Name
	if _, changed := conditionPatch(r.node, r.opts.CordonOnly, time.Now()); !changed {
		r.conditions.forget(name)
		return false, nil
	}
	if r.progressShows() {
		return false, nil
	}
	r.conditions.written.LoadOrStore(name, "")
	h := r.Handler // not r, which holds the whole Node: after a burst thousands of these wait
	h.conditions.lane.Do(ctx, fair.Task{Who: r.node.UID, Run: func() { h.writeCondition(ctx, name) }})
	return false, nil
}

// progressShows reports whether the drain's first progress is about to carry the conditions.
func (r *reconciliation) progressShows() bool {
	if r.removed || r.opts.CordonOnly || r.rec.Phase != interruption.Noticed || !r.rec.Kind.Certain() {
		return false
	}
	k := r.known
	if k.showAt.IsZero() {
		k.showAt = time.Now().Add(conditionsWait)
	}
	if !time.Now().Before(k.showAt) {
		return false
	}
	r.lookAgain(k.showAt)
	return true
}

// firstConditions returns the operations that add the conditions to a patch of the record, if the Node shows
// none of ours. They depend on the Node's version: otherwise somebody else could add a condition of the same
// type in the meantime, and the list would have it twice.
func firstConditions(node *corev1.Node, rec interruption.Record, now time.Time) (list []marks.Operation) {
	for _, want := range conditionsOf(rec, false) {
		switch shown := nodes.Condition(node, want.Type); {
		case shown == nil:
			list = append(list, marks.Operation{Op: "add", Path: "/status/conditions/-", Value: conditionEntry(nil, want, now)})
		case nodes.OurCondition(*shown):
			return nil
		}
	}
	if len(list) == 0 || len(node.Status.Conditions) == 0 {
		return nil
	}
	return append([]marks.Operation{{Op: "test", Path: "/metadata/resourceVersion", Value: node.ResourceVersion}}, list...)
}

// writeCondition brings a Node's conditions in line with its record. If that fails, the next
// reconciliation tries again.
func (h *Handler) writeCondition(ctx context.Context, name string) {
	// In this order: the Node that is read next is at least as new as that by which a reconciliation has
	// found it in line, which forgets what was written.
	before, shown := h.conditions.written.Load(name)
	node, ok := h.opts.Index.Get(name)
	if !shown || !ok {
		return // if it has changed again, its own reconciliation shows it
	}
	data, changed := conditionPatch(node, h.opts.CordonOnly, time.Now())
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

// conditionPatch is what brings the Node's conditions in line with its record; changed is false if they
// are. A record that cannot be read says nothing. Conditions that are not ours stay as they are. Somebody
// else drains the node if cordonOnly is set.
func conditionPatch(node *corev1.Node, cordonOnly bool, now time.Time) (data []byte, changed bool) {
	rec, err := nodes.Record(node)
	none := errors.Is(err, nodes.ErrNoRecord)
	if err != nil && !none {
		return nil, false
	}
	var wanted []corev1.NodeCondition
	if !none {
		wanted = conditionsOf(rec, cordonOnly)
	}
	var entries []any
	for _, kind := range nodes.ConditionTypes() {
		shown := nodes.Condition(node, kind)
		i := slices.IndexFunc(wanted, func(c corev1.NodeCondition) bool { return c.Type == kind })
		switch {
		case shown != nil && !nodes.OurCondition(*shown), shown == nil && i < 0:
		case i < 0:
			entries = append(entries, map[string]any{"$patch": "delete", "type": kind})
		case shown == nil || !says(*shown, wanted[i]):
			entries = append(entries, conditionEntry(shown, wanted[i], now))
		}
	}
	if len(entries) == 0 {
		return nil, false
	}
	data, err = json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID},
		"status":   map[string]any{"conditions": entries},
	})
	return data, err == nil
}

// says reports whether the condition that is shown says what is wanted.
func says(shown, want corev1.NodeCondition) bool {
	return shown.Status == want.Status && shown.Reason == want.Reason && shown.Message == want.Message
}

// conditionEntry is the condition that is wanted as part of a patch. shown is what is there: nil if
// nothing is.
func conditionEntry(shown *corev1.NodeCondition, want corev1.NodeCondition, now time.Time) map[string]any {
	at := metav1.NewTime(now).Rfc3339Copy()
	entry := map[string]any{
		"type":              want.Type,
		"status":            want.Status,
		"reason":            want.Reason,
		"message":           want.Message,
		"lastHeartbeatTime": at,
	}
	if shown == nil || shown.Status != want.Status {
		entry["lastTransitionTime"] = at
	}
	return entry
}

// conditionsOf are the conditions of a Node with that record. A recommended node is cordoned before its
// turn only if the policy is to do no more.
func conditionsOf(rec interruption.Record, cordonOnly bool) []corev1.NodeCondition {
	notice, text := notify.NoticeReason(rec.Kind), conditionText(rec)
	var list []corev1.NodeCondition
	show := func(kind corev1.NodeConditionType, reason string) {
		list = append(list, corev1.NodeCondition{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: text})
	}
	if rec.Phase != interruption.Waiting {
		show(interruption.ConditionType, notice)
	}
	if !rec.Kind.Certain() {
		show(nodes.MaintenancePlanned, nodes.ConditionReasonPrefix+notice)
	}
	switch {
	case rec.Phase == interruption.Waiting:
	case rec.Phase.Over():
		list = append(list, drainedCondition(rec))
	case !cordonOnly && !rec.OnlyCordoned():
		show(nodes.DrainInProgress, nodes.ConditionReasonPrefix+notice)
	}
	return list
}

// drainedCondition says how a drain that is over has ended.
func drainedCondition(rec interruption.Record) corev1.NodeCondition {
	pods := podsOf(rec)
	c := corev1.NodeCondition{
		Type:    nodes.Drained,
		Status:  corev1.ConditionTrue,
		Reason:  nodes.ConditionReasonPrefix + notify.ReasonDrained,
		Message: fmt.Sprintf("%d of %d pods have left", pods.Total-pods.Left, pods.Total),
	}
	if pods.Truncated > 0 { // these may still be terminating
		c.Message = fmt.Sprintf("%d of %d pods have left or are terminating; %d got less than their grace period",
			pods.Total-pods.Left, pods.Total, pods.Truncated)
	}
	if pods.Left > 0 {
		c.Status, c.Reason = corev1.ConditionFalse, nodes.ConditionReasonPrefix+notify.ReasonDeadlineReached
	}
	return c
}

// conditionText says what ends the node, and when.
func conditionText(r interruption.Record) string {
	if d := r.Deadline; !d.IsZero() {
		return fmt.Sprintf("%s, deadline %s", r.Kind, d.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("%s, no deadline", r.Kind)
}

// conclude writes the last record of a drain, and in the same request makes the condition DrainInProgress
// the condition Drained. If that is not possible it writes the record alone, and the condition follows.
func (r *reconciliation) conclude(ctx context.Context, rec interruption.Record) error {
	patch, ok := concluding(r.node, rec, time.Now())
	if !ok {
		return r.progress(ctx, rec)
	}
	err := r.write(ctx, patch)
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) { // the condition, or the record, is not as it was
		return r.progress(ctx, rec)
	}
	if err != nil {
		return fmt.Errorf("write record and condition: %w", err)
	}
	return nil
}

// concluding is that request. ok is false if there is no DrainInProgress of ours, or already a Drained.
// The one takes the other's place in the list, so nothing else in it is touched.
func concluding(node *corev1.Node, rec interruption.Record, now time.Time) (p marks.Patch, ok bool) {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == nodes.DrainInProgress })
	if i < 0 || !nodes.OurCondition(node.Status.Conditions[i]) || nodes.Condition(node, nodes.Drained) != nil || !rec.Phase.Over() {
		return marks.Patch{}, false
	}
	at := fmt.Sprintf("/status/conditions/%d", i)
	return marks.Progress(node, rec,
		marks.Operation{Op: "test", Path: at + "/type", Value: nodes.DrainInProgress},
		marks.Operation{Op: "test", Path: at + "/reason", Value: node.Status.Conditions[i].Reason},
		marks.Operation{Op: "replace", Path: at, Value: conditionEntry(nil, drainedCondition(rec), now)},
	), true
}
