package handler

import (
	"cmp"
	"context"
	"time"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
	"spot-handler/handler/provisioner"
)

// A rebalance recommendation says that an instance is at risk. It has no deadline, and EC2 may
// never act on it, so the operator's policy decides what to do:
//
//	ignore   nothing is recorded
//	cordon   ─► Noticed
//	replace  ─► Waiting ─► Waiting ─► Noticed ─► Replacing ─► ...
//	            in line    its turn: a replacement is requested, and the node marked when that is Ready
//	               ▲          │
//	               └──────────┘ there is none to be had: it is the next one's turn
//
// An instance that has left its Auto Scaling group for its replacement can't go back. If nothing comes
// of that replacement, its node is drained without one.
//
// A node that goes back to spot has a recommendation of our own, which is handled as with the policy
// replace, whatever that is. If there is no spot instance for it, or the new node is about to go again,
// it is dropped at once: the provisioner recommends the node again, less and less often.
//
// What makes no progress for the TTL is undone. A notice can upgrade the record in place at any
// time; the rules here then no longer apply.

const (
	// rebalanceLook is how often we look at a recommended node if nothing happens: its pool's
	// policy may have changed, or its pool grown, or there may be room for its replacement by
	// now. None of that is urgent.
	rebalanceLook = time.Minute

	// returnLook is how often we look whether the new node of one that goes back to spot is still there.
	returnLook = 5 * time.Second

	// policyRetry is when to read the policy again after that failed.
	policyRetry = 10 * time.Second

	// placeShare is the part of the TTL after which a node whose turn has come loses its place in
	// line if it makes no progress: those recommended at the same time must have their turn before
	// their own recommendations lapse.
	placeShare = 4
)

// rebalance moves on a node that is only recommended for rebalance.
func (r *reconciliation) rebalance(ctx context.Context) (done bool, err error) {
	if r.rec.Kind != interruption.RebalanceRecommendation {
		return false, nil
	}
	lapse := r.lapseAt()
	switch {
	case r.known.cancelling && r.known.dropping == r.rec.Event: // why can no longer be seen: its plan is gone
		return true, r.dropRecommendation(ctx, "")
	case !lapse.IsZero() && !time.Now().Before(lapse):
		why := "EC2 has left the instance alone, and no pod has left for " + r.opts.RebalanceTTL.String()
		if r.rec.Phase == interruption.Waiting {
			why = "EC2 has left the instance alone, and nothing was replaced"
		}
		if r.rec.Returns() {
			why = "no pod has gone back to spot for " + r.opts.RebalanceTTL.String()
		}
		return true, r.dropRecommendation(ctx, why)
	case r.rec.Phase.Over():
		r.opts.Turns.Remove(r.node.Name)
		r.lookAgain(lapse)
		return r.finish(ctx)
	case r.due(): // so near that the recommendation no longer matters
		r.opts.Turns.Remove(r.node.Name)
		if r.rec.Phase == interruption.Waiting {
			return true, r.begin(ctx, r.rec)
		}
		return r.drain(ctx)
	case r.rec.Phase != interruption.Waiting && r.rec.TurnTaken():
		if why := r.wayBackLost(); why != "" {
			return true, r.dropRecommendation(ctx, why)
		}
		r.keepPlace()
		done, err = r.drain(ctx)
		r.lookAround()
		return done, err
	}

	if r.detached() || r.rec.Returns() { // whatever the policy is by now
		return r.standInLine(ctx)
	}
	rules, err := r.rules()
	if err != nil {
		r.opts.Logger.Debug().Err(err).Str("node", r.node.Name).Msg("read rebalance policy")
		r.lookAgainIn(policyRetry)
		return true, nil
	}
	switch rules.Rebalance {
	case interruption.RebalanceIgnore:
		return true, r.dropRecommendation(ctx, "the policy is to ignore it")
	case interruption.RebalanceCordon:
		r.opts.Turns.Remove(r.node.Name)
		if r.rec.Phase == interruption.Waiting {
			return true, r.mark(ctx, r.rec)
		}
		r.lookAround()
		return true, nil
	}
	return r.standInLine(ctx)
}

// wayBackLost says why a node whose pods go back to spot had better keep those that are left: its new
// node is gone, or about to go. It is empty otherwise.
func (r *reconciliation) wayBackLost() string {
	if asked := r.known.replacementOf(r.rec); r.rec.Returns() && asked != nil && asked.State == provisioner.StateFailed {
		return cmp.Or(asked.Reason, "its new node is lost")
	}
	return ""
}

