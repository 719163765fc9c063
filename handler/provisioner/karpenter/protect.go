package karpenter

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
)

// unprotect ends a replacement's protection from consolidation as soon as the pods that it
// was made for are there, or no more will come, or the time is over, unless it is held then. Zero
// means that the protection has ended; else it says when to check again.
//
// Karpenter copies the annotation from the claim to its Node once, at registration. The
// Node is cleared first, and our own mark on the claim goes last, as the next process finds
// the claim by it.
func (k *keeper) unprotect(ctx context.Context, claim *Claim) (time.Duration, error) {
	until := claim.protectedUntil()
	ended, err := k.mayUnprotect(ctx, claim, until)
	switch {
	case err != nil:
		return 0, err
	case !ended:
		return max(time.Millisecond, min(time.Until(until), claim.nextLanding(time.Now()))), nil
	}
	again, why, err := k.hold(ctx, claim)
	switch {
	case err != nil:
		return 0, err
	case again > 0:
		if k.held.count(claim.Name, true) {
			k.b.event("NodeClaim", claim.ObjectMeta, false, reasonHeld, "kept from consolidation until NodePool "+claim.Annotations[StandsInAnnotation]+" is calm")
		}
		return again, nil
	}
	if claim.Status.NodeName == "" {
		// It might be registering at this moment, with the claim's earlier annotations.
		if claim.Annotations[doNotDisrupt] == "" {
			return laterCheck, nil
		}
		return laterCheck, k.change(ctx, claim, "annotations", map[string]any{doNotDisrupt: nil})
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null,%q:null}}}`, doNotDisrupt, StandsInAnnotation)
	_, err = k.b.opts.Nodes.Patch(ctx, claim.Status.NodeName, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("patch Node %q: %w", claim.Status.NodeName, err)
	}
	if err := k.change(ctx, claim, "annotations", map[string]any{doNotDisrupt: nil, ProtectedAnnotation: nil, StandsInAnnotation: nil}); err != nil {
		return 0, err
	}
	late := why != "" && time.Since(claim.CreationTimestamp.Time) >= longestHold
	k.b.event("NodeClaim", claim.ObjectMeta, late, reasonUnprotected, "Karpenter may consolidate the replacement again"+why)
	k.b.log.Debug().Str("nodeclaim", claim.Name).Msg("replacement no longer protected")
	return 0, nil
}

// protectedUntil is when the claim's protection ends at the latest.
func (c *Claim) protectedUntil() time.Time {
	until, err := time.Parse(time.RFC3339, c.Annotations[ProtectedAnnotation])
	if err != nil {
		return time.Time{} // edited by somebody
	}
	return until
}

// nextLanding is when to check again for pods that have not landed yet: less and less often, as
// some leave their node only minutes later, and the end of the drain is known at once.
func (c *Claim) nextLanding(now time.Time) time.Duration {
	if c.state() != provisioner.StateReady {
		return laterCheck
	}
	return min(max(landingCheck, now.Sub(c.since("Initialized"))/4), laterCheck)
}

func (k *keeper) mayUnprotect(ctx context.Context, claim *Claim, until time.Time) (bool, error) {
	if !time.Now().Before(until) {
		return true, nil
	}
	if over, err := k.isOver(ctx, claim); over || err != nil || claim.state() != provisioner.StateReady {
		return over, err
	}
	pods, err := k.pods(ctx, claim, cached)
	return err == nil && pods >= claim.wanted(), err
}

// handOver marks a claim as one that no longer needs us.
func (k *keeper) handOver(ctx context.Context, claim *Claim, as string) error {
	return k.change(ctx, claim, "labels", map[string]any{SettledLabel: as})
}

// change changes the annotations or the labels of exactly this claim; nil removes one.
func (k *keeper) change(ctx context.Context, claim *Claim, which string, values map[string]any) error {
	// The UID is a precondition: it cannot be changed.
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"uid": claim.UID, which: values}}) // texts
	u, err := k.b.opts.Dynamic.Resource(nodeClaimResource).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	switch {
	case isMissing(err), apierrors.IsInvalid(err): // it is gone, or another claim by now
		k.b.claims.forget(claim.Name)
		return nil
	case err != nil:
		return fmt.Errorf("patch NodeClaim %q: %w", claim.Name, err)
	}
	k.b.claims.learn(decodeClaim(u))
	return nil
}

// pods counts the pods on the claim's node, except those that run on every node.
func (k *keeper) pods(ctx context.Context, claim *Claim, version string) (int, error) {
	if claim.Status.NodeName == "" {
		return 0, nil
	}
	list, err := k.b.opts.Pods.List(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector("spec.nodeName", claim.Status.NodeName).String(),
		ResourceVersion: version,
	})
	if err != nil {
		return 0, fmt.Errorf("list pods on node %q: %w", claim.Status.NodeName, err)
	}
	n := 0
	for i := range list.Items {
		pod := &list.Items[i]
		if !drain.Finished(pod) && !drain.IsDaemon(pod) && pod.Annotations[corev1.MirrorPodAnnotationKey] == "" {
			n++
		}
	}
	return n, nil
}

// wanted is how many pods the claim was made for.
func (c *Claim) wanted() int {
	n, err := strconv.Atoi(c.Annotations[PodsAnnotation])
	if err != nil {
		return 1
	}
	return max(1, n)
}

// isOver reports whether no more pods will come from the node that the claim replaces: it
// has been drained, or is gone, or is another instance by now.
func (k *keeper) isOver(ctx context.Context, claim *Claim) (bool, error) {
	name := claim.Annotations[NodeAnnotation]
	if name == "" {
		return true, nil
	}
	node, known := k.b.opts.Node(name)
	if !known {
		// Not from a cache: one that is behind might show the Node without its record.
		var err error
		node, err = k.b.opts.Nodes.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("get Node %q: %w", name, err)
		}
	}
	rec, has, err := nodes.Record(node)
	// The record of a node that still waits names its replacement only once that is requested.
	cancelled := rec.Phase == interruption.Waiting && rec.Begun.IsZero() && time.Since(claim.CreationTimestamp.Time) > orphanGrace
	return !has || err != nil || labelValue(rec.Instance) != claim.Labels[ReplacesLabel] || rec.Phase.Over() || cancelled, nil
}

// CalmAnnotation on a NodePool says for how long EC2 must have taken none of its nodes before
// Karpenter may consolidate what replaces them on demand. It is a duration from 0, which is off,
// to longestHold.
const CalmAnnotation = "spot-handler/calm"

const (
	// defaultCalm: in public traces of spot fleets, two thirds or more of those that had been quiet
	// for five minutes lost instances again within half an hour. After thirty minutes about a third
	// as many returns are left, or fewer; longer waits cost on-demand hours, and save few more.
	defaultCalm = 30 * time.Minute

	// longestHold is how old a replacement can be and still be held: a pool that is never calm does
	// not keep workloads on demand for good.
	longestHold = 24 * time.Hour

	// heldCheck is how often a held replacement is checked, and the time between two of a pool that
	// are given back: each is some pods that move.
	heldCheck = time.Minute
)

// calmOf is how long the pool has to be calm. A value that is not understood counts as none.
func (b *Backend) calmOf(pool *nodePool) time.Duration {
	value := pool.Annotations[CalmAnnotation]
	if value == "" {
		return defaultCalm
	}
	calm, err := time.ParseDuration(value)
	if err != nil || calm < 0 || calm > longestHold {
		b.misunderstood(pool, reasonWrongCalm, fmt.Sprintf("annotation %s is %s: want a duration from 0s to %s; %s counts",
			CalmAnnotation, interruption.Clip(strconv.Quote(value)), longestHold, defaultCalm))
		return defaultCalm
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
	source := claim.Annotations[StandsInAnnotation]
	if source == "" {
		return 0, "", nil
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
		return 0, ": NodePool " + source + " has " + CalmAnnotation + "=0", nil
	}
	last, known := k.b.opts.Offerings.LastLoss(source)
	if !known {
		return landingCheck, "", nil
	}
	began := claim.CreationTimestamp.Time
	rest, why := time.Until(interruption.Later(last, began).Add(calm)), fmt.Sprintf(": NodePool %s has been calm for %s", source, calm)
	if most := time.Until(began.Add(longestHold)); most < rest {
		rest, why = most, fmt.Sprintf(": NodePool %s has not been calm for %s in %s", source, calm, longestHold)
	}
	if rest <= 0 {
		return k.held.turn(source, min(calm, heldCheck)), why, nil
	}
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
