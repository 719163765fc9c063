package handler

import (
	"time"

	"spot-handler/handler/interruption"
)

// scheduledStart is when the drain for a scheduled event begins: long enough before the
// window for the pods to leave without hurry.
func (h *Handler) scheduledStart(rec interruption.Record) time.Time {
	d := rec.DeadlineTime()
	if d.IsZero() {
		return rec.Received
	}
	return d.Add(-h.opts.ScheduledLead)
}
