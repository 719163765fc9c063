package handler

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// outOfService is the taint that says of a Node that its machine is shut down. The control
// plane then deletes the pods for good and detaches their volumes without waiting for the
// kubelet.
// https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown
var outOfService = corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}

// isShutDown reports whether the taint may be set. On a machine that lives it would kill
// pods and tear volumes away from under them, so that four things have to come together:
// EC2 has said of this very instance, by an id that it never gives twice, that it is
// terminated, which is final; the message was not minutes old while the Node was Ready, see
// staleAfter, nor has the Node become Ready since; the kubelet has stopped to report, or has reported its own end, so that the
// Node is not Ready; and nobody deletes the Node already, as who does has its own way to
// end it. A machine that has stopped is not enough: it comes back.
func isShutDown(node *corev1.Node, rec interruption.Record) bool {
	return rec.Terminated() && !isReady(node) && node.DeletionTimestamp == nil
}

// lives reports whether the taint was set, and the kubelet reports all the same.
func lives(node *corev1.Node, rec interruption.Record) bool {
	return isReady(node) && slices.Contains(rec.Ours, interruption.OursOutOfService)
}

// shutDown sets the taint as soon as it may be, and takes it back from a Node that is Ready
// after all. It reports whether the Node has changed.
func (h *Handler) shutDown(ctx context.Context, node *corev1.Node, k *known, rec interruption.Record) (wrote bool, err error) {
	var patch []byte
	_, tainted := withTaint(node.Spec.Taints, outOfService)
	switch {
	case isShutDown(node, rec) && tainted:
		patch, err = markPatch(node, &rec)
	case lives(node, rec):
		kept := rec
		kept.Ours = slices.DeleteFunc(slices.Clone(rec.Ours), func(o string) bool { return o == interruption.OursOutOfService })
		rec.Ours = []string{interruption.OursOutOfService}
		patch, err = restorePatch(node, rec, kept.String())
		rec = kept
	default:
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("mark node out of service: %w", err)
	}
	patched, err := h.opts.Nodes.Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case apierrors.IsConflict(err): // as the control plane taints a Node that is not Ready: that comes back too
		return true, nil
	case err != nil:
		return false, fmt.Errorf("mark node out of service: %w", err)
	}
	h.mu.Lock()
	k.rec, k.resourceVersion = rec, patched.ResourceVersion
	h.mu.Unlock()
	if slices.Contains(rec.Ours, interruption.OursOutOfService) {
		tell(h.opts.Logger.Info(), node.Name, rec).Msg("instance terminated, node marked out of service")
	} else {
		tell(h.opts.Logger.Warn(), node.Name, rec).Msg("node is ready though its instance was said to be terminated, out of service no more")
	}
	return true, nil
}

// ranSince reports whether the node has become Ready after that time: what was said of the
// instance then was about its last run.
func ranSince(node *corev1.Node, at time.Time) bool {
	since, _ := nodes.ReadySince(node)
	return since.After(at)
}

// scaledDown is the taint of a Node that Cluster Autoscaler drains, and whose instance it
// then terminates. It leaves the Node to the cloud controller.
// https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/utils/taints/taints.go
const scaledDown = "ToBeDeletedByClusterAutoscaler"

// idle reports whether a state of the instance is no news: the drain is over, as is usual
// when an interrupted instance ends, or somebody ends the Node, as is usual when one is
// scaled down. That an instance is gone for good is news, as its volumes may be attached
// still, and so is that it will not come back.
func idle(node *corev1.Node, old, merged interruption.Record, has bool) bool {
	switch {
	case node.DeletionTimestamp != nil:
		return !has || old.Phase.Over()
	case !has:
		return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == scaledDown })
	}
	return old.Phase.Over() && !merged.Terminated() && merged.ComesBack() == old.ComesBack()
}
