package handler

import "time"

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
