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
//	cordon   ─► Noticed ───────────────────────────────► undone after the TTL
//	replace  ─► Waiting ─► Noticed ─► Replacing ─► ...   the drain begins when the replacement is Ready
//	            in line    its turn        └───────────► undone after the TTL, if there is none
//
// A notice can upgrade the record in place at any time; the rules here then no longer apply.

const (
	// rebalanceLook is how often we look at a recommended node if nothing happens: its pool's
	// policy may have changed, or its pool grown, or there may be room for its replacement by
	// now. None of that is urgent.
	rebalanceLook = time.Minute

	// policyRetry is when to read the policy again after that failed.
	policyRetry = 10 * time.Second
)

// rebalance moves on a node that is only recommended for rebalance.
func (v *visit) rebalance(ctx context.Context) (done bool, err error) {
	if v.rec.Kind != interruption.RebalanceRecommendation {
		return false, nil
	}
	lapse := v.lapseAt()
	switch {
	case !lapse.IsZero() && !time.Now().Before(lapse):
		return true, v.dropRecommendation(ctx, "EC2 has left the instance alone, and nothing was replaced")
	case v.rec.Phase.Over():
		v.leaveLine(v.node.Name)
		v.lookAgain(lapse)
		return v.finish(ctx)
	case v.due(): // so near that the recommendation no longer matters
		v.leaveLine(v.node.Name)
		if v.rec.Phase == interruption.Waiting {
			return true, v.begin(ctx)
		}
		return v.drain(ctx)
	case v.rec.TurnTaken():
		v.opts.Turns.Stand(v.node, v.rec)
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
	turn, again, next, err := v.opts.Turns.Turn(ctx, v.node, v.rec)
	if next != "" {
		v.Enqueue(next)
	}
	if err != nil || !turn {
		v.lookAgainIn(again)
		v.lookAround()
		return true, err
	}
	return true, v.begin(ctx)
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
	rest, _, stands := v.rec.Withdraw(interruption.Notice{Kind: interruption.RebalanceRecommendation})
	if !v.known.off { // else it was logged when that began
		v.tell(v.opts.Logger.Info()).Str("reason", why).Msg("rebalance recommendation dropped")
	}
	v.leaveLine(v.node.Name)
	if !stands {
		return v.undo(ctx, nil)
	}
	rest.Phase = interruption.Waiting
	return v.undo(ctx, &rest)
}

// lapseAt is when to undo what a recommendation has set on a node; zero means never. It is for
// nodes that were left as they are: once a node has a replacement, its pods have moved.
func (v *visit) lapseAt() time.Time {
	if v.opts.RebalanceTTL == 0 || v.node.DeletionTimestamp != nil || v.replaced() || v.due() {
		return time.Time{}
	}
	at := v.rec.Received
	for _, t := range []*time.Time{v.rec.Begun, v.rec.Ended} {
		if t != nil && t.After(at) {
			at = *t
		}
	}
	return at.Add(v.opts.RebalanceTTL)
}

// replaced reports whether something has taken the node's place.
func (v *visit) replaced() bool {
	switch r := v.known.replacementOf(v.rec); {
	case r == nil:
		return false
	case r.Backend == provisioner.ASG && r.Name != "":
		return true // its instance has left the group, or is about to
	default:
		return r.State == provisioner.StateReady
	}
}
