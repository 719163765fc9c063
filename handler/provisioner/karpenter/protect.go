package karpenter

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
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
	hold, err := k.decideHold(ctx, claim)
	if err != nil {
		return 0, err
	}
	if hold.again > 0 {
		if k.held.count(claim.Name, claim.Annotations[StandsInAnnotation]) {
			until := "kept from consolidation until it can go back to NodePool " + claim.Annotations[StandsInAnnotation]
			k.b.event("NodeClaim", claim.ObjectMeta, corev1.EventTypeNormal, reasonHeld, until)
		}
		return hold.again, k.show(ctx, claim, hold)
	}
	if claim.Status.NodeName == "" {
		// It might be registering at this moment, with the claim's earlier annotations.
		if claim.Annotations[doNotDisrupt] == "" {
			return laterCheck, nil
		}
		return laterCheck, k.change(ctx, claim, "annotations", map[string]any{doNotDisrupt: nil})
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null,%q:null,%q:null}}}`, doNotDisrupt, StandsInAnnotation, HeldAnnotation)
	_, err = k.b.opts.Nodes.Patch(ctx, claim.Status.NodeName, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("patch Node %q: %w", claim.Status.NodeName, err)
	}
	unprotected := map[string]any{doNotDisrupt: nil, protectedAnnotation: nil, StandsInAnnotation: nil}
	if err := k.change(ctx, claim, "annotations", unprotected); err != nil {
		return 0, err
	}
	eventType := corev1.EventTypeNormal
	if hold.why != "" && time.Since(claim.CreationTimestamp.Time) >= LongestHold {
		eventType = corev1.EventTypeWarning
	}
	k.b.event("NodeClaim", claim.ObjectMeta, eventType, reasonUnprotected, "Karpenter may consolidate the replacement again"+hold.why)
	k.b.log.Debug().Str("nodeclaim", claim.Name).Msg("replacement no longer protected")
	return 0, nil
}

// protectedUntil is when the claim's protection ends at the latest.
func (c *Claim) protectedUntil() time.Time {
	until, err := time.Parse(time.RFC3339, c.Annotations[protectedAnnotation])
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
	if time.Since(claim.since("Initialized")) < landingCheck {
		return false, nil
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
	claims := k.b.opts.Dynamic.Resource(nodeClaimResource)
	u, err := claims.Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
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
		if !plan.Finished(pod) && !plan.IsDaemon(pod) && pod.Annotations[corev1.MirrorPodAnnotationKey] == "" {
			n++
		}
	}
	return n, nil
}

// wanted is how many pods the claim was made for.
func (c *Claim) wanted() int {
	n, err := strconv.Atoi(c.Annotations[podsAnnotation])
	if err != nil {
		return 1
	}
	return max(1, n)
}

// isOver reports whether no more pods will come from the node that the claim replaces: it
// has been drained, or is gone, or is another instance by now.
func (k *keeper) isOver(ctx context.Context, claim *Claim) (bool, error) {
	name := claim.Annotations[nodeAnnotation]
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
	rec, err := nodes.Record(node)
	// The record of a node that still waits names its replacement only once that is requested.
	cancelled := rec.Phase == interruption.Waiting && rec.Begun.IsZero() && time.Since(claim.CreationTimestamp.Time) > orphanGrace
	return err != nil || labelValue(rec.Instance) != claim.Labels[ReplacesLabel] || rec.Phase.Over() || cancelled, nil
}
