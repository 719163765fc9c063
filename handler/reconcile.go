package handler

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/notify"
	"spot-handler/handler/provisioner"
)

const (
	// lastCall before the deadline the drain ends: the result is written and the node
	// released while the node, and in IMDS mode this process, still runs. An eviction
	// that late would give a pod a second or two.
	lastCall = 5 * time.Second

	// emergency is how long pods are moved after a notice that left no time at all,
	// such as hibernation, or that came late. They get a grace period of a second, and
	// whatever EC2 leaves of these seconds is better than nothing.
	emergency = 20 * time.Second
)

// reconcile takes a node one step on, and says when to look again if nothing happens
// before; zero is never. All that it does may be done again: the step is decided
// from the Node, its pods and the replacement as they are.
func (h *Handler) reconcile(ctx context.Context, name string) (time.Duration, error) {
	k := h.remember(name)
	node, ok := h.opts.Index.Get(name)
	if !ok {
		h.nodeGone(ctx, name, k)
		return 0, nil
	}
	if older(node.ResourceVersion, k.resourceVersion) {
		return 0, nil // our own last write has not come back yet; it will
	}
	rec, has, err := recordOf(node)
	if !has {
		return h.recordRemoved(ctx, name, k)
	}
	if err != nil {
		if !k.unreadable {
			k.unreadable = true
			h.opts.Drainer.Forget(name)
			h.opts.Events.RecordUnreadable(node, err)
			h.opts.Logger.Error().Err(err).Str("node", name).Msg("read record")
		}
		return 0, nil
	}
	h.mu.Lock()
	if k.rec.Ended != nil && rec.Ended == nil { // the next interruption: the last one's replacement is none of it
		*k = known{resourceVersion: k.resourceVersion, off: k.off}
	}
	k.rec, k.unreadable = rec, false
	h.mu.Unlock()
	if rec.Kind != interruption.RebalanceRecommendation {
		h.leaveLine(name)
	}
	if canceled(node, rec) && rec.Phase != interruption.Released {
		return h.callOff(ctx, node, k, rec)
	}
	if wrote, err := h.shutDown(ctx, node, k, rec); wrote || err != nil {
		return 0, err // the change of the Node comes back
	}
	switch {
	case returned(node, rec):
		return h.comeBack(ctx, node, k, rec)
	case rec.Phase == interruption.Waiting && len(rec.Ours) > 0:
		return h.standDown(ctx, node, k, rec, rec)
	}
	ready, tendAgain, err := h.tend(ctx, &node, k, &rec)
	if err != nil {
		return 0, err
	}
	if !ready {
		return until(tendAgain), nil
	}
	again, err := h.proceed(ctx, name, node, k, rec)
	return sooner(again, until(tendAgain)), err
}

// proceed takes the interruption itself a step on.
func (h *Handler) proceed(ctx context.Context, name string, node *corev1.Node, k *known, rec interruption.Record) (time.Duration, error) {
	switch {
	case rec.Kind == interruption.RebalanceRecommendation:
		return h.rebalance(ctx, node, k, rec)
	case rec.Phase == interruption.Released:
		h.opts.Drainer.Forget(name)
		return 0, nil
	case rec.Phase.Over():
		return 0, h.release(ctx, node, k, rec)
	case rec.Phase == interruption.Waiting:
		return h.wait(ctx, node, k, rec)
	}
	return h.drain(ctx, node, k, rec)
}

