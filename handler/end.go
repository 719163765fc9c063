package handler

import (
	"context"
	"fmt"
	"time"

	smithytime "github.com/aws/smithy-go/time"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
	"spot-handler/handler/nodes"
	"spot-handler/handler/notify"
	"spot-handler/handler/workloads"
)

// end closes the drain, counts its pods and gives the node up.
func (r *reconciliation) end(ctx context.Context, in drain.Interruption, rec interruption.Record, phase interruption.Phase) error {
	now := time.Now()
	pods := countPods(r.opts.Drainer.Finish(r.node.Name, in), rec)
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
	if err := r.progress(ctx, rec); err != nil {
		return err
	}
	r.known.final = nil
	if rec.Phase == interruption.Released {
		r.fields(r.opts.Logger.Info()).Msg("node released")
	}
	return releaseErr
}

// shownFor is how long the result of a rehearsal stands on its Node, for those who look there
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

// cancel undoes an interruption that somebody, or EC2 itself, has cancelled.
func (r *reconciliation) cancel(ctx context.Context) (done bool, err error) {
	if !r.rec.Canceled && r.node.Annotations[interruption.CancelAnnotation] != "true" || r.rec.Phase == interruption.Released {
		return false, nil
	}
	return true, r.undo(ctx, nil)
}

// comeBack undoes the interruption of an instance that runs again. A scheduled event whose time
// has not come yet still stands.
func (r *reconciliation) comeBack(ctx context.Context) (done bool, err error) {
	if !returned(r.node, r.rec) {
		return false, nil
	}
	rules, _ := r.rules()
	rest, stands := rules.NotYet(r.rec, time.Now())
	if !stands {
		return true, r.undo(ctx, nil)
	}
	return true, r.undo(ctx, &rest)
}

// standDown undoes a node whose time has not come after all.
func (r *reconciliation) standDown(ctx context.Context) (done bool, err error) {
	if r.rec.Phase != interruption.Waiting || len(r.rec.Ours) == 0 {
		return false, nil
	}
	return true, r.undo(ctx, &r.rec)
}

// recordRemoved stops the drain of a Node that somebody has taken the record off. What we had
// set on the Node stays: whoever takes the record away takes the Node over.
func (r *reconciliation) recordRemoved(ctx context.Context) (done bool, err error) {
	if !r.removed {
		return false, nil
	}
	if r.rec.Phase == "" || r.rec.Phase.Over() || waitsUnmarked(r.rec) {
		r.forget(r.node.Name)
		return true, nil
	}
	return true, r.undo(ctx, nil)
}

// undo ends an interruption as if it had never been: evictions stop, surged pods go back to
// their ReplicaSets, then everything that we set on the Node goes, and the record with it. If
// rest is not nil it takes the record's place, and waits for its time. The Node is written
// last, so if the process is killed in between, the next process carries on.
func (r *reconciliation) undo(ctx context.Context, rest *interruption.Record) error {
	r.known.off = true
	result, done, err := r.opts.Drainer.Cancel(ctx, r.node.Name)
	if err != nil {
		return fmt.Errorf("cancel drain: %w", err)
	}
	if !done {
		r.lookAgainIn(time.Second) // the drainer wakes us earlier
		return nil
	}
	was, before := r.rec, r.node
	underWay := !was.Phase.Over() && was.Ended.IsZero() && r.known.final == nil && !waitsUnmarked(was)
	if rest != nil {
		waits := rest.Undone()
		waits.Ours = nil
		rest = &waits
	}
	if !r.removed {
		if err := r.write(ctx, marks.Undo(r.node, was, rest, time.Now())); err != nil {
			return fmt.Errorf("unmark node: %w", err)
		}
	}
	r.opts.Workloads.Canceled(ctx, workloads.Interruption{Node: before.Name, Record: was}, result.Staying)
	if underWay {
		r.metrics.ended(was, resultCanceled, result.Pods, time.Now())
	}
	r.reportUndone(before, was, rest, result)
	r.forget(r.node.Name)
	if !r.removed { // else the record would be seen again, and its end counted twice
		rests := known{resourceVersion: r.node.ResourceVersion}
		if rest != nil {
			rests.rec, rests.first = *rest, r.known.first
		}
		now := r.memory.of(r.node.Name)
		r.memory.change(func() { *now = rests })
	}
	return nil // the watch brings the Node's change back, and then the rest is forgotten
}

// reportUndone says why a node is as it was before, and what still stands.
func (r *reconciliation) reportUndone(node *corev1.Node, was interruption.Record, rest *interruption.Record, result drain.Result) {
	stands := ptr.Deref(rest, was)
	text, news := "interruption cancelled, node as it was", notify.Canceled
	switch {
	case r.removed:
		r.fieldsOf(r.opts.Logger.Warn(), was).Msg("record removed by somebody else, drain stopped")
		return
	case was.Rehearsed() && was.Phase.Over():
		text, news = "rehearsal over, node back in service", notify.Returned
	case returned(node, was):
		text, news = "instance is back, node as it was", notify.Returned
	}
	if rest != nil {
		text += ", next drain waits"
	}
	r.fieldsOf(r.opts.Logger.Info(), stands).Int("pods", result.Total).Msg(text)
	r.opts.Events.Notify(news(node, was))
}

// waitsUnmarked reports whether there is nothing but the record: the node is not cordoned.
func waitsUnmarked(rec interruption.Record) bool {
	return rec.Phase == interruption.Waiting && len(rec.Ours) == 0
}

// returned reports whether the instance runs again after what it was drained for. The Node must
// be Ready too: until then pods would come and wait.
func returned(node *corev1.Node, rec interruption.Record) bool {
	since, ready := nodes.ReadySince(node)
	return ready && rec.Phase != interruption.Waiting && rec.Phase != interruption.Released &&
		rec.Returned(node.Status.NodeInfo.BootID, since)
}

const (
	// sweepEvery is how often we look for surged pods that nobody drains. The process that cancels a drain
	// puts them back; this is for those that no process has seen.
	sweepEvery = 10 * time.Minute
	// sweepRetry is when to try again after an error.
	sweepRetry = 10 * time.Second
	// sweepAfter is how long after the end of a drain its node must still be there before we
	// put its surged pods back: EC2 was supposed to end it.
	sweepAfter = 10 * time.Minute
)

// sweep puts back surged pods whose nodes nobody drains.
func (h *Handler) sweep(ctx context.Context) error {
	for {
		wait := sweepEvery
		if err := h.opts.Drainer.Sweep(ctx, h.opts.Node, h.drained); err != nil && ctx.Err() == nil {
			h.opts.Logger.Warn().Err(err).Msg("look for surged pods that nobody drains")
			wait = sweepRetry
		}
		if smithytime.SleepWithContext(ctx, wait) != nil {
			return nil
		}
	}
}

// drained reports whether the node's pods are being moved, or the node is about to go.
func (h *Handler) drained(name string) bool {
	node, ok := h.opts.Index.Get(name)
	if !ok {
		return true // gone, or another process's
	}
	rec, has, err := nodes.Record(node)
	switch {
	case err != nil:
		return true // somebody has to look at it first
	case !has, waitsUnmarked(rec):
		return false
	case h.opts.CordonOnly: // an earlier process has surged them
		return false
	}
	return !rec.Phase.Over() || rec.Ended.IsZero() || time.Since(rec.Ended) < sweepAfter
}
