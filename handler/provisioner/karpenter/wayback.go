package karpenter

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
)

// The way back. An on-demand replacement stands in for a spot node: when it may go back, it is
// recommended as EC2 recommends a node for rebalance, but by us, and for a spot instance in the
// pool that it stands in for. What follows is what follows a recommendation: in its turn a spot NodeClaim is
// requested, its pods are surged once that is Ready, and the on-demand NodeClaim is deleted. If there is no spot
// instance, nothing has happened.
//
//	          calm                                 turn, Ready                    drained
//	 held ────────────► recommended by ourselves ─────────────► pods go back ──────────────► deleted
//	  ▲                            │                                 │
//	  └────────────────────────────┴─────────────────────────────────┘
//	      put off: no spot instance, the new node is lost, or cancelled

const (
	// shortestPutOff is the least time between two attempts: a cancelled recommendation stays off for as
	// long, and a pool that has launched none is avoided for as long.
	shortestPutOff = offerings.Lately
	// longestPutOff bounds it, however old the replacement is.
	longestPutOff = 4 * time.Hour
)

// wayBack is what it depends on when a replacement goes back.
type wayBack struct {
	pool  string        // that it stands in for
	since time.Time     // when it was requested, which is when its spot node was interrupted
	calm  time.Duration // that it stays, and that an offering must have lost nothing before it goes there

	tried time.Time // when the last attempt came to nothing; zero: there was none
	cause string    // why, if that is known

	field field
	last  map[offerings.Offering]time.Time // when each offering last lost a node, in whatever pool
}

// stay is until when the replacement stays on demand, and why. If that is not after now, it may go back. It
// has no side effects and reads no clock.
func (w wayBack) stay(now time.Time) (until time.Time, why string) {
	until, why = w.since.Add(w.calm), fmt.Sprintf("its spot node was interrupted within %s", w.calm)
	if !w.tried.IsZero() {
		if again := w.tried.Add(w.putOff()); again.After(until) {
			until, why = again, cameToNothing(w.tried)
			if w.cause != "" {
				why += ": " + w.cause
			}
		}
	}
	lost := w.field.within(w.last, now.Add(-w.calm))
	if _, ok := offerings.CalmOf(w.field.of, lost, w.field.open); !ok {
		if calm := w.firstCalm(lost); calm.After(until) {
			until, why = calm, fmt.Sprintf("every instance type and zone of NodePool %s has lost a node within %s", w.pool, w.calm)
		}
	}
	return until, why
}

// putOff is how long after an attempt the next one follows: the older the replacement, the longer.
func (w wayBack) putOff() time.Duration {
	return min(max(w.tried.Sub(w.since)/2, w.calm, shortestPutOff), max(longestPutOff, w.calm))
}

// cameToNothing says that the attempt of that time did.
func cameToNothing(tried time.Time) string {
	return "the last attempt to go back, at " + tried.UTC().Format(time.RFC3339) + ", came to nothing"
}

// shownCause is why the attempt of that time came to nothing, as a leader before this one has shown it on the
// Node; empty if none has.
func shownCause(node *corev1.Node, tried time.Time) string {
	if cause, shown := strings.CutPrefix(HeldOf(node).Why, cameToNothing(tried)+": "); shown {
		return cause
	}
	return ""
}

// firstCalm is when the first of the lost offerings is calm again.
func (w wayBack) firstCalm(lost []offerings.Offering) (first time.Time) {
	for _, o := range lost {
		first = interruption.Earlier(first, w.last[o].Add(w.calm))
	}
	return first
}

// field are the offerings that a pool can be asked for.
type field struct {
	types, zones provisioner.Constraint
	of           []offerings.Offering // that are known
	open         bool                 // there are types beyond those
}

// fieldOf is what the requirements allow: what they name or, if they name none, what the pool has had.
func fieldOf(requirements []requirement, had []offerings.Offering) field {
	f := field{
		types: constraintOn(corev1.LabelInstanceTypeStable, requirements),
		zones: constraintOn(corev1.LabelTopologyZone, requirements),
	}
	types, zones := f.types.Named(), f.zones.Named()
	f.open = len(types) == 0
	for _, o := range had {
		if f.open {
			types = append(types, o.Type)
		}
		if f.zones.In == nil {
			zones = append(zones, o.Zone)
		}
	}
	for _, t := range distinct(types) {
		for _, z := range distinct(zones) {
			if o := (offerings.Offering{Type: t, Zone: z}); f.allows(o) {
				f.of = append(f.of, o)
			}
		}
	}
	return f
}

func (f field) allows(o offerings.Offering) bool {
	return f.types.Allows(o.Type) && f.zones.Allows(o.Zone)
}

// within are the field's offerings that have lost a node since that time.
func (f field) within(last map[offerings.Offering]time.Time, since time.Time) (lost []offerings.Offering) {
	for o, at := range last {
		if at.After(since) && f.allows(o) {
			lost = append(lost, o)
		}
	}
	return lost
}

// wayBackOf is what is known of the way back of a replacement that stands in for the pool.
func (k *keeper) wayBackOf(claim *Claim, node *corev1.Node, pool *nodePool, calm time.Duration) (w wayBack, known bool) {
	w = wayBack{
		pool:  pool.Name,
		since: claim.CreationTimestamp.Time,
		calm:  calm,
		field: fieldOf(pool.Spec.Template.Spec.Requirements, k.b.opts.Offerings.Had(pool.Name)),
	}
	w.last, known = k.b.opts.Offerings.LastLosses(time.Now().Add(-calm))
	if node != nil {
		w.tried = triedToReturn(node)
		w.cause = cmp.Or(k.held.causeOf(node.Name), shownCause(node, w.tried))
	}
	return w, known
}

