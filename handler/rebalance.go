package handler

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// A rebalance recommendation says that an instance is at risk. It has no deadline, and EC2
// may never act on it, so that it is followed with judgement:
//
//	ignore   nothing is recorded
//	cordon   ─► Noticed ───────────────────────────────► undone after the TTL
//	replace  ─► Waiting ─► Noticed ─► Replacing ─► ...   the drain begins when the replacement is Ready
//	            in line    its turn        └───────────► undone after the TTL, if there is none
//
// A notice upgrades the record in place at any time; the rules here do not hold then.

// RebalancePolicy says what is done on a rebalance recommendation.
type RebalancePolicy string

const (
	RebalanceIgnore  RebalancePolicy = "ignore"  // nothing
	RebalanceCordon  RebalancePolicy = "cordon"  // record and cordon, no drain
	RebalanceReplace RebalancePolicy = "replace" // drain as soon as a replacement is ready
)

// RebalancePolicies lists every policy.
func RebalancePolicies() []RebalancePolicy {
	return []RebalancePolicy{RebalanceIgnore, RebalanceCordon, RebalanceReplace}
}

const (
	// rebalanceLook is how often a recommended node is looked at if nothing happens: the
	// policy of its pool may have changed, or its pool grown, or there may be room for its
	// replacement by now. None of that hurries.
	rebalanceLook = time.Minute

	// policyRetry is when the policy is asked for again that could not be read.
	policyRetry = 10 * time.Second
)

// rebalancePolicy is what is done on a rebalance recommendation for the node. Where that
// cannot be told at this moment the node is recorded only, as one that is to be replaced
// is, and judged again by whoever reconciles it.
func (h *Handler) rebalancePolicy(node *corev1.Node) RebalancePolicy {
	policy, err := h.ownPolicy(node)
	if err != nil {
		return RebalanceReplace
	}
	return policy
}

// ownPolicy is the policy of the node's pool, else the operator's for all.
func (h *Handler) ownPolicy(node *corev1.Node) (RebalancePolicy, error) {
	if h.opts.RebalancePolicyOf == nil {
		return h.opts.Rebalance, nil
	}
	policy, err := h.opts.RebalancePolicyOf(node)
	if err != nil || policy != "" {
		return policy, err
	}
	return h.opts.Rebalance, nil
}

// foresee reads the policy for a recommendation before its turn to be written has come: a
// read that takes long must not hold up others' notices. What is read is kept for a while.
func (h *Handler) foresee(n interruption.Notice) {
	if n.Kind != interruption.RebalanceRecommendation {
		return
	}
	if node, ok := h.opts.Index.Find(n); ok {
		h.rebalancePolicy(node)
	}
}

// rebalance takes a node one step on that is only recommended for rebalance.
func (h *Handler) rebalance(ctx context.Context, node *corev1.Node, k *known, rec interruption.Record) (time.Duration, error) {
	switch lapse := h.lapseAt(node, k, rec); {
	case !lapse.IsZero() && !time.Now().Before(lapse):
		return h.withdrawRebalance(ctx, node, rec, k, "EC2 has left the instance alone, and nothing was replaced")
	case rec.Phase.Over():
		h.leaveLine(node.Name)
		if rec.Phase == interruption.Released {
			h.opts.Drainer.Forget(node.Name)
			return until(lapse), nil
		}
		return until(lapse), h.release(ctx, node, k, rec)
	case h.scheduledDue(rec): // it has come so near that the recommendation does not matter any more
		h.leaveLine(node.Name)
		if rec.Phase == interruption.Waiting {
			return h.begin(ctx, node, k, rec)
		}
		return h.drain(ctx, node, k, rec)
	case begun(rec):
		h.standInLine(node, rec)
		again, err := h.drain(ctx, node, k, rec)
		return soonest(again, until(h.lapseAt(node, k, rec)), until(h.scheduledStart(rec)), rebalanceLook), err
	}

	policy, err := h.ownPolicy(node)
	if err != nil {
		h.opts.Logger.Debug().Err(err).Str("node", node.Name).Msg("read rebalance policy")
		return policyRetry, nil
	}
	switch policy {
	case RebalanceIgnore:
		return h.withdrawRebalance(ctx, node, rec, k, "the policy is to ignore it")
	case RebalanceCordon:
		h.leaveLine(node.Name)
		if rec.Phase == interruption.Waiting {
			return h.mark(ctx, node, k, rec)
		}
		return soonest(until(h.lapseAt(node, k, rec)), until(h.scheduledStart(rec)), rebalanceLook), nil
	}
	begin, again, err := h.rebalanceTurn(ctx, node, rec)
	if err != nil || !begin {
		return soonest(again, until(h.lapseAt(node, k, rec)), until(h.scheduledStart(rec)), rebalanceLook), err
	}
	return h.begin(ctx, node, k, rec)
}

// begun reports whether a recommended node's turn has come.
func begun(rec interruption.Record) bool {
	return rec.Begun != nil || rec.Phase == interruption.Replacing || rec.Phase == interruption.Draining
}

// drainBy is by when a drain has to be done; zero where there is no hurry.
func (h *Handler) drainBy(rec interruption.Record) time.Time {
	if rec.Kind == interruption.RebalanceRecommendation && !h.scheduledDue(rec) {
		return time.Time{}
	}
	return rec.DeadlineTime()
}

// lapseAt is when what a recommendation has set on a node is undone; zero is never. It is
// for nodes that were left as they are: their pods have moved as soon as there is a
// replacement.
func (h *Handler) lapseAt(node *corev1.Node, k *known, rec interruption.Record) time.Time {
	if h.opts.RebalanceTTL == 0 || node.DeletionTimestamp != nil || replaced(k, rec) || h.scheduledDue(rec) {
		return time.Time{}
	}
	at := rec.Received
	for _, t := range []*time.Time{rec.Begun, rec.Ended} {
		if t != nil {
			at = later(at, *t)
		}
	}
	return at.Add(h.opts.RebalanceTTL)
}

// replaced reports whether there is something in the node's place.
func replaced(k *known, rec interruption.Record) bool {
	r := rec.Replacement
	if k.requested {
		r = &k.replacement
	}
	switch {
	case r == nil:
		return false
	case r.Backend == provisioner.ASG && r.Name != "":
		return true // its instance has left the group, or is about to
	}
	return r.State == provisioner.StateReady
}

// soonest is the least of some times to wait, of which zero is never.
func soonest(waits ...time.Duration) time.Duration {
	var least time.Duration
	for _, d := range waits {
		if d > 0 && (least == 0 || d < least) {
			least = d
		}
	}
	return least
}
