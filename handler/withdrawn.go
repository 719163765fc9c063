package handler

import (
	"spot-handler/handler/interruption"
)

// withdraw judges a notice that takes back an earlier one.
func (h *Handler) withdraw(old interruption.Record, has bool, n interruption.Notice) (interruption.Record, interruption.Verdict) {
	if !has {
		return interruption.Record{}, interruption.Ignored
	}
	rest, found, left := old.Withdraw(n)
	switch {
	case !found:
		return old, interruption.Duplicate
	case !left:
		rest.Canceled = true
	}
	return rest, interruption.Accepted
}
