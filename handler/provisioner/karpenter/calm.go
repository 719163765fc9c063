package karpenter

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/offerings"
)

// CalmAnnotation on a NodePool says how long the on-demand replacements of its nodes stay, and how long EC2
// must have announced nothing about an offering before they go back there. It is a duration from 0, which
// leaves the way back to Karpenter, to LongestHold, and overrides the operator's setting.
const CalmAnnotation = "spot-handler/calm"

const (
	// DefaultCalm: in public traces of spot fleets, two thirds or more of those that had been quiet
	// for five minutes lost instances again within half an hour. With a wait of thirty minutes pods go back
	// about a third as often, or less; longer waits cost on-demand hours, and save few more moves.
	DefaultCalm = 30 * time.Minute

	// LongestHold is how old a replacement can be and still be kept from Karpenter's consolidation: a pool
	// that is never calm, or that has no spot instance, does not keep workloads on demand for good.
	LongestHold = 24 * time.Hour

	// heldCheck is how often a held replacement is checked, and the time between two of a pool that are
	// left to Karpenter. Those that we bring back wait in the line of recommended nodes instead.
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

// isHeld reports whether the replacement that the candidate gives is held: it is on demand, and is to go
// back to spot by us. If that is left to Karpenter, it is held only where that would move its pods.
func (lost replacedNode) isHeld(c candidate) bool {
	return lost.holds && c.capacity != spot && hasNoOnDemand(c.pool, lost) == "" && (lost.returns || c.pool.movesPods())
}

// movesPods reports whether Karpenter's consolidation moves pods off the pool's nodes, and not only removes
// those that are empty.
func (p *nodePool) movesPods() bool {
	_, consolidates := p.consolidates()
	return consolidates && p.Spec.Disruption.ConsolidationPolicy != "WhenEmpty"
}

// heldClaims are the replacements that are held, and whose turn it was to go back. The next process begins
// with none: it finds them by their annotations.
type heldClaims struct {
	seconds prometheus.Counter

	mu      sync.Mutex
	counted map[string]heldClaim // by claim
	given   map[string]time.Time // when each pool's last went back
	causes  map[string]string    // why the last attempt of a node came to nothing
}

// heldClaim is one of them.
type heldClaim struct {
	pool  string    // that it stands in for
	until time.Time // up to when its time is counted
}

func newHeldClaims(reg prometheus.Registerer, of *offerings.Memory) *heldClaims {
	h := &heldClaims{
		counted: map[string]heldClaim{},
		given:   map[string]time.Time{},
		causes:  map[string]string{},
		seconds: promauto.With(reg).NewCounter(prometheus.CounterOpts{
			Name: "spot_handler_held_replacement_seconds_total",
			Help: "Time that on-demand replacements were kept from consolidation until they could go back to spot, of all together.",
		}),
	}
	if reg != nil && of != nil {
		reg.MustRegister(h.shares(of.Standing))
	}
	return h
}

// shares is the metric of the part of each pool that is held.
func (h *heldClaims) shares(standing func(pool string) int) prometheus.Collector {
	share := prometheus.NewDesc(
		"spot_handler_held_share",
		"Part of a spot pool's nodes that on-demand replacements stand in for, if there are any.",
		[]string{"pool"}, nil,
	)
	return prometheus.CollectorFunc(func(ch chan<- prometheus.Metric) {
		held := h.byPool()
		held[""] += 0 // so that a query always finds a series
		for pool, n := range held {
			ch <- prometheus.MustNewConstMetric(share, prometheus.GaugeValue, float64(n)/float64(max(1, n+standing(pool))), pool)
		}
	})
}

// byPool is how many are held for each pool.
func (h *heldClaims) byPool() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := map[string]int{}
	for _, c := range h.counted {
		held[c.pool]++
	}
	return held
}

// count adds the time since the claim was counted last. With a pool it is held for that from now on, and
// count reports whether that begins.
func (h *heldClaims) count(claim, pool string) (begins bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last, counted := h.counted[claim]
	if counted {
		h.seconds.Add(time.Since(last.until).Seconds())
	}
	delete(h.counted, claim)
	if pool != "" {
		h.counted[claim] = heldClaim{pool, time.Now()}
	}
	return pool != "" && !counted
}

// turn is zero if one of the pool's may go back now, else when to ask again.
func (h *heldClaims) turn(pool string, every time.Duration) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if wait := time.Until(h.given[pool].Add(every)); wait > 0 {
		return wait
	}
	h.given[pool] = time.Now()
	return 0
}

// maxCauses bounds what is remembered of attempts that came to nothing.
const maxCauses = 5000

// note remembers why the node's attempt to go back came to nothing.
func (h *heldClaims) note(node, cause string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.causes) >= maxCauses {
		clear(h.causes)
	}
	h.causes[node] = interruption.Clip(cause)
}

