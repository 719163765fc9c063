package handler

import (
	"cmp"
	"context"
	"time"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/notify"
)

// end closes the drain, counts its pods and gives the node up.
func (r *reconciliation) end(ctx context.Context, status plan.Status, rec interruption.Record, phase interruption.Phase) error {
	now := time.Now()
	pods := r.close(r.node.Name, r.known, status, rec)
	rec.Phase, rec.Pods, rec.Ended = phase, &pods, now.UTC()
	rec.Replacement = r.known.replacementOf(rec)

	outcome, reason, message := resultCompleted, notify.ReasonDrained, "drained"
	if phase == interruption.DeadlineReached {
		outcome, reason, message = resultDeadline, notify.ReasonDeadlineReached, "deadline reached"
	}
	var slack time.Duration
	if !rec.Deadline.IsZero() {
		slack = rec.Deadline.Sub(now)
	}
	r.metrics.ended(rec, outcome, pods, now)
	r.opts.Events.Notify(notify.Ended(r.node, reason, pods, slack))
	log := r.fieldsOf(r.opts.Logger.Info(), rec).Int("graceful", pods.Graceful).Int("truncated", pods.Truncated).
		Int("forced", pods.Forced).Int("left", pods.Left).Float64("slack_seconds", slack.Seconds())
	if pods.Refusal != "" {
		log = log.Str("reason", pods.Refusal)
	}
	log.Msg(message)
	r.known.final = &rec
	return r.release(ctx, rec)
}

// close ends the drain of a node, and counts what has become of its pods.
func (h *Handler) close(node string, k *known, status plan.Status, rec interruption.Record) interruption.Pods {
	h.stopDrain(node, k)
	for _, left := range status.Left {
		h.opts.PodLeft(node, left.Pod, left.Reason)
	}
	return countPods(status.Pods, rec)
}

// endAgain writes the end of a drain that was counted when it could not be written.
func (r *reconciliation) endAgain(ctx context.Context) error {
	rec, final := r.rec, r.known.final
	rec.Phase, rec.Pods, rec.Ended = final.Phase, final.Pods, final.Ended
	rec.Replacement = cmp.Or(final.Replacement, rec.Replacement)
	return r.release(ctx, rec)
}

// release has what made a node that is over terminate it, and writes its last record. The
// release comes first: doing it twice is harmless, leaving it out is not. A node whose instance
// comes back is kept; the provisioner is still notified once, to deal with the replacement.
func (r *reconciliation) release(ctx context.Context, rec interruption.Record) error {
	written := r.rec.Phase == rec.Phase
	var releaseErr error
	switch {
	case rec.Rehearsed() && !rec.Release: // see restore
		r.lookAgain(rec.Ended.Add(shownFor))
	case rec.ComesBack() && written:
	case rec.ComesBack():
		if err := r.opts.Provisioner.Terminate(ctx, r.node, rec); err != nil {
			return err
		}
	case r.opts.ReleaseNode:
		if releaseErr = r.opts.Provisioner.Terminate(ctx, r.node, rec); releaseErr == nil {
			rec.Phase = interruption.Released
		}
	}
	if r.rec.Phase == rec.Phase {
		return releaseErr
	}
	if err := r.conclude(ctx, rec); err != nil {
		return err
	}
	r.known.final = nil
	if rec.Phase == interruption.Released {
		r.fields(r.opts.Logger.Info()).Msg("node released")
	}
	return releaseErr
}

// shownFor is how long the result of a rehearsal stands on its Node, for people who look there
// every now and then.
const shownFor = 5 * time.Second

// restore puts the node of a rehearsal back into service when its drain has ended. Where nothing
// is drained, that is when it would have had to end.
func (r *reconciliation) restore(ctx context.Context) (done bool, err error) {
	if !r.rec.Rehearsed() || r.rec.Release {
		return false, nil
	}
	at := r.rec.DrainEnd()
	switch {
	case !r.rec.Ended.IsZero():
		at = r.rec.Ended.Add(shownFor)
	case !r.opts.CordonOnly, at.IsZero():
		return false, nil
	}
	if time.Now().Before(at) {
		r.lookAgain(at)
		return !r.rec.Ended.IsZero(), nil
	}
	return true, r.undo(ctx, nil)
}

// countPods adds to a drain's result the pods that left before this process saw the node: its
// last process had evicted them.
func countPods(pods interruption.Pods, rec interruption.Record) interruption.Pods {
	earlier := max(0, podsOf(rec).Total-pods.Total)
	pods.Total, pods.Graceful = pods.Total+earlier, pods.Graceful+earlier
	pods.Refusal = interruption.Clip(pods.Refusal)
	return pods
}