// drain requests the replacement, moves pods as far as they may be moved now, and
// ends the interruption when none is left or the time is over. With CordonOnly there is
// none of that, and the record stays as it is.
func (h *Handler) drain(ctx context.Context, node *corev1.Node, k *known, rec interruption.Record) (time.Duration, error) {
	if h.opts.CordonOnly {
		return 0, nil
	}
	if k.off { // called off, and interrupted again before that was done
		h.opts.Drainer.Forget(node.Name)
		k.off, k.final = false, nil
	}
	if k.final != nil && k.final.Kind == rec.Kind { // ended and counted, but that could not be written
		rec.Phase, rec.Pods, rec.Ended, rec.Replacement = k.final.Phase, k.final.Pods, k.final.Ended, k.final.Replacement
		return 0, h.release(ctx, node, k, rec)
	}
	k.begun = true
	in := drain.Interruption{Taint: taintOf(rec), Deadline: h.drainBy(rec), Capacity: drain.PendingCapacity}
	view, ok := h.opts.Drainer.Look(ctx, node.Name, in)
	if !ok {
		return until(endOf(rec)), nil // the drainer tells when it knows the pods
	}
	if !endOf(rec).IsZero() && !time.Now().Before(endOf(rec)) {
		if len(view.Moving) == 0 { // only their volumes are attached still
			return 0, h.end(ctx, node, k, rec, interruption.Drained)
		}
		return 0, h.end(ctx, node, k, rec, interruption.DeadlineReached)
	}

	recorded := rec.Replacement
	requestErr := h.replace(ctx, node, k, &rec, view)
	if wrote := k.rec.Replacement; wrote != nil && rec.Replacement != nil && wrote.Tried != rec.Replacement.Tried {
		// No pool is tried twice, whoever goes on from here.
		if err := h.write(ctx, &node, k, rec); err != nil {
			return 0, err
		}
		recorded = rec.Replacement
	}
	in.Capacity = capacity(k, requestErr)
	if rec.Phase == interruption.Noticed && len(view.Moving) > 0 { // before the first eviction, so that a successor knows how many pods there were
		rec.Phase = interruption.Draining
		if in.Capacity == drain.PendingCapacity || in.Deadline.IsZero() {
			rec.Phase = interruption.Replacing
		}
		rec.Pods = &interruption.Pods{Total: len(view.Moving)}
		if err := h.progress(ctx, &node, k, rec); err != nil {
			return 0, err
		}
		recorded = rec.Replacement
	}

	status, ok := h.opts.Drainer.Drain(ctx, node.Name, in)
	if !ok {
		return until(endOf(rec)), requestErr
	}
	switch {
	case status.Done:
		return 0, h.end(ctx, node, k, rec, interruption.Drained)
	case status.Begun && (rec.Phase == interruption.Replacing || rec.Pods == nil), status.Refusal != "" && refusal(rec) == "":
		rec.Phase = interruption.Draining
		rec.Pods = &interruption.Pods{Total: max(status.Total, total(rec)), Refusal: interruption.Clip(status.Refusal)}
		if err := h.progress(ctx, &node, k, rec); err != nil {
			return 0, err
		}
	case rec.Phase != interruption.Noticed && replacementMoved(recorded, rec.Replacement):
		if err := h.write(ctx, &node, k, rec); err != nil {
			return 0, err
		}
	}
	return until(earlier(status.Next, endOf(rec))), requestErr
}

// replace asks for a replacement, or how far it is, and tells of what is new. Where
// there is nothing to move, nothing is asked for.
func (h *Handler) replace(ctx context.Context, node *corev1.Node, k *known, rec *interruption.Record, view drain.View) error {
	if len(view.Moving) == 0 && rec.Replacement == nil && !k.requested {
		return nil
	}
	asked := *rec
	if k.requested {
		asked.Replacement = &k.replacement
	}
	got, err := h.opts.Provisioner.Request(ctx, node, asked, provisioner.Need{Moving: view.Moving, Surged: view.Surged, Daemons: view.Daemons})
	if err != nil {
		return fmt.Errorf("request replacement: %w", err)
	}
	got.Reason = interruption.Clip(got.Reason)
	var before interruption.Replacement
	if asked.Replacement != nil {
		before = *asked.Replacement
	}
	h.mu.Lock()
	k.replacement, k.requested = got, true
	h.mu.Unlock()
	rec.Replacement = &got
	if got.State == before.State && got.Name == before.Name {
		return nil
	}
	log := tell(h.opts.Logger.Info(), node.Name, *rec).Str("backend", got.Backend).Str("replacement", got.Name).Str("pool", got.Pool)
	switch got.State {
	case provisioner.StateFailed:
		h.opts.Events.Replacement(node, notify.ReasonReplacementFailed, got)
		log.Str("reason", got.Reason).Msg("replacement failed")
	case provisioner.StateUnsupported: // logged once for all nodes of the same reason, by the provisioner
		h.opts.Events.Replacement(node, notify.ReasonNoReplacement, got)
	case provisioner.StateReady:
		log.Msg("replacement ready")
	default:
		if got.Name != before.Name {
			h.opts.Events.Replacement(node, notify.ReasonReplacementRequested, got)
			log.Msg("replacement requested")
		}
	}
	return nil
}

