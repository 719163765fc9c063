package handler

import (
	"context"
	"time"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/notify"
)

// end closes the drain, counts its pods and hands the node back.
func (v *visit) end(ctx context.Context, in drain.Interruption, rec interruption.Record, phase interruption.Phase) error {
	now := time.Now()
	result := v.opts.Drainer.Finish(v.node.Name, in)
	pods := countPods(result, rec)
	rec.Phase, rec.Pods, rec.Ended = phase, &pods, &now
	rec.Replacement = v.known.replacementOf(rec)

	outcome, reason, message := resultCompleted, notify.ReasonDrained, "drained"
	if phase == interruption.DeadlineReached {
		outcome, reason, message = resultDeadline, notify.ReasonDeadlineReached, "deadline reached"
	}
	var slack time.Duration
	if d := rec.DeadlineTime(); !d.IsZero() {
		slack = d.Sub(now)
	}
	v.metrics.ended(rec, outcome, pods, now)
	v.opts.Events.Notify(notify.Ended(v.node, reason, pods, slack))
	log := v.tellOf(v.opts.Logger.Info(), rec).Int("graceful", pods.Graceful).Int("truncated", pods.Truncated).
		Int("forced", pods.Forced).Int("left", pods.Left).Float64("slack_seconds", slack.Seconds())
	if result.Refusal != "" {
		log = log.Str("reason", result.Refusal)
	}
	log.Msg(message)
	v.known.final = &rec
	return v.release(ctx, rec)
}

// release hands a node that is over back to what made it, and writes its last record. The
// release comes first: doing it twice is harmless, leaving it out is not. A node whose instance
// comes back is kept; the provisioner still hears of it once, to deal with the replacement.
func (v *visit) release(ctx context.Context, rec interruption.Record) error {
	written := v.rec.Phase == rec.Phase
	var releaseErr error
	switch {
	case rec.Rehearsed() && !rec.Release: // see restore
		v.lookAgain(rec.Ended.Add(shownFor))
	case rec.ComesBack() && written:
	case rec.ComesBack():
		if err := v.opts.Provisioner.Release(ctx, v.node, rec); err != nil {
			return err
		}
	case v.opts.ReleaseNode:
		if releaseErr = v.opts.Provisioner.Release(ctx, v.node, rec); releaseErr == nil {
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
		v.tell(v.opts.Logger.Info()).Msg("node released")
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
	case v.rec.Ended != nil:
		at = v.rec.Ended.Add(shownFor)
	case !v.opts.CordonOnly, at.IsZero():
		return false, nil
	}
	if time.Now().Before(at) {
		v.lookAgain(at)
		return v.rec.Ended != nil, nil
	}
	return true, v.undo(ctx, nil)
}

// countPods adds to a drain's result the pods that left before this process saw the node: its
// predecessor had evicted them.
func countPods(r drain.Result, rec interruption.Record) interruption.Pods {
	pods := podsOf(r)
	earlier := max(0, total(rec)-r.Total)
	pods.Total, pods.Graceful = pods.Total+earlier, pods.Graceful+earlier
	return pods
}

func podsOf(r drain.Result) interruption.Pods {
	return interruption.Pods{
		Total: r.Total, Graceful: r.Graceful, Truncated: r.Truncated, Forced: r.Forced, Left: r.Left, Refusal: interruption.Clip(r.Refusal),
	}
}