// triedToReturn is when the last way back of the node was given up; zero if none was.
func triedToReturn(node *corev1.Node) (at time.Time) {
	for _, a := range interruption.ParsePast(node.Annotations[interruption.PastAnnotation]) {
		if a.Source == interruption.Return {
			at = interruption.Later(at, a.Off)
		}
	}
	return at
}

// bringBack recommends a replacement's node for a spot instance in the pool that it stands in for.
func (k *keeper) bringBack(ctx context.Context, claim *Claim, node *corev1.Node, pool string) (hold, error) {
	if node == nil {
		return hold{again: heldCheck}, nil
	}
	now := time.Now().UTC()
	verdict, err := k.b.opts.Return(ctx, interruption.Notice{
		Kind:       interruption.RebalanceRecommendation,
		Source:     interruption.Return,
		EventID:    fmt.Sprintf("return-%s-%d", claim.Name, now.Unix()),
		InstanceID: nodes.InstanceID(node),
		NodeName:   node.Name,
		Noticed:    now,
		Received:   now,
	})
	if err != nil {
		return hold{}, fmt.Errorf("recommend node %q for the way back: %w", claim.Status.NodeName, err)
	}
	switch verdict {
	case interruption.Accepted:
	case interruption.Unmanaged: // --managed-nodes selects spot nodes alone, for example
		return hold{why: ": its node is not managed by spot-handler"}, nil
	default:
		return hold{again: heldCheck, until: now.Add(heldCheck), why: "its node cannot be recommended: " + string(verdict)}, nil
	}
	return hold{again: heldCheck, until: now, why: "it goes back to NodePool " + pool}, nil
}

// leftToKarpenter says why a replacement's node is not ours to bring back; empty if it is.
func leftToKarpenter(claim *Claim, node *corev1.Node) string {
	switch {
	case !claim.DeletionTimestamp.IsZero():
		return reasonReplacing
	case node != nil && hasTaint(node, disruptedTaint):
		return reasonDisrupting
	}
	return ""
}

// wayBackLost says why pods had better not go to the replacement of a node that goes back to spot, though
// it is coming or Ready; empty if they can.
func (b *Backend) wayBackLost(rec interruption.Record, r interruption.Replacement) string {
	if !rec.Returns() || r.State == provisioner.StateFailed {
		return ""
	}
	claim, _ := b.claims.get(r.Name)
	if claim == nil {
		return "" // it is not known, or in use and no longer watched
	}
	if r.State == provisioner.StateReady && !claim.DeletionTimestamp.IsZero() {
		return "NodeClaim " + r.Name + " is being deleted"
	}
	node, ok := b.opts.Node(claim.Status.NodeName)
	if !ok || !nodes.HasRecord(node) {
		return ""
	}
	own, err := nodes.Record(node)
	if err == nil && own.Kind == interruption.ScheduledEvent && own.Phase == interruption.Waiting {
		return "" // days ahead
	}
	return "its new node " + node.Name + " is interrupted itself"
}

// returnOrder is an order of a spot instance, of no offering that was lost within calm, in the pool that the
// node stands in for. It takes all pods that move, or says in against why nothing comes of it.
func (lost replacedNode) returnOrder(c candidate) claimOrder {
	o := claimOrder{candidate: c, lost: lost, until: lost.protectedUntil(c)}
	s := newShape(c.pool, lost.source, lost.node)
	if reason := s.need(requirement{Key: capacityTypeLabel, Operator: "In", Values: []string{spot}}); reason != "" {
		o.against = "has no spot instances"
		return o
	}
	o.fit = fitTo(s, lost.need)
	if len(o.fit.out) > 0 {
		o.against = "does not take all pods: " + o.fit.remark()
		return o
	}
	if !lost.avoidLosses(s) {
		o.against = fmt.Sprintf("has no type and zone for these pods that lost nothing within %s", lost.calm)
		return o
	}
	o.fit.needed = s.needed
	o.ask = lost.ask(s, o.fit.need)
	o.sized()
	return o
}

// avoidLosses narrows the shape to offerings that have lost nothing, or reports that there are none.
func (lost replacedNode) avoidLosses(s *shape) bool {
	have := slices.Concat(s.given, s.needed)
	f := fieldOf(have, lost.had)
	calm, ok := offerings.CalmOf(f.of, f.within(lost.last, time.Time{}), f.open)
	if !ok {
		return false
	}
	var more []requirement
	if len(calm.WithoutTypes) > 0 {
		more = append(more, requirement{Key: corev1.LabelInstanceTypeStable, Operator: "NotIn", Values: calm.WithoutTypes})
	}
	if len(calm.WithoutZones) > 0 {
		more = append(more, requirement{Key: corev1.LabelTopologyZone, Operator: "NotIn", Values: calm.WithoutZones})
	}
	if calm.Zone != "" {
		more = append(more, requirement{Key: corev1.LabelTopologyZone, Operator: "In", Values: []string{calm.Zone}})
	}
	if !leavesTypes(have, more...) {
		return false
	}
	for _, r := range more {
		if s.need(r) != "" {
			return false
		}
	}
	return true
}
