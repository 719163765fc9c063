package handler

import (
	"context"
	"time"

	"spot-handler/drain"
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
// What makes no progress for the TTL is undone. A notice can upgrade the record in place at any
// time; the rules here then no longer apply.

const (
	// rebalanceLook is how often we look at a recommended node if nothing happens: its pool's
	// policy may have changed, or its pool grown, or there may be room for its replacement by
	// now. None of that is urgent.
	rebalanceLook = time.Minute

	// policyRetry is when to read the policy again after that failed.
	policyRetry = 10 * time.Second

	// placeShare is the part of the TTL after which a drain without progress loses its place in
	// line: those recommended at the same time as that node must have their turn before their own
	// recommendations lapse.
	placeShare = 4
)

// rebalance moves on a node that is only recommended for rebalance.
func (v *visit) rebalance(ctx context.Context) (done bool, err error) {
	if v.rec.Kind != interruption.RebalanceRecommendation {
		return false, nil
	}
	lapse := v.lapseAt()
	switch {
	case !lapse.IsZero() && !time.Now().Before(lapse):
		why := "EC2 has left the instance alone, and no pod has left for " + v.opts.RebalanceTTL.String()
		if v.rec.Phase == interruption.Waiting {
			why = "EC2 has left the instance alone, and nothing was replaced"
		}
		return true, v.dropRecommendation(ctx, why)
	case v.rec.Phase.Over():
		v.opts.Turns.Leave(v.node.Name)
		v.lookAgain(lapse)
		return v.finish(ctx)
	case v.due(): // so near that the recommendation no longer matters
		v.opts.Turns.Leave(v.node.Name)
		if v.rec.Phase == interruption.Waiting {
			return true, v.begin(ctx, v.rec)
		}
		return v.drain(ctx)
	case v.rec.Phase != interruption.Waiting && v.rec.TurnTaken():
		v.keepPlace()
		done, err = v.drain(ctx)
		v.lookAround()
		return done, err
	}

	rules, err := v.rules()
	if err != nil {
		v.opts.Logger.Debug().Err(err).Str("node", v.node.Name).Msg("read rebalance policy")
		v.lookAgainIn(policyRetry)
		return true, nil
	}
	switch rules.Rebalance {
	case interruption.RebalanceIgnore:
		return true, v.dropRecommendation(ctx, "the policy is to ignore it")
	case interruption.RebalanceCordon:
		v.opts.Turns.Leave(v.node.Name)
		if v.rec.Phase == interruption.Waiting {
			return true, v.mark(ctx, v.rec)
		}
		v.lookAround()
		return true, nil
	}
	return v.standInLine(ctx)
}

// standInLine has a node replaced when its turn comes.
func (v *visit) standInLine(ctx context.Context) (done bool, err error) {
	v.lookAround()
	standing := v.rec
	if retry := v.known.retry; !retry.IsZero() {
		if time.Now().Before(retry) {
			v.lookAgain(retry)
			return true, nil
		}
		standing.Received = retry // those that have not had their turn yet come first
	}
	switch {
	case !v.opts.Turns.Turn(v.node, standing):
		return true, nil
	case v.rec.Phase != interruption.Waiting, v.opts.CordonOnly:
		return true, v.begin(ctx, v.rec)
	}
	return true, v.secure(ctx)
}

// keepPlace keeps the place in line of a node under way while its drain makes progress.
func (v *visit) keepPlace() {
	until := v.quietSince().Add(v.opts.RebalanceTTL / placeShare)
	switch {
	case v.opts.RebalanceTTL == 0:
		v.opts.Turns.Stand(v.node, v.rec)
	case time.Now().Before(until):
		v.opts.Turns.Stand(v.node, v.rec)
		v.lookAgain(until)
	default:
		v.opts.Turns.Leave(v.node.Name)
	}
}

// lookAround makes sure that a recommended node is visited again when its recommendation
// lapses, when a scheduled event is due, and now and then.
func (v *visit) lookAround() {
	rules, _ := v.opts.Rules(v.node, false)
	v.lookAgain(v.lapseAt())
	v.lookAgain(rules.Start(v.rec))
	v.lookAgainIn(rebalanceLook)
}

// dropRecommendation takes the recommendation off a node, and undoes what it had set there. A
// scheduled event of the same instance still stands, and waits for its time again.
func (v *visit) dropRecommendation(ctx context.Context, why string) error {
	rest, stands := v.rec.DropRecommendation(time.Now())
	if !v.known.off { // else it was logged when that began
		v.fields(v.opts.Logger.Info()).Str("reason", why).Msg("rebalance recommendation dropped")
	}
	v.opts.Turns.Leave(v.node.Name)
	if !stands {
		v.rec = rest
		return v.undo(ctx, nil)
	}
	rest.Phase = interruption.Waiting
	return v.undo(ctx, &rest)
}

// lapseAt is when to undo what a recommendation has set on a node; zero means never. A drain
// that has ended with a replacement is not undone: its pods have moved. Nor is that of an
// instance that has left its group, as there is no way back for it.
func (v *visit) lapseAt() time.Time {
	r := v.known.replacementOf(v.rec)
	pending, ready := r != nil && provisioner.Pending(r.State), r != nil && r.State == provisioner.StateReady
	switch {
	case v.opts.RebalanceTTL == 0, v.node.DeletionTimestamp != nil, v.due(), v.rec.Phase.Over() && ready:
		return time.Time{}
	case r != nil && r.Backend == provisioner.ASG && r.Name != "" && (pending || ready):
		return time.Time{}
	}
	return v.quietSince().Add(v.opts.RebalanceTTL)
}

// quietSince is when a recommendation has last made progress. What happened before this process
// had its first look at a drain is not known, and counts as progress.
func (v *visit) quietSince() time.Time {
	at := interruption.Later(interruption.Later(v.rec.Received, v.rec.Begun), v.rec.Ended)
	if v.rec.TurnTaken() && v.rec.Phase != interruption.Waiting && !v.rec.Phase.Over() {
		at = interruption.Later(interruption.Later(at, v.known.first), v.known.moved)
	}
	return at
}

// secure requests a replacement for a recommended node whose turn has come, and marks the node
// once that is Ready. Not earlier: until then the node loses nothing if there is no capacity,
// the machine does not boot or a group launches none, and is of use meanwhile. Pods that come
// in the minute that this takes move with the others.
func (v *visit) secure(ctx context.Context) error {
	view, ok := v.opts.Drainer.Look(ctx, v.node.Name, drain.Interruption{Taint: marks.Taint(v.rec), Capacity: drain.PendingCapacity})
	switch {
	case !ok: // the drainer wakes us when it knows the pods
		return nil
	case len(view.Moving)+len(view.Staying) == 0: // nothing needs another home
		return v.begin(ctx, v.rec)
	case len(view.Moving) == 0:
		const why = "no pod would leave on a recommendation"
		r := interruption.Replacement{Backend: provisioner.None, State: provisioner.StateUnsupported, Reason: why}
		switch was := v.known.replacementOf(v.rec); {
		case was != nil && was.Name != "" && was.State != provisioner.StateFailed:
			r = *was // requested while pods would have left: the notice must find it, and request no other
		case was == nil || *was != r:
			v.reportReplacement(v.rec, r, false)
		}
		return v.pass(ctx, r, why)
	}
	view.Surged = nil // no replacement pod is made before the replacement is Ready, so none asks for room
	next := v.rec
	if err := v.replace(ctx, &next, view); err != nil {
		return err
	}
	switch got := *next.Replacement; {
	case got.State == provisioner.StateReady:
		return v.begin(ctx, next)
	case !provisioner.Pending(got.State):
		// Without its name it is decided again.
		return v.pass(ctx, interruption.Replacement{Backend: got.Backend, State: got.State, Reason: got.Reason}, got.Reason)
	case got.Name == "": // not requested yet
		return nil
	}
	if next.Begun.IsZero() {
		next.Begun = time.Now().UTC()
	} else if !replacementMoved(v.rec.Replacement, next.Replacement) {
		return nil
	}
	return v.progress(ctx, next)
}

// pass leaves a node in service that no pod leaves for its replacement r, gives its turn to the next in
// line, and tries again after a while.
func (v *visit) pass(ctx context.Context, r interruption.Replacement, why string) error {
	v.opts.Drainer.Forget(v.node.Name)
	v.opts.Turns.Leave(v.node.Name)
	v.memory.change(func() {
		v.known.replacement, v.known.retry = &r, time.Now().Add(rebalanceLook)
	})
	v.lookAgain(v.known.retry)
	if was := v.rec.Replacement; was != nil && *was == r && v.rec.Begun.IsZero() {
		return nil // said already
	}
	rec := v.rec.Undone()
	rec.Replacement = &r
	if err := v.progress(ctx, rec); err != nil {
		return err
	}
	text := "no replacement, node stays in service"
	if r.Name != "" {
		text = "node stays in service, replacement kept for a notice"
	}
	v.fields(v.opts.Logger.Info()).Str("reason", why).Msg(text)
	return nil
}
