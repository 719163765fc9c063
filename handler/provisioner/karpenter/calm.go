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
func (b *Backend) holds(lost replacedNode) bool {
	_, isSpot := offerings.Of(lost.node)
	return !b.opts.SingleNode && isSpot && offerings.Takes(lost.rec) && lost.source != nil && b.calmOf(lost.source) > 0
}

// isHeld reports whether the replacement that the candidate gives is held: it is on demand, and
// Karpenter would move its pods back to spot.
func (lost replacedNode) isHeld(c candidate) bool {
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
		counted: map[string]time.Time{},
		given:   map[string]time.Time{},
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
	delete(h.counted, claim)
	if held {
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

// hold is what is decided about a replacement that might be held.
type hold struct {
	again time.Duration // when to check it again; 0: it is not held, or no longer
	why   string        // the end of a sentence: why it is no longer held; can be empty
}

// decideHold decides about a replacement whose pods have come: it is held until the pool that it
// stands in for is calm.
func (k *keeper) decideHold(ctx context.Context, claim *Claim) (hold, error) {
	source := claim.Annotations[StandsInAnnotation]
	longest := time.Until(claim.CreationTimestamp.Add(LongestHold))
	switch {
	case source == "", claim.Annotations[protectedAnnotation] == "": // as an operator removes one to end the hold
		return hold{}, nil
	case k.b.opts.SingleNode: // it was made while the whole fleet was known
		return hold{why: ": a process of one node holds nothing"}, nil
	case longest <= 0:
		return hold{why: fmt.Sprintf(": it has stood in for NodePool %s for %s", source, LongestHold)}, nil
	}
	pools, err := k.b.pools.Get(ctx, "")
	if err != nil {
		return hold{}, err
	}
	pool := poolNamed(pools, source)
	if pool == nil {
		return hold{why: ": NodePool " + source + " is gone"}, nil
	}
	calm := k.b.calmOf(pool)
	if calm == 0 {
		return hold{why: ": calm is 0 for NodePool " + source}, nil
	}
	last, known := k.b.opts.Offerings.LastLoss(source)
	if !known {
		return hold{again: landingCheck}, nil
	}
	rest := time.Until(interruption.Later(last, claim.CreationTimestamp.Time).Add(calm))
	if rest <= 0 {
		return hold{
			again: k.held.turn(source, min(calm, heldCheck)),
			why:   fmt.Sprintf(": NodePool %s has been calm for %s", source, calm),
		}, nil
	}
	unused, err := k.staysEmpty(ctx, claim)
	if err != nil {
		return hold{}, err
	}
	if unused {
		return hold{why: ": no pod is there"}, nil
	}
	return hold{again: min(rest, longest, heldCheck)}, nil
}

// staysEmpty reports whether a replacement has no pod, and will get none from the node that it replaces.
func (k *keeper) staysEmpty(ctx context.Context, claim *Claim) (bool, error) {
	if time.Since(claim.usableSince()) < heldCheck {
		return false, nil // pods might still come
	}
	over, err := k.isOver(ctx, claim)
	if err != nil || !over {
		return false, err
	}
	pods, err := k.pods(ctx, claim, cached)
	return err == nil && pods == 0, err
}
