package handler

import "time"

// earlier is the earlier of two times, where zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// later is the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// until is the time to t, but at least a millisecond: zero means never.
func until(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return max(time.Millisecond, time.Until(t))
}
