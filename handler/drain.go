package handler

import (
	"context"
	"time"

	"k8s.io/utils/ptr"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/workloads"
)

// drain requests the replacement, moves the pods that may move now, and ends the interruption
// when none is left or time is up. With CordonOnly it does nothing, and the record stays as it
// is.
func (r *reconciliation) drain(ctx context.Context) (done bool, err error) {
	k := r.known
	if r.opts.CordonOnly {
		return true, nil
	}
	if k.off { // cancelled, and interrupted again before that was done
		r.opts.Drainer.Forget(r.node.Name)
		k.off, k.final = false, nil
	}
	if k.final != nil && k.final.Kind == r.rec.Kind && k.final.Rehearsed() == r.rec.Rehearsed() { // ended and counted, but that could not be written
		rec := r.rec
		rec.Phase, rec.Pods, rec.Ended, rec.Replacement = k.final.Phase, k.final.Pods, k.final.Ended, k.final.Replacement
		return true, r.release(ctx, rec)
	}
	k.begun = true
	rules, _ := r.opts.Rules(r.node, false)
	in := drain.Interruption{Taint: marks.Taint(r.rec), Since: r.rec.Since(), Deadline: rules.DrainBy(r.rec, time.Now())}
	in.Capacity = provisioner.CapacityOf(k.replacement) // mostly it stays, so one plan does
	end := r.rec.DrainEnd()
	r.lookAgain(end)
	view, ok := r.opts.Drainer.Look(ctx, r.node.Name, in)
	switch {
	case !ok: // the drainer wakes us when it knows the pods
		return true, nil
	case end.IsZero() || time.Now().Before(end):
	case len(view.Moving) == 0: // only their volumes are still attached
		return true, r.end(ctx, in, r.rec, interruption.Drained)
	default:
		return true, r.end(ctx, in, r.rec, interruption.DeadlineReached)
	}

	r.notifyPods(ctx, in.Deadline, view.Plan)
	next := r.rec
	requestErr := r.replace(ctx, &next, view)
	r.notifyPods(ctx, in.Deadline, view.Plan) // of a replacement that is Ready now
	if was := r.rec.Replacement; was != nil && next.Replacement != nil && was.Tried != next.Replacement.Tried {
		// No pool is tried twice, whoever carries on from here.
		if err := r.progress(ctx, next); err != nil {
			return true, err
		}
	}
	in.Capacity = provisioner.CapacityOf(k.replacement)
	if requestErr != nil { // it is made again, and so is worth waiting for as long as pods can wait
		in.Capacity = drain.PendingCapacity
	}
	if next.Phase == interruption.Noticed && len(view.Moving) > 0 { // before the first eviction, so the next process knows how many pods there were
		next.Phase = interruption.Draining
		if in.Capacity == drain.PendingCapacity || in.Deadline.IsZero() {
			next.Phase = interruption.Replacing
		}
		next.Pods = &interruption.Pods{Total: len(view.Moving)}
		if err := r.advance(ctx, next); err != nil {
			return true, err
		}
	}

	status, ok := r.opts.Drainer.Drain(ctx, r.node.Name, in, view)
	k.noteProgress(status)
	switch {
	case !ok:
		return true, requestErr
	case status.Done:
		return true, r.end(ctx, in, next, interruption.Drained)
	case status.Begun && (next.Phase == interruption.Replacing || next.Pods == nil), status.Refusal != "" && podsOf(next).Refusal == "":
		next.Phase = interruption.Draining
		next.Pods = &interruption.Pods{Total: max(status.Total, podsOf(next).Total), Refusal: interruption.Clip(status.Refusal)}
		if err := r.advance(ctx, next); err != nil {
			return true, err
		}
	case next.Phase != interruption.Noticed && replacementMoved(r.rec.Replacement, next.Replacement):
		if next.Phase == interruption.Replacing && in.Capacity == drain.ReadyCapacity {
			next.Phase = interruption.Draining // pods follow in a moment, which is not worth a write of its own
		}
		if err := r.advance(ctx, next); err != nil {
			return true, err
		}
	}
	r.lookAgain(status.Next)
	return true, requestErr
}

// notifyPods notifies those that ask, and have not been notified yet.
func (r *reconciliation) notifyPods(ctx context.Context, deadline time.Time, plan []drain.Decision) {
	in := workloads.Interruption{Node: r.node.Name, Record: r.rec, Deadline: deadline}
	if asked := r.known.replacementOf(r.rec); asked != nil {
		in.Replacement, in.Ready = asked.State, asked.State == provisioner.StateReady
	}
	r.opts.Workloads.Notify(ctx, in, plan)
}

// noteProgress notes that pods have left, or are leaving: those have their grace periods.
func (k *known) noteProgress(status drain.Status) {
	if left := status.Total - len(status.Moving); left > k.left {
		k.left, k.moved = left, interruption.Later(k.moved, time.Now())
	}
	for _, pod := range status.Moving {
		if pod.DeletionTimestamp != nil {
			k.moved = interruption.Later(k.moved, pod.DeletionTimestamp.Time)
		}
	}
}

// advance writes the record of a drain that has made progress, and logs that it begins.
func (r *reconciliation) advance(ctx context.Context, next interruption.Record) error {
	before := r.rec.Phase
	if err := r.progress(ctx, next); err != nil {
		return err
	}
	if r.rec.Phase == interruption.Draining && before != interruption.Draining {
		r.fields(r.opts.Logger.Info()).Int("pods", podsOf(r.rec).Total).Msg("draining")
	}
	return nil
}

// podsOf are those that the record counts; none before the drain has begun.
func podsOf(rec interruption.Record) interruption.Pods {
	return ptr.Deref(rec.Pods, interruption.Pods{})
}
