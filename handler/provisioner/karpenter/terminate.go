package karpenter

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// Terminate deletes the node's NodeClaim, and marks it with the time at which Karpenter's patience
// with the node's pods ends: the record's deadline, or now if that has passed. If there is none, as
// after a rebalance recommendation, the pods that stay, such as those of DaemonSets, have their own
// grace periods. A node that Karpenter did not make is not touched, nor one whose instance comes
// back. It is idempotent: what is gone or being deleted counts as terminated.
//
// Karpenter calls the mark internal. Of each version that is tested, a story shows that a node whose pods are
// blocked goes when it says. Under one that overlooks the mark, such a node would go when its NodePool's
// terminationGracePeriod or EC2 ends it, as without spot-handler.
func (b *Backend) Terminate(ctx context.Context, node *corev1.Node, rec interruption.Record) error {
	if r := provisioner.Asked(rec, provisioner.Karpenter); r != nil {
		if known, synced := b.claims.get(r.Name); known != nil || !synced {
			b.keeper.queue.AddAfter(r.Name, recordedAfter)
		}
	}
	owner := OwnerClaim(node)
	switch {
	case rec.ComesBack():
		return nil
	case owner == nil && hasTaint(node, unregisteredTaint):
		// Karpenter names the owner in a moment, when it registers the Node of a new instance.
		// https://github.com/kubernetes-sigs/karpenter/blob/v1.14.1/pkg/controllers/nodeclaim/lifecycle/registration.go
		return fmt.Errorf("terminate node %q: Karpenter has not registered it yet", node.Name)
	case owner == nil:
		return nil
	}
	until, err := b.patience(ctx, node, rec)
	if err == nil {
		err = b.terminate(ctx, node, owner, until)
	}
	if reason, ok := unavailable(err); ok {
		if b.said.First(reason) {
			b.log.Warn().Str("node", node.Name).Str("nodeclaim", owner.Name).Str("reason", reason).Msg("NodeClaim of the node not deleted")
		}
		return nil
	}
	return err
}

const (
	// recordedAfter is how long after Terminate the Node in memory says that the drain is over: no more
	// pods come to the replacement.
	recordedAfter = time.Second
	// longestPatience bounds a grace period that is waited for: some pods ask for days.
	longestPatience = time.Hour
	// endsLate is how much later than it says Karpenter's drain gets to a node: it was seen to
	// take 8 s.
	endsLate = 30 * time.Second
)

// patience is when Karpenter must end what is still on the node. From a grace period before that
// time on it deletes a pod, past budgets, with what is left of the period, one second at least.
// https://github.com/kubernetes-sigs/karpenter/blob/v1.14.1/pkg/controllers/node/termination/terminator/terminator.go
func (b *Backend) patience(ctx context.Context, node *corev1.Node, rec interruption.Record) (time.Time, error) {
	now := time.Now()
	if !rec.Deadline.IsZero() {
		return interruption.Later(rec.Deadline, now), nil
	}
	list, err := b.opts.Pods.List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node.Name, ResourceVersion: cached})
	if err != nil {
		return time.Time{}, fmt.Errorf("list pods on node %q: %w", node.Name, err)
	}
	var longest time.Duration
	for i := range list.Items {
		if grace := list.Items[i].Spec.TerminationGracePeriodSeconds; grace != nil {
			longest = max(longest, time.Duration(min(*grace, int64(longestPatience/time.Second)))*time.Second)
		}
	}
	return now.Add(longest + endsLate), nil
}

// terminate marks the NodeClaim and deletes it.
func (b *Backend) terminate(ctx context.Context, node *corev1.Node, owner *metav1.OwnerReference, until time.Time) error {
	marked, err := b.markTerminated(ctx, node, owner, until)
	if err != nil || !marked {
		return err
	}
	preconditions := &metav1.Preconditions{UID: &owner.UID}
	err = b.opts.Dynamic.Resource(nodeClaimResource).Delete(ctx, owner.Name, metav1.DeleteOptions{Preconditions: preconditions})
	if err != nil && !isMissing(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete NodeClaim %q: %w", owner.Name, err)
	}
	return nil
}

// markTerminated marks the NodeClaim with the end of Karpenter's patience. A kubelet that makes its own
// Node can name any owner, so the patch tests which instance the claim says it is. It is false if there
// is nothing to delete: the claim is gone, or is that of another instance.
func (b *Backend) markTerminated(ctx context.Context, node *corev1.Node, owner *metav1.OwnerReference, until time.Time) (bool, error) {
	// There are annotations to add to: Karpenter notes on each claim what it was made from.
	patch := fmt.Appendf(nil, `[{"op":"test","path":"/metadata/uid","value":%q},{"op":"test","path":"/status/providerID","value":%q},`+
		`{"op":"add","path":"/metadata/annotations/%s","value":%q}]`,
		owner.UID, node.Spec.ProviderID, strings.ReplaceAll(terminationTimestamp, "/", "~1"), until.UTC().Format(time.RFC3339))
	claims := b.opts.Dynamic.Resource(nodeClaimResource)
	_, err := claims.Patch(ctx, owner.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	switch {
	case err == nil:
		return true, nil
	case isMissing(err):
		return false, nil
	case apierrors.IsInvalid(err), apierrors.IsConflict(err):
		// Another claim of that name, another's claim, or a patch that lost the race too often.
		now, getErr := b.fresh(ctx, owner.Name)
		switch {
		case getErr == nil && (now == nil || now.UID != owner.UID):
			return false, nil
		case getErr == nil && now.Status.ProviderID != node.Spec.ProviderID:
			b.log.Warn().Str("node", node.Name).Str("nodeclaim", owner.Name).
				Str("reason", "it is "+now.Status.ProviderID).Msg("NodeClaim of the node not deleted")
			return false, nil
		}
	}
	return false, fmt.Errorf("patch NodeClaim %q: %w", owner.Name, err)
}
