package handler

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// scheduledStart is when the drain for the record's scheduled events begins: long enough
// before the first window for the pods to leave without hurry. It is zero where there is no
// such event.
func (h *Handler) scheduledStart(rec interruption.Record) (start time.Time) {
	for _, a := range rec.Announcements() {
		if a.Kind == interruption.ScheduledEvent {
			start = earlier(start, h.startOf(a))
		}
	}
	return start
}

func (h *Handler) startOf(a interruption.Announcement) time.Time {
	if a.Deadline == nil {
		return a.Received
	}
	return a.Deadline.Add(-h.opts.ScheduledLead)
}

// scheduledDue reports whether the record has a scheduled event whose drain has to begin,
// or to have begun.
func (h *Handler) scheduledDue(rec interruption.Record) bool {
	start := h.scheduledStart(rec)
	return !start.IsZero() && !time.Now().Before(start)
}

// returned reports whether the instance runs again after what it was drained for. Ready is
// asked for too: until then pods would come and wait.
func returned(node *corev1.Node, rec interruption.Record) bool {
	return rec.Phase != interruption.Waiting && rec.Phase != interruption.Released &&
		rec.Returned(node.Status.NodeInfo.BootID) && isReady(node)
}

// comeBack undoes what an instance was drained for that has come back. A scheduled event
// whose time has not come yet stands still.
func (h *Handler) comeBack(ctx context.Context, node *corev1.Node, k *known, rec interruption.Record) (time.Duration, error) {
	rest, _, left := rec.Drop(func(a interruption.Announcement) bool {
		return a.Kind != interruption.ScheduledEvent || !time.Now().Before(h.startOf(a))
	})
	if !left {
		return h.callOff(ctx, node, k, rec)
	}
	rest.Phase = interruption.Waiting
	return h.standDown(ctx, node, k, rec, rest)
}
