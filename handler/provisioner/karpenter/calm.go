package karpenter

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
)

// CalmAnnotation on a NodePool says how long EC2 must have announced nothing about the offerings that
// it has had, in whatever pool, before Karpenter may consolidate the on-demand replacements of its
// nodes. It is a duration from 0, which is off, to LongestHold, and overrides the operator's setting.
const CalmAnnotation = "spot-handler/calm"

const (
	// DefaultCalm: in public traces of spot fleets, two thirds or more of those that had been quiet
	// for five minutes lost instances again within half an hour. With a wait of thirty minutes pods go back
	// about a third as often, or less; longer waits cost on-demand hours, and save few more moves.
	DefaultCalm = 30 * time.Minute

	// LongestHold is how old a replacement can be and still be held: a pool that is never calm does
	// not keep workloads on demand for good.
	LongestHold = 24 * time.Hour

	// heldCheck is how often a held replacement is checked, and the time between two of a pool that
	// are given back: each is some pods that move.
	heldCheck = time.Minute
)

// calmOf is how long the pool has to be calm. A value that is not understood counts as none.
func (b *Backend) calmOf(pool *nodePool) time.Duration {
	value := pool.Annotations[CalmAnnotation]
	if value == "" {
		return b.opts.Calm
	}
	calm, err := time.ParseDuration(value)
	if err != nil || calm < 0 || calm > LongestHold {
		b.misunderstood(pool, reasonWrongCalm, fmt.Sprintf("annotation %s is %s: want a duration from 0s to %s; --calm counts",
			CalmAnnotation, interruption.Clip(strconv.Quote(value)), LongestHold))
		return b.opts.Calm
	}
	return calm
}

// holds reports whether what replaces the node is held until the node's pool is calm. A process of
// one node knows of no other losses.
func (b *Backend) holds(lost lostNode) bool {
	_, isSpot := offerings.Of(lost.node)
	return !b.opts.SingleNode && isSpot && offerings.Takes(lost.rec) && lost.source != nil && b.calmOf(lost.source) > 0
}

// isHeld reports whether the replacement that the candidate gives is held: it is on demand, and
// Karpenter would move its pods back to spot.
func (lost lostNode) isHeld(c candidate) bool {
	_, consolidates := c.pool.consolidates()
	return lost.holds && c.capacity != spot && hasNoOnDemand(c.pool, lost) == "" &&
		consolidates && c.pool.Spec.Disruption.ConsolidationPolicy != "WhenEmpty"
}

// heldClaims are the replacements that are held, and whose turn it was to be given back. The next
// process begins with none: it finds them by their annotations.
type heldClaims struct {
	seconds prometheus.Counter

	mu      sync.Mutex
	counted map[string]time.Time // until when each claim is counted
	given   map[string]time.Time // when each pool's last was given back
}

func newHeldClaims(reg prometheus.Registerer) *heldClaims {
	return &heldClaims{
		counted: map[string]time.Time{}, given: map[string]time.Time{},
		seconds: promauto.With(reg).NewCounter(prometheus.CounterOpts{
			Name: "spot_handler_held_replacement_seconds_total",
			Help: "Time that on-demand replacements were kept from consolidation until their spot pools were calm, of all together.",
		}),
	}
}

// count adds the time since the claim was counted last, and reports whether it is held from now on.
func (h *heldClaims) count(claim string, held bool) (begins bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last, counted := h.counted[claim]
	if counted {
		h.seconds.Add(time.Since(last).Seconds())
	}
	if delete(h.counted, claim); held {
		h.counted[claim] = time.Now()
	}
	return held && !counted
}

// turn is zero if one of the pool's may be given back now, else when to ask again.
func (h *heldClaims) turn(pool string, every time.Duration) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if wait := time.Until(h.given[pool].Add(every)); wait > 0 {
		return wait
	}
	h.given[pool] = time.Now()
	return 0
}

// hold says when to check a replacement again whose pods have come, and that is held until the pool
// that it stands in for is calm. Zero means that it is not held, or no longer, and why.
func (k *keeper) hold(ctx context.Context, claim *Claim) (again time.Duration, why string, err error) {
	source, longest := claim.Annotations[StandsInAnnotation], time.Until(claim.CreationTimestamp.Add(LongestHold))
	switch {
	case source == "", claim.Annotations[ProtectedAnnotation] == "": // as an operator removes one to end the hold
		return 0, "", nil
	case k.b.opts.SingleNode: // it was made while the whole fleet was known
		return 0, ": a process of one node holds nothing", nil
	case longest <= 0:
		return 0, fmt.Sprintf(": it has stood in for NodePool %s for %s", source, LongestHold), nil
	}
	pools, err := k.b.pools.Get(ctx, "")
	if err != nil {
		return 0, "", err
	}
	pool := poolNamed(pools, source)
	if pool == nil {
		return 0, ": NodePool " + source + " is gone", nil
	}
	calm := k.b.calmOf(pool)
	if calm == 0 {
		return 0, ": calm is 0 for NodePool " + source, nil
	}
	last, known := k.b.opts.Offerings.LastLoss(source)
	if !known {
		return landingCheck, "", nil
	}
	rest := time.Until(interruption.Later(last, claim.CreationTimestamp.Time).Add(calm))
	if rest <= 0 {
		return k.held.turn(source, min(calm, heldCheck)), fmt.Sprintf(": NodePool %s has been calm for %s", source, calm), nil
	}
	rest = min(rest, longest)
	if ready := claim.since("Initialized"); ready.IsZero() || time.Since(ready) < heldCheck { // pods might still come
		return min(rest, heldCheck), "", nil
	}
	over, err := k.isOver(ctx, claim)
	if pods := 0; over && err == nil {
		if pods, err = k.pods(ctx, claim, cached); pods == 0 {
			return 0, ": no pod is there", err
		}
	}
	return min(rest, heldCheck), "", err
}
