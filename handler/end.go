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
func (v *visit) end(ctx context.Context, in drain.Interruption, rec interruption.Record, phase interruption.Phase) error {
	now := time.Now()
	pods := countPods(v.opts.Drainer.Finish(v.node.Name, in), rec)
	rec.Phase, rec.Pods, rec.Ended = phase, &pods, now.UTC()
	rec.Replacement = v.known.replacementOf(rec)

	outcome, reason, message := resultCompleted, notify.ReasonDrained, "drained"
	if phase == interruption.DeadlineReached {
		outcome, reason, message = resultDeadline, notify.ReasonDeadlineReached, "deadline reached"
	}
	var slack time.Duration
	if !rec.Deadline.IsZero() {
		slack = rec.Deadline.Sub(now)
	}
	v.metrics.ended(rec, outcome, pods, now)
	v.opts.Events.Notify(notify.Ended(v.node, reason, pods, slack))
	log := v.fieldsOf(v.opts.Logger.Info(), rec).Int("graceful", pods.Graceful).Int("truncated", pods.Truncated).
		Int("forced", pods.Forced).Int("left", pods.Left).Float64("slack_seconds", slack.Seconds())
	if pods.Refusal != "" {
		log = log.Str("reason", pods.Refusal)
	}
	log.Msg(message)
	v.known.final = &rec
	return v.release(ctx, rec)
}

// release has what made a node that is over terminate it, and writes its last record. The
// release comes first: doing it twice is harmless, leaving it out is not. A node whose instance
// comes back is kept; the provisioner is still notified once, to deal with the replacement.
func (v *visit) release(ctx context.Context, rec interruption.Record) error {
	written := v.rec.Phase == rec.Phase
	var releaseErr error
	switch {
	case rec.Rehearsed() && !rec.Release: // see restore
		v.lookAgain(rec.Ended.Add(shownFor))
	case rec.ComesBack() && written:
	case rec.ComesBack():
		if err := v.opts.Provisioner.Terminate(ctx, v.node, rec); err != nil {
			return err
		}
	case v.opts.ReleaseNode:
		if releaseErr = v.opts.Provisioner.Terminate(ctx, v.node, rec); releaseErr == nil {
			rec.Phase = interruption.Released
		}
	}
	if v.rec.Phase == rec.Phase {
		return releaseErr
	}
	if err := v.progress(ctx, rec); err != nil {
		return err
	}
	v.known.final = nil
	if rec.Phase == interruption.Released {
		v.fields(v.opts.Logger.Info()).Msg("node released")
	}
	return releaseErr
}

// shownFor is how long the result of a rehearsal stands on its Node, for those who look there
// every now and then.
const shownFor = 5 * time.Second

// restore puts the node of a rehearsal back into service when its drain has ended. Where nothing
// is drained, that is when it would have had to end.
func (v *visit) restore(ctx context.Context) (done bool, err error) {
	if !v.rec.Rehearsed() || v.rec.Release {
		return false, nil
	}
	at := v.rec.DrainEnd()
	switch {
	case !v.rec.Ended.IsZero():
		at = v.rec.Ended.Add(shownFor)
	case !v.opts.CordonOnly, at.IsZero():
		return false, nil
	}
	if time.Now().Before(at) {
		v.lookAgain(at)
		return !v.rec.Ended.IsZero(), nil
	}
	return true, v.undo(ctx, nil)
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
func (v *visit) cancel(ctx context.Context) (done bool, err error) {
	if !v.rec.Canceled && v.node.Annotations[interruption.CancelAnnotation] != "true" || v.rec.Phase == interruption.Released {
		return false, nil
	}
	return true, v.undo(ctx, nil)
}

// comeBack undoes the interruption of an instance that runs again. A scheduled event whose time
// has not come yet still stands.
func (v *visit) comeBack(ctx context.Context) (done bool, err error) {
	if !returned(v.node, v.rec) {
		return false, nil
	}
	rules, _ := v.rules()
	rest, stands := rules.NotYet(v.rec, time.Now())
	if !stands {
		return true, v.undo(ctx, nil)
	}
	return true, v.undo(ctx, &rest)
}

// standDown undoes a node whose time has not come after all.
func (v *visit) standDown(ctx context.Context) (done bool, err error) {
	if v.rec.Phase != interruption.Waiting || len(v.rec.Ours) == 0 {
		return false, nil
	}
	return true, v.undo(ctx, &v.rec)
}

// recordRemoved stops the drain of a Node that somebody has taken the record off. What we had
// set on the Node stays: whoever takes the record away takes the Node over.
func (v *visit) recordRemoved(ctx context.Context) (done bool, err error) {
	if !v.removed {
		return false, nil
	}
	if v.rec.Phase == "" || v.rec.Phase.Over() || waitsUnmarked(v.rec) {
		v.forget(v.node.Name)
		return true, nil
	}
	return true, v.undo(ctx, nil)
}

// undo ends an interruption as if it had never been: evictions stop, surged pods go back to
// their ReplicaSets, then everything that we set on the Node goes, and the record with it. If
// rest is not nil it takes the record's place, and waits for its time. The Node is written
// last, so if the process is killed in between, the next process carries on.
func (v *visit) undo(ctx context.Context, rest *interruption.Record) error {
	v.known.off = true
	result, done, err := v.opts.Drainer.Cancel(ctx, v.node.Name)
	if err != nil {
		return fmt.Errorf("cancel drain: %w", err)
	}
	if !done {
		v.lookAgainIn(time.Second) // the drainer wakes us earlier
		return nil
	}
	was, before := v.rec, v.node
	underWay := !was.Phase.Over() && was.Ended.IsZero() && v.known.final == nil && !waitsUnmarked(was)
	if rest != nil {
		waits := rest.Undone()
		waits.Ours = nil
		rest = &waits
	}
	if !v.removed {
		if err := v.write(ctx, marks.Undo(v.node, was, rest, time.Now())); err != nil {
			return fmt.Errorf("unmark node: %w", err)
		}
	}
	v.opts.Workloads.Canceled(ctx, workloads.Interruption{Node: before.Name, Record: was}, result.Staying)
	if underWay {
		v.metrics.ended(was, resultCanceled, result.Pods, time.Now())
	}
	v.reportUndone(before, was, rest, result)
	v.forget(v.node.Name)
	if !v.removed { // else the record would be seen again, and its end counted twice
		rests := known{resourceVersion: v.node.ResourceVersion}
		if rest != nil {
			rests.rec, rests.first = *rest, v.known.first
		}
		now := v.memory.of(v.node.Name)
		v.memory.change(func() { *now = rests })
	}
	return nil // the watch brings the Node's change back, and then the rest is forgotten
}

// reportUndone says why a node is as it was before, and what still stands.
func (v *visit) reportUndone(node *corev1.Node, was interruption.Record, rest *interruption.Record, result drain.Result) {
	stands := ptr.Deref(rest, was)
	text, news := "interruption cancelled, node as it was", notify.Canceled
	switch {
	case v.removed:
		v.fieldsOf(v.opts.Logger.Warn(), was).Msg("record removed by somebody else, drain stopped")
		return
	case was.Rehearsed() && was.Phase.Over():
		text, news = "rehearsal over, node back in service", notify.Returned
	case returned(node, was):
		text, news = "instance is back, node as it was", notify.Returned
	}
	if rest != nil {
		text += ", next drain waits"
	}
	v.fieldsOf(v.opts.Logger.Info(), stands).Int("pods", result.Total).Msg(text)
	v.opts.Events.Notify(news(node, was))
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