// causeOf is what is known of the node's last attempt.
func (h *heldClaims) causeOf(node string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.causes[node]
}

// hold is what is decided about a replacement that might be held.
type hold struct {
	again time.Duration // when to check it again; 0: it is not held, or no longer
	until time.Time     // when it goes back at the earliest
	why   string        // why it is held; if it no longer is, the end of a sentence that says why, which can be empty
}

// decideHold decides about a replacement whose pods have come: it stays until it may go back to the pool that
// it stands in for.
func (k *keeper) decideHold(ctx context.Context, claim *Claim) (hold, error) {
	source := claim.Annotations[StandsInAnnotation]
	switch {
	case source == "", claim.Annotations[protectedAnnotation] == "": // as an operator removes one to end the hold
		return hold{}, nil
	case k.b.opts.SingleNode: // it was made while the whole fleet was known
		return hold{why: ": a process of one node holds nothing"}, nil
	}
	node, err := k.nodeOf(ctx, claim)
	if err != nil {
		return hold{}, err
	}
	busy, returning := interrupted(node)
	if returning {
		return hold{again: heldCheck}, nil
	}
	pools, err := k.b.pools.Get(ctx, "")
	if err != nil {
		return hold{}, err
	}
	pool := poolNamed(pools, source)
	longest := time.Until(claim.CreationTimestamp.Add(LongestHold))
	own := poolNamed(pools, claim.Labels[nodePoolLabel])
	switch {
	case pool == nil:
		return hold{why: ": NodePool " + source + " is gone"}, nil
	case longest <= 0 && (k.b.opts.Return == nil || own == nil || own.movesPods()):
		return hold{why: fmt.Sprintf(": it has stood in for NodePool %s for %s", source, LongestHold)}, nil
	}
	calm := k.b.calmOf(pool)
	switch {
	case calm == 0:
		return hold{why: ": calm is 0 for NodePool " + source}, nil
	case busy:
		return hold{again: heldCheck}, nil
	}
	w, known := k.wayBackOf(claim, node, pool, calm)
	if !known {
		return hold{again: landingCheck, until: time.Now().Add(landingCheck), why: "what EC2 has taken is not known yet"}, nil
	}
	unused, err := k.staysEmpty(ctx, claim)
	if err != nil || unused {
		return hold{why: ": no pod is there"}, err
	}
	if until, why := w.stay(time.Now()); time.Until(until) > 0 {
		return hold{again: soonest(time.Until(until), longest), until: until, why: why}, nil
	}
	return k.goBack(ctx, claim, node, pool, calm)
}

// interrupted reports whether the Node has a record, and whether that says that it goes back to spot.
func interrupted(node *corev1.Node) (busy, returning bool) {
	if node == nil || !nodes.HasRecord(node) {
		return false, false
	}
	rec, _ := nodes.Record(node) // one that can't be read names no source
	return true, rec.Returns()
}

// soonest is the least of the times that are to come, and of heldCheck.
func soonest(times ...time.Duration) time.Duration {
	least := heldCheck
	for _, t := range times {
		if t > 0 {
			least = min(least, t)
		}
	}
	return least
}

// goBack brings a replacement back that may go back, in its turn, or leaves that to Karpenter.
func (k *keeper) goBack(ctx context.Context, claim *Claim, node *corev1.Node, pool *nodePool, calm time.Duration) (hold, error) {
	if by := leftToKarpenter(claim, node); by != "" {
		return hold{again: heldCheck, until: time.Now(), why: by}, nil
	}
	if answer, inVain := k.b.inVain.Last(triedAs(pool.Name, spot)); inVain && k.b.opts.Return != nil {
		until := answer.Asked.Add(shortestPutOff)
		return hold{again: soonest(time.Until(until)), until: until, why: "NodePool " + pool.Name + " has just launched no spot instance"}, nil
	}
	if k.b.opts.Return != nil {
		return k.bringBack(ctx, claim, node, pool.Name)
	}
	if wait := k.held.turn(pool.Name, min(calm, heldCheck)); wait > 0 {
		return hold{again: wait, until: time.Now().Add(wait), why: "another of NodePool " + pool.Name + " has just gone back"}, nil
	}
	return hold{why: fmt.Sprintf(": NodePool %s has been calm for %s", pool.Name, calm)}, nil
}

// nodeOf is the claim's Node, or nil if there is none.
func (k *keeper) nodeOf(ctx context.Context, claim *Claim) (*corev1.Node, error) {
	if claim.Status.NodeName == "" {
		return nil, nil
	}
	if node, known := k.b.opts.Node(claim.Status.NodeName); known {
		return node, nil
	}
	node, err := k.b.opts.Nodes.Get(ctx, claim.Status.NodeName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get Node %q: %w", claim.Status.NodeName, err)
	}
	return node, nil
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
