package handler

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// returned reports whether the instance runs again after what it was drained for. Ready is
// asked for too: until then pods would come and wait.
func returned(node *corev1.Node, rec interruption.Record) bool {
	since, ready := nodes.ReadySince(node)
	return ready && rec.Phase != interruption.Waiting && rec.Phase != interruption.Released &&
		rec.Returned(node.Status.NodeInfo.BootID, since)
}

// comeBack undoes what an instance was drained for that has come back. A scheduled event
// whose time has not come yet stands still.
func (h *Handler) comeBack(ctx context.Context, node *corev1.Node, k *known, rec interruption.Record) (time.Duration, error) {
	rest, left := h.notYet(rec)
	if !left {
		return h.callOff(ctx, node, k, rec)
	}
	return h.standDown(ctx, node, k, rec, rest)
}

// notYet is what stands of a record whose instance has come back: scheduled events whose
// time has not come. left is false where there is none.
func (h *Handler) notYet(rec interruption.Record) (rest interruption.Record, left bool) {
	rest, _, left = rec.Drop(func(a interruption.Announcement) bool {
		return a.Kind != interruption.ScheduledEvent || !time.Now().Before(h.startOf(a))
	})
	rest.Phase = interruption.Waiting
	return rest, left
}

// lastRun takes from a record what was of a run of the instance that is over. It is for a
// notice about the next run that comes before the Node is Ready, or before anybody has
// undone the last one: it must not be taken for the same interruption, and undone with it.
// What was set on the Node is ours still.
func (h *Handler) lastRun(old interruption.Record) (rest interruption.Record, left bool) {
	rest, left = h.notYet(old)
	if !left {
		rest.Past = interruption.PastOf(old)
	}
	return undone(rest), left
}

// undone is a record of which nothing has been done, but for what is set on the Node.
func undone(rec interruption.Record) interruption.Record {
	rec.Replacement, rec.Pods, rec.Ended, rec.Begun, rec.Boot = nil, nil, nil, nil, ""
	return rec
}
