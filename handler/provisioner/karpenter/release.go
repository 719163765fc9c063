package karpenter

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
)

// Release hands the node back to Karpenter, which ends it without another look at its pods:
// the NodeClaim is deleted, and marked with the time at which Karpenter's patience with the
// node's pods ends, the record's deadline or now. A node that Karpenter did not make is not
// touched, nor one whose instance comes back. It is idempotent: what is gone or being deleted
// counts as released.
func (b *Backend) Release(ctx context.Context, node *corev1.Node, rec interruption.Record) error {
	if r := own(rec); r != nil {
		b.keeper.markDrained(r.Name)
	}
	name, uid, ok := ownerClaim(node)
	if !ok || rec.ComesBack() {
		return nil
	}
	until := time.Now()
	if d := rec.DeadlineTime(); d.After(until) {
		until = d
	}
	err := b.release(ctx, name, uid, until)
	if reason, ok := unavailable(err); ok {
		if b.sayOnce(reason) {
			b.log.Warn().Str("node", node.Name).Str("nodeclaim", name).Str("reason", reason).Msg("node not released")
		}
		return nil
	}
	return err
}

func (b *Backend) release(ctx context.Context, name string, uid types.UID, until time.Time) error {
	// The UID in the patch is a precondition: it cannot be changed, and with another the API
	// server calls the custom resource invalid.
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"annotations":{%q:%q}}}`, uid, terminationTimestamp, until.UTC().Format(time.RFC3339))
	_, err := b.client.Resource(nodeClaimResource).Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: fieldManager})
	switch {
	case isMissing(err):
		return nil
	case apierrors.IsInvalid(err), apierrors.IsConflict(err):
		// Another claim of that name, or a patch that lost the race too often.
		if now, getErr := b.fresh(ctx, name); getErr != nil || (now != nil && now.UID == uid) {
			return fmt.Errorf("patch NodeClaim %q: %w", name, err)
		}
		return nil
	case err != nil:
		return asUnavailable("patch NodeClaims", fmt.Errorf("patch NodeClaim %q: %w", name, err))
	}
	err = b.client.Resource(nodeClaimResource).Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if err != nil && !isMissing(err) && !apierrors.IsConflict(err) {
		return asUnavailable("delete NodeClaims", fmt.Errorf("delete NodeClaim %q: %w", name, err))
	}
	return nil
}