// replacementMoved reports whether the record has to be written for its replacement's
// sake alone. A backend may go on only when the record names what it has found; that
// the same replacement has been launched is worth no write.
func replacementMoved(recorded, now *interruption.Replacement) bool {
	if now == nil || recorded != nil && *recorded == *now {
		return false
	}
	return recorded == nil || recorded.Backend != now.Backend || recorded.Name != now.Name || now.State != provisioner.StateLaunched
}

// capacity is what a drain may wait for. A request that could not be made yet is
// made again, so it is worth waiting for too, as long as pods can wait.
func capacity(k *known, requestErr error) drain.Capacity {
	switch {
	case requestErr != nil, k.requested && provisioner.Pending(k.replacement.State):
		return drain.PendingCapacity
	case k.requested && k.replacement.State == provisioner.StateReady:
		return drain.ReadyCapacity
	}
	return drain.NoCapacity
}

// end closes the drain, counts its pods and hands the node back.
func (h *Handler) end(ctx context.Context, node *corev1.Node, k *known, rec interruption.Record, phase interruption.Phase) error {
	now := time.Now()
	result := h.opts.Drainer.Finish(node.Name)
	pods := countPods(result, rec)
	pods.Refusal = interruption.Clip(result.Refusal)
	rec.Phase, rec.Pods, rec.Ended = phase, &pods, &now
	if k.requested {
		rec.Replacement = &k.replacement
	}

	outcome, reason := resultCompleted, notify.ReasonDrained
	if phase == interruption.DeadlineReached {
		outcome, reason = resultDeadline, notify.ReasonDeadlineReached
	}
	var slack time.Duration
	if d := rec.DeadlineTime(); !d.IsZero() {
		slack = d.Sub(now)
	}
	h.metrics.ended(rec, outcome, now)
	h.opts.Events.Ended(node, reason, pods, slack, result.Refusal)
	log := tell(h.opts.Logger.Info(), node.Name, rec).Int("graceful", pods.Graceful).Int("truncated", pods.Truncated).
		Int("forced", pods.Forced).Int("left", pods.Left).Float64("slack_seconds", slack.Seconds())
	if result.Refusal != "" {
		log = log.Str("reason", result.Refusal)
	}
	if phase == interruption.Drained {
		log.Msg("drained")
	} else {
		log.Msg("deadline reached")
	}
	k.final = &rec
	return h.release(ctx, node, k, rec)
}

// release hands a node that is over back to what made it, and writes its last
// record. The release comes first: done twice it is harmless, left out it is not. A node
// whose instance comes back is kept; the provisioner is told once, for the sake of the
// replacement.
func (h *Handler) release(ctx context.Context, node *corev1.Node, k *known, rec interruption.Record) error {
	var releaseErr error
	switch {
	case rec.ComesBack() && k.rec.Phase == rec.Phase:
	case rec.ComesBack():
		if err := h.opts.Provisioner.Release(ctx, node, rec); err != nil {
			return err
		}
	case h.opts.ReleaseNode:
		if releaseErr = h.opts.Provisioner.Release(ctx, node, rec); releaseErr == nil {
			rec.Phase = interruption.Released
		}
	}
	if k.rec.Phase == rec.Phase {
		return releaseErr
	}
	if err := h.write(ctx, &node, k, rec); err != nil {
		return err
	}
	k.final = nil
	if rec.Phase == interruption.Released {
		tell(h.opts.Logger.Info(), node.Name, rec).Msg("node released")
	}
	return releaseErr
}

