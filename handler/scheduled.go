package handler

import (
	"time"

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