// standInLine has a node replaced when its turn comes.
func (r *reconciliation) standInLine(ctx context.Context) (done bool, err error) {
	r.lookAround()
	if r.rec.Phase == interruption.Waiting && r.rec.TurnTaken() && !r.opts.CordonOnly {
		r.keepPlace()
		return true, r.secure(ctx)
	}
	standing := r.rec
	if retry := r.known.retry; !retry.IsZero() && r.known.retryFor == r.rec.Event {
		if time.Now().Before(retry) {
			r.lookAgain(retry)
			return true, nil
		}
		standing.Received = retry // those that have not had their turn yet come first
	}
	switch {
	case !r.opts.Turns.Start(r.node, standing):
		return true, nil
	case r.rec.Phase != interruption.Waiting, r.opts.CordonOnly:
		return true, r.begin(ctx, r.rec)
	}
	return true, r.secure(ctx)
}

// keepPlace keeps the place in line of a node whose turn has come while it makes progress: its
// replacement is on its way, or its pods leave. That a pod is still leaving is none: it can have hours
// for that.
func (r *reconciliation) keepPlace() {
	until := r.movedAt().Add(r.opts.RebalanceTTL / placeShare)
	switch {
	case r.opts.RebalanceTTL == 0:
		r.opts.Turns.Enqueue(r.node, r.rec)
	case time.Now().Before(until):
		r.opts.Turns.Enqueue(r.node, r.rec)
		r.lookAgain(until)
	default:
		r.opts.Turns.Remove(r.node.Name)
	}
}

// lookAround makes sure that a recommended node is reconciled again when its recommendation
// lapses, when a scheduled event is due, and now and then.
func (r *reconciliation) lookAround() {
	rules, _ := r.opts.Rules(r.node, false)
	r.lookAgain(r.lapseAt())
	r.lookAgain(rules.Start(r.rec))
	r.lookAgainIn(rebalanceLook)
	if r.rec.Returns() && r.rec.Phase != interruption.Waiting {
		r.lookAgainIn(returnLook)
	}
}

// dropRecommendation takes the recommendation off a node, and undoes what it had set there. A
// scheduled event of the same instance still stands, and waits for its time again.
func (r *reconciliation) dropRecommendation(ctx context.Context, why string) error {
	rest, stands := r.rec.DropRecommendation(time.Now())
	if !r.known.cancelling { // else it was logged when that began
		r.fields(r.opts.Logger.Info()).Str("reason", why).Msg("rebalance recommendation dropped")
	}
	r.known.dropping = r.rec.Event
	r.opts.Turns.Remove(r.node.Name)
	if !stands {
		r.rec = rest
		return r.undo(ctx, nil)
	}
	rest.Phase = interruption.Waiting
	return r.undo(ctx, &rest)
}

// lapseAt is when to undo what a recommendation has set on a node; zero means never. A drain
// that has ended with a replacement is not undone: its pods have moved. Nor is that of an
// instance that has left its group, as there is no way back for it. Where the pods have moved to nodes
// that were there, an instance that is still in its group by then is nobody's to end.
func (r *reconciliation) lapseAt() time.Time {
	asked := r.known.replacementOf(r.rec)
	moved := r.rec.Phase.Over() && asked != nil && asked.State == provisioner.StateReady && asked.Backend != provisioner.Spare
	if r.opts.RebalanceTTL == 0 || r.node.DeletionTimestamp != nil || r.due() || moved || r.detached() {
		return time.Time{}
	}
	return r.quietSince().Add(r.opts.RebalanceTTL)
}

// detached reports whether the instance has left its Auto Scaling group for its replacement, or might
// have: the group is recorded before that. Once released, an instance that had left has been terminated, unless
// that was denied; one that isn't known to have left is taken to be in its group.
func (r *reconciliation) detached() bool {
	asked := r.known.replacementOf(r.rec)
	if asked == nil || asked.Backend != provisioner.ASG || asked.Name == "" {
		return false
	}
	might := provisioner.Pending(asked.State) && r.rec.Phase != interruption.Released
	return asked.Detached || might || asked.State == provisioner.StateReady
}

// unknownFor is for how many times the TTL what happened before this process counts as progress: leaders can
// change more often than the TTL passes.
const unknownFor = 3

