package handler

import (
	"context"
	"encoding/json"
	"fmt"
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

// acceptAttempts bounds how often Accept writes again after somebody else changed the Node at
// the same time. Each attempt reads the Node again, so needing more than one or two means that
// something keeps rewriting the Node; the source comes back later.
const acceptAttempts = 5

// acceptsAtOnce is how many notices are written concurrently. It is enough to keep any API
// server busy. More would only make each wait longer, and all other requests with them. An API
// server at its defaults has 98 places for the level that the chart's FlowSchema puts cordons in.
const acceptsAtOnce = 64

// Accept records a notice on its Node. It returns an error only if the notice is not settled
// and has to be delivered again; otherwise the verdict says what became of it. Unknown means
// that no Node is that instance right now: the source decides whether to ask again.
func (h *Handler) Accept(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
	h.accepting.Add(1)
	defer func() {
		if h.accepting.Add(-1) == 0 {
			h.resume()
		}
	}()
	if n.Kind == interruption.RebalanceRecommendation {
		// Read the policy before taking a place among the writers: a slow read must not hold up
		// others' notices. The answer is kept for a while.
		if node, ok := h.opts.Index.Find(n); ok {
			_, _ = h.opts.Rules(node, true)
		}
	}
	if err := h.writing.Acquire(ctx, 1); err != nil {
		return "", fmt.Errorf("wait for a place among %d notices: %w", acceptsAtOnce, err)
	}
	defer h.writing.Release(1)
	node, ok := h.opts.Index.Find(n)
	if !ok {
		return interruption.Unknown, nil
	}
	for range acceptAttempts {
		verdict, err := h.record(ctx, node, n)
		switch {
		case err == nil:
			return verdict, nil
		case apierrors.IsNotFound(err):
			return interruption.Unknown, nil
		case !apierrors.IsConflict(err):
			return "", fmt.Errorf("mark node %q: %w", node.Name, err)
		}
		fresh, err := h.opts.Nodes.Get(ctx, node.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return interruption.Unknown, nil
		}
		if err != nil {
			return "", fmt.Errorf("read node %q: %w", node.Name, err)
		}
		node = fresh
	}
	return "", fmt.Errorf("mark node %q: changed by others %d times in a row", node.Name, acceptAttempts)
}

// record writes what the notice means for its Node, if that is news.
func (h *Handler) record(ctx context.Context, node *corev1.Node, n interruption.Notice) (interruption.Verdict, error) {
	j := interruption.Judge(nodes.Case(node, n, h.opts.Rules, time.Now()))
	if j.Verdict != interruption.Accepted {
		return j.Verdict, nil
	}
	patch := marks.Accept(node, j.Record)
	if err := h.opts.Nodes.Mark(ctx, node.Name, patch.Type, patch.Data); err != nil {
		return "", err
	}
	h.accepted(node, *patch.Record, n)
	return interruption.Accepted, nil
}

func (h *Handler) accepted(node *corev1.Node, rec interruption.Record, n interruption.Notice) {
	took := time.Since(n.Received)
	if registered := node.CreationTimestamp.Time; registered.After(n.Received) { // the notice has waited for its Node
		took = max(0, time.Since(registered))
	}
	log := h.opts.Logger.Info().Str("node", node.Name).EmbedObject(rec).Str("event_id", n.EventID).Str("phase", string(rec.Phase)).
		Float64("took_seconds", took.Seconds())
	switch {
	case n.Withdrawn:
		log.Msg("announcement withdrawn")
		return
	case rec.Phase.Over():
		log.Msg("interruption accepted, drain is over already")
		h.metrics.noticed(n, took, false)
		return
	case rec.Phase == interruption.Waiting:
		log.Msg("interruption accepted, drain waits")
	default:
		log.Msg("interruption accepted, node cordoned")
	}
	h.metrics.noticed(n, took, rec.Phase != interruption.Waiting)
	if rec.Event == n.EventID { // else a further word on an interruption already announced
		h.opts.Events.Notify(notify.Noticed(node, rec))
	}
}

// An interruption is shown as a condition of its Node too, for those who watch Nodes without
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

// show has the Node's condition brought in line with its record, if it is not. It does not block.
func (r *reconciliation) show(ctx context.Context) (done bool, err error) {
	name := r.node.Name
	if _, changed := conditionPatch(r.node, time.Now()); !changed {
		r.written.Delete(name)
		return false, nil
	}
	r.written.LoadOrStore(name, "")
	r.conditions.Do(ctx, fair.Task{Who: r.node.UID, Run: func() { r.writeCondition(ctx, name) }})
	return false, nil
}

// writeCondition brings a Node's condition in line with its record. If that fails, the next
// reconciliation tries again.
func (h *Handler) writeCondition(ctx context.Context, name string) {
	// In this order: the Node that is read next is at least as new as that by which a reconciliation has
	// found it in line, which forgets what was written.
	before, shown := h.written.Load(name)
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
	h.written.CompareAndSwap(name, before, patched.ResourceVersion) // unless it has come back already
}

// conditionPatch is what brings the Node's condition in line with its record; changed is false if it is.
// A record that cannot be read says nothing.
func conditionPatch(node *corev1.Node, now time.Time) (data []byte, changed bool) {
	rec, has, err := nodes.Record(node)
	if err != nil {
		return nil, false
	}
	shown := nodes.Condition(node, interruption.ConditionType)
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
