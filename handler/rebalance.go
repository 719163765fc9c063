package handler

import (
	"context"
	"time"

	"spot-handler/handler/interruption"
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
		v.leaveLine(v.node.Name)
		v.lookAgain(lapse)
		return v.finish(ctx)
	case v.due(): // so near that the recommendation no longer matters
		v.leaveLine(v.node.Name)
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
		v.leaveLine(v.node.Name)
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
	turn, next := v.opts.Turns.Turn(v.node, standing)
	if next != "" {
		v.Enqueue(next)
	}
	switch {
	case !turn:
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
		v.leaveLine(v.node.Name)
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
		v.tell(v.opts.Logger.Info()).Str("reason", why).Msg("rebalance recommendation dropped")
	}
	v.leaveLine(v.node.Name)
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
	at := v.rec.Received
	for _, t := range []*time.Time{v.rec.Begun, v.rec.Ended} {
		if t != nil {
			at = interruption.Later(at, *t)
		}
	}
	if v.rec.TurnTaken() && v.rec.Phase != interruption.Waiting && !v.rec.Phase.Over() {
		at = interruption.Later(interruption.Later(at, v.known.first), v.known.moved)
	}
	return at
}