// movedAt is when a recommendation has last made progress. What happened before this process
// had its first look at a drain is not known, and counts as progress for a while.
func (r *reconciliation) movedAt() time.Time {
	begun := interruption.Later(r.rec.Received, r.rec.Begun)
	at := interruption.Later(begun, r.rec.Ended)
	if !r.underWay() {
		return at
	}
	at = interruption.Later(at, r.known.moved)
	if first := r.known.firstDue; first.Before(begun.Add(unknownFor * r.opts.RebalanceTTL)) {
		at = interruption.Later(at, first)
	}
	return at
}

// quietSince is when a recommendation has last made progress, with the grace periods of those that leave.
func (r *reconciliation) quietSince() time.Time {
	at := r.movedAt()
	if r.underWay() {
		at = interruption.Later(at, r.known.leaving)
	}
	return at
}

func (r *reconciliation) underWay() bool {
	return r.rec.TurnTaken() && r.rec.Phase != interruption.Waiting && !r.rec.Phase.Over()
}

// secure requests a replacement for a recommended node whose turn has come, and marks the node
// once that is Ready. Not earlier: until then the node loses nothing if there is no capacity,
// the machine does not boot or a group launches none, and is of use meanwhile. Pods that come
// in the minute that this takes move with the others. An instance that has left its group for a
// replacement that does not come is of no more use.
func (r *reconciliation) secure(ctx context.Context) error {
	r.cancelNoMore()
	status, ok := r.set(ctx, plan.NodeState{Taint: marks.Taint(r.rec), Capacity: plan.PendingCapacity}, plan.Look)
	view := status.View
	switch {
	case !ok: // the drainer wakes us when it knows the pods
		return nil
	case len(view.Homeless())+len(view.Staying) == 0: // nothing needs another home
		return r.begin(ctx, r.rec)
	case len(view.Homeless()) == 0:
		const why = "no pod would leave on a recommendation"
		answer := interruption.Replacement{Backend: provisioner.None, State: provisioner.StateUnsupported, Reason: why}
		switch was := r.known.replacementOf(r.rec); {
		case was != nil && was.Name != "" && (was.State != provisioner.StateFailed || was.Detached):
			answer = *was // requested while pods would have left: the notice must find it, and request no other
		case was == nil || *was != answer:
			r.memory.change(func() { r.known.replacement = &answer }) // it's announced once, however often the write fails
			r.reportReplacement(r.rec, answer, answer)
		}
		return r.pass(ctx, answer, why)
	}
	view.Surged = nil // no replacement pod is made before the replacement is Ready, so none asks for room
	next := r.rec
	if err := r.requestReplacement(ctx, &next, view); err != nil {
		return err
	}
	switch got := *next.Replacement; {
	case got.State == provisioner.StateReady, got.State == provisioner.StateFailed && got.Detached:
		return r.begin(ctx, next)
	case !provisioner.Pending(got.State):
		// Without its name it is decided again.
		return r.pass(ctx, interruption.Replacement{Backend: got.Backend, State: got.State, Reason: got.Reason}, got.Reason)
	case got.Name == "": // not requested yet
		return nil
	}
	if next.Begun.IsZero() {
		next.Begun = time.Now().UTC()
	} else if !replacementMoved(r.rec.Replacement, next.Replacement) {
		return nil
	}
	return r.progress(ctx, next)
}

// pass leaves a node in service that no pod leaves for its replacement, gives its turn to the next in
// line, and tries again after a while. The node keeps its turn until the record says that it was passed over.
func (r *reconciliation) pass(ctx context.Context, answer interruption.Replacement, why string) error {
	if r.rec.Returns() {
		return r.dropRecommendation(ctx, why)
	}
	if was := r.rec.Replacement; was == nil || *was != answer || !r.rec.Begun.IsZero() {
		rec := r.rec.Undone()
		rec.Replacement = &answer
		if err := r.progress(ctx, rec); err != nil {
			return err
		}
		text := "no replacement, node stays in service"
		if answer.Name != "" {
			text = "node stays in service, replacement kept for a notice"
		}
		r.fields(r.opts.Logger.Info()).Str("reason", why).Msg(text)
	}
	r.stopDrain(r.node.Name, r.known)
	r.opts.Turns.Remove(r.node.Name)
	r.memory.change(func() {
		r.known.replacement, r.known.retry, r.known.retryFor = &answer, time.Now().Add(rebalanceLook), r.rec.Event
	})
	r.lookAgain(r.known.retry)
	return nil
}
