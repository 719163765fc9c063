package handler

import (
	"context"
	"fmt"
	"time"

	"k8s.io/utils/ptr"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
	"spot-handler/handler/notify"
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

// spareLook is how soon to ask again whether pods that need no replacement have found their
// place. An autoscaler that sees them pending launches a node after a second or more.
const spareLook = time.Second

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

// replace requests a replacement, or asks how far it has come, and announces what is new. If
// there is nothing to move, it requests nothing.
func (r *reconciliation) replace(ctx context.Context, next *interruption.Record, view drain.View) error {
	asked := *next
	asked.Replacement = r.known.replacementOf(*next)
	if len(view.Moving) == 0 && asked.Replacement == nil {
		return nil
	}
	before := ptr.Deref(asked.Replacement, interruption.Replacement{})
	got, err := r.opts.Provisioner.Request(ctx, r.node, asked, provisioner.Need{Moving: view.Moving, Surged: view.Surged, Daemons: view.Daemons})
	if err != nil {
		return fmt.Errorf("request replacement: %w", err)
	}
	got.Reason = interruption.Clip(got.Reason)
	r.memory.change(func() { r.known.replacement = &got })
	next.Replacement = &got
	if got.Backend == provisioner.Spare && len(view.Moving) > 0 {
		r.lookAgainIn(spareLook)
	}
	if got.State != before.State || got.Name != before.Name && got.State != provisioner.StateFailed {
		r.reportReplacement(*next, got, got.Name != before.Name)
	}
	return nil
}

func (r *reconciliation) reportReplacement(rec interruption.Record, got interruption.Replacement, another bool) {
	log := r.fieldsOf(r.opts.Logger.Info(), rec).Str("backend", got.Backend).Str("replacement", got.Name).Str("pool", got.Pool)
	switch got.State {
	case provisioner.StateFailed:
		r.opts.Events.Notify(notify.Replaced(r.node, notify.ReasonReplacementFailed, got))
		log.Str("reason", got.Reason).Msg("replacement failed")
	case provisioner.StateUnsupported: // the provisioner logs it, once for all nodes with the same reason
		r.opts.Events.Notify(notify.Replaced(r.node, notify.ReasonNoReplacement, got))
	case provisioner.StateReady:
		if got.Backend == provisioner.Spare {
			log.Str("reason", got.Reason).Msg("no replacement needed")
			return
		}
		log.Msg("replacement ready")
	default:
		if another {
			r.opts.Events.Notify(notify.Replaced(r.node, notify.ReasonReplacementRequested, got))
			log.Msg("replacement requested")
		}
	}
}

// replacementMoved reports whether the replacement alone is reason to write the record. A
// backend may carry on only once the record names what it has found. That the same replacement
// has been launched is not worth a write.
func replacementMoved(recorded, now *interruption.Replacement) bool {
	if now == nil || recorded != nil && *recorded == *now {
		return false
	}
	return recorded == nil || recorded.Backend != now.Backend || recorded.Name != now.Name || now.State != provisioner.StateLaunched
}

// podsOf are those that the record counts; none before the drain has begun.
func podsOf(rec interruption.Record) interruption.Pods {
	return ptr.Deref(rec.Pods, interruption.Pods{})
}

// announcedBefore is how long before this process began to reconcile another is taken to have
// announced what was recorded: as long as it takes until another leads. What was recorded in
// between is announced, twice rather than never.
const announcedBefore = 10 * time.Second

// announce notifies people of a notice that somebody else has recorded: an operator who rehearses one, or
// a process on the node itself. Such a process only marks its Node and notifies nobody, so that spot
// nodes need no right to make Events, and no webhook's secret. One that drains its own node has
// notified them when it accepted the notice.
func (r *reconciliation) announce(context.Context) (done bool, err error) {
	announced := r.known.announced
	r.known.announced = r.rec.Event
	byNode := r.opts.Node == "" && r.rec.Source == interruption.IMDS
	switch {
	case !byNode && !r.rec.Rehearsed(), announced == r.rec.Event:
	case announced == "" && r.rec.Received.Before(r.began.Add(-announcedBefore)):
	default:
		r.opts.Events.Notify(notify.Noticed(r.node, r.rec))
	}
	return false, nil
}