// nodeGone closes the interruption of a Node that does not exist any more. One that was
// waiting, or was only cordoned, has missed nothing.
func (h *Handler) nodeGone(ctx context.Context, name string, k *known) {
	if k.begun && !k.rec.Phase.Over() {
		result := h.opts.Drainer.Finish(name)
		h.metrics.ended(k.rec, resultFailed, time.Now())
		h.opts.Events.Ended(lastKnown(name, k.rec), notify.ReasonNodeGone, countPods(result, k.rec), 0, result.Refusal)
		tell(h.opts.Logger.Warn(), name, k.rec).Int("left", result.Left).Msg("node gone before its drain had ended")
	}
	h.orphaned(ctx, k)
	h.forget(name)
}

// lastKnown is what can still be told of a Node that does not exist any more.
func lastKnown(name string, rec interruption.Record) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(name), Annotations: map[string]string{interruption.Annotation: rec.String()},
	}}
}

// progress writes the record of a drain that goes on.
func (h *Handler) progress(ctx context.Context, node **corev1.Node, k *known, rec interruption.Record) error {
	if err := h.write(ctx, node, k, rec); err != nil {
		return err
	}
	if rec.Phase == interruption.Draining && refusal(rec) == "" {
		tell(h.opts.Logger.Info(), (*node).Name, rec).Int("pods", total(rec)).Msg("draining")
	}
	return nil
}

// write moves the record on the Node on. A Node that is gone needs none.
func (h *Handler) write(ctx context.Context, node **corev1.Node, k *known, rec interruption.Record) error {
	patch, err := progressPatch(*node, rec)
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	patched, err := h.opts.Nodes.Patch(ctx, (*node).Name, types.JSONPatchType, patch, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err):
		patched = *node
	case err != nil:
		return fmt.Errorf("write record: %w", err)
	}
	*node = patched
	h.mu.Lock()
	defer h.mu.Unlock()
	k.rec, k.resourceVersion = rec, patched.ResourceVersion
	return nil
}

// countPods adds to a drain's result the pods that left before this process saw the
// node: its predecessor had evicted them.
func countPods(r drain.Result, rec interruption.Record) interruption.Pods {
	earlier := max(0, total(rec)-r.Total)
	return interruption.Pods{
		Total: r.Total + earlier, Graceful: r.Graceful + earlier,
		Truncated: r.Truncated, Forced: r.Forced, Left: r.Left,
	}
}

func refusal(rec interruption.Record) string {
	if rec.Pods == nil {
		return ""
	}
	return rec.Pods.Refusal
}

func total(rec interruption.Record) int {
	if rec.Pods == nil {
		return 0
	}
	return rec.Pods.Total
}

// endOf is when the drain of a node ends at the latest; zero is never.
func endOf(rec interruption.Record) time.Time {
	d := rec.DeadlineTime()
	if d.IsZero() {
		return d
	}
	return later(d.Add(-lastCall), rec.Since().Add(emergency))
}

// older reports whether resource version a is older than b. Since Kubernetes 1.35
// the API promises that they can be compared; one that cannot be is taken as new.
// https://github.com/kubernetes/enhancements/tree/master/keps/sig-api-machinery/5504-comparable-resource-version
func older(a, b string) bool {
	if b == "" {
		return false
	}
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && c < 0
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// until is the time to t, at least a moment, as zero says never.
func until(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return max(time.Millisecond, time.Until(t))
}

// sooner is the shorter of two times to look again, of which zero is never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
