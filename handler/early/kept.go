package early

import (
	"time"

	"spot-handler/handler/interruption"
)

const (
	// maxKept bounds the notices that are kept, at about 500 bytes each, and 8 KB with their
	// messages.
	maxKept = 2000

	// maxGone bounds the instances that are remembered as gone, at about 100 bytes each.
	maxGone = 5000

	// registers is the longest that an instance takes from its launch until it is a Node:
	// Karpenter gives up on a machine after as long.
	// https://github.com/kubernetes-sigs/karpenter/blob/v1.14.1/pkg/controllers/nodeclaim/lifecycle/liveness.go
	registers = 15 * time.Minute
)

// until is when a notice is not worth keeping any more; zero if it never is. A scheduled event
// is days ahead and about machines that have run for long; a state says that the instance is
// going already; and a lifecycle hook is completed without a Node.
func until(n interruption.Notice) time.Time {
	switch n.Kind {
	case interruption.SpotInterruption, interruption.CapacityReservationInterruption, interruption.RebalanceRecommendation:
	default:
		return time.Time{}
	}
	return interruption.Earlier(n.Noticed.Add(registers), n.Deadline)
}

// key names a notice: two announcements about one instance are kept side by side.
type key struct{ instance, event string }

func keyOf(n interruption.Notice) key { return key{n.InstanceID, n.EventID} }

// waiting is a notice that is kept.
type waiting struct {
	notice  interruption.Notice
	verdict interruption.Verdict // of Next, once it is settled; its source has not asked since
	ours    bool                 // the instance is about to be a Node of this cluster
}

// kept holds notices.
type kept map[key]*waiting

// of returns the notices about an instance that are not settled.
func (k kept) of(instance string) []interruption.Notice {
	var list []interruption.Notice
	for key, w := range k {
		if key.instance == instance && w.verdict == "" {
			list = append(list, w.notice)
		}
	}
	return list
}

// least is what can be done without first.
func (k kept) least() *waiting {
	var least *waiting
	for _, w := range k {
		if least == nil || w.lessThan(least) {
			least = w
		}
	}
	return least
}

// lessThan reports whether w matters less than other: it is settled; or it is not known to be
// ours; or it is a mere recommendation; or less is left of its time, in which its Node has not
// appeared so far.
func (w *waiting) lessThan(other *waiting) bool {
	for _, rank := range []func(*waiting) bool{
		func(w *waiting) bool { return w.verdict != "" },
		func(w *waiting) bool { return !w.ours },
		func(w *waiting) bool { return w.notice.Kind == interruption.RebalanceRecommendation },
	} {
		if rank(w) != rank(other) {
			return rank(w)
		}
	}
	return until(w.notice).Before(until(other.notice))
}

// expire drops what is not worth keeping any more, and returns how many of those were never
// settled.
func (k kept) expire(now time.Time) int {
	n := 0
	for key, w := range k {
		if now.Before(until(w.notice)) {
			continue
		}
		if w.verdict == "" {
			n++
		}
		delete(k, key)
	}
	return n
}
