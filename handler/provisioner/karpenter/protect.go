package karpenter

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/provisioner"
)

// unprotect ends a replacement's protection from consolidation as soon as the pods that it
// was made for are there, or no more will come, or the time is over. Zero means that the
// protection has ended; else it says when to look again.
//
// Karpenter copies the annotation from the claim to its Node once, at registration. The
// Node is cleared first, and our own mark on the claim goes last, as the next process finds
// the claim by it.
func (k *keeper) unprotect(ctx context.Context, claim *nodeClaim) (time.Duration, error) {
	until := claim.protectedUntil()
	ended, err := k.mayUnprotect(ctx, claim, until)
	switch {
	case err != nil:
		return 0, err
	case !ended:
		return max(time.Millisecond, min(time.Until(until), claim.nextLanding(time.Now()))), nil
	}
	if claim.Status.NodeName == "" {
		// It might be registering at this moment, with the claim's earlier annotations.
		if claim.Annotations[doNotDisrupt] == "" {
			return laterCheck, nil
		}
		return laterCheck, k.annotate(ctx, claim, map[string]any{doNotDisrupt: nil}, nil)
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, doNotDisrupt)
	_, err = k.b.nodes.Patch(ctx, claim.Status.NodeName, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("patch Node %q: %w", claim.Status.NodeName, err)
	}
	if err := k.annotate(ctx, claim, map[string]any{doNotDisrupt: nil, ProtectedAnnotation: nil}, nil); err != nil {
		return 0, err
	}
	k.b.events.claim(claim.Name, claim.UID, false, reasonUnprotected, "Karpenter may consolidate the replacement again")
	k.b.log.Debug().Str("nodeclaim", claim.Name).Msg("replacement no longer protected")
	return 0, nil
}

// protectedUntil is when the claim's protection ends at the latest.
func (c *nodeClaim) protectedUntil() time.Time {
	until, err := time.Parse(time.RFC3339, c.Annotations[ProtectedAnnotation])
	if err != nil {
		return time.Time{} // edited by somebody
	}
	return until
}

// nextLanding is when to look again for pods that have not landed yet: less and less often, as
// some leave their node only minutes later, and the end of the drain is told at once.
func (c *nodeClaim) nextLanding(now time.Time) time.Duration {
	if c.state() != provisioner.StateReady {
		return laterCheck
	}
	ready := meta.FindStatusCondition(c.Status.Conditions, "Initialized")
	if ready.LastTransitionTime.IsZero() {
		return landingCheck
	}
	return min(max(landingCheck, now.Sub(ready.LastTransitionTime.Time)/4), laterCheck)
}

func (k *keeper) mayUnprotect(ctx context.Context, claim *nodeClaim, until time.Time) (bool, error) {
	if !time.Now().Before(until) || k.isDrained(claim) {
		return true, nil
	}
	if claim.state() == provisioner.StateReady {
		if pods, err := k.pods(ctx, claim, cached); err != nil || pods >= claim.wanted() {
			return err == nil, err
		}
	}
	return k.isOver(ctx, claim)
}

// handOver marks a claim as one that no longer needs us.
func (k *keeper) handOver(ctx context.Context, claim *nodeClaim, as string) error {
	if err := k.annotate(ctx, claim, nil, map[string]any{SettledLabel: as}); err != nil {
		return err
	}
	k.forget(claim.Name)
	return nil
}

// annotate changes annotations and labels of exactly this claim; nil removes one.
func (k *keeper) annotate(ctx context.Context, claim *nodeClaim, annotations, labels map[string]any) error {
	meta := map[string]any{"uid": claim.UID} // a precondition: it cannot be changed
	if annotations != nil {
		meta["annotations"] = annotations
	}
	if labels != nil {
		meta["labels"] = labels
	}
	patch, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return fmt.Errorf("patch NodeClaim %q: %w", claim.Name, err)
	}
	u, err := k.b.client.Resource(nodeClaimResource).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	switch {
	case isMissing(err), apierrors.IsInvalid(err): // it is gone, or another claim by now
		k.b.claims.forget(claim.Name)
		return nil
	case err != nil:
		return asUnavailable("patch NodeClaims", fmt.Errorf("patch NodeClaim %q: %w", claim.Name, err))
	}
	if now := decodeClaim(u); !k.b.claims.single && now.Labels[SettledLabel] == "" {
		k.b.claims.learn(now.slim())
	}
	return nil
}
