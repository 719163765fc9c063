package status

import (
	"fmt"
	"slices"
	"time"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// waitsFor is what an interruption waits for, in a clause; empty if it is over and done with.
func (l *look) waitsFor() string {
	rec := l.rec
	switch {
	case rec.Canceled, l.node.Annotations[interruption.CancelAnnotation] == "true" && rec.Phase != interruption.Released:
		return "spot-handler to undo what it had set: called off"
	case rec.Phase == interruption.Waiting && rec.Kind == interruption.RebalanceRecommendation:
		return l.turn()
	case rec.Phase == interruption.Waiting:
		return "its time: --scheduled-lead before its window"
	case rec.Phase.Over():
		return l.afterwards()
	case l.known && len(l.here) == 0 && rec.Phase != interruption.Noticed:
		return "volumes to be detached"
	case rec.Phase == interruption.Noticed && rec.Replacement == nil:
		return "the drain to begin"
	case rec.Phase == interruption.Draining && rec.Pods != nil && rec.Pods.Refusal != "" && (!l.known || l.counts.Terminating < len(l.here)):
		return "an eviction that was refused: " + rec.Pods.Refusal
	case rec.Replacement != nil && provisioner.Pending(rec.Replacement.State):
		return fmt.Sprintf("its replacement %s to be Ready", rec.Replacement.Name)
	case !l.known:
		return "its pods to leave"
	}
	return l.departures()
}

// departures is what the pods on the node wait for.
func (l *look) departures() string {
	switch c := l.counts; {
	case c.Surged > 0:
		return "successors of " + pods(c.Surged)
	case c.Terminating > 0:
		return fmt.Sprintf("%s to end%s", pods(c.Terminating), l.lastEnd())
	case len(l.here) > 0:
		return "the turn or the latest safe start of " + pods(len(l.here))
	}
	return "the drain to begin"
}

// lastEnd is when the last terminating pod ends at the latest.
func (l *look) lastEnd() string {
	var last time.Time
	for _, pod := range l.here {
		if at := pod.DeletionTimestamp; at != nil && at.After(last) {
			last = at.Time
		}
	}
	if left := last.Sub(l.now); left > 0 {
		return fmt.Sprintf(", %.0f s at most", left.Seconds())
	}
	return ""
}

func pods(n int) string {
	if n == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", n)
}

// afterwards is what a drain that is over still waits for.
func (l *look) afterwards() string {
	hook := slices.ContainsFunc(l.rec.Hooks, func(h interruption.Hook) bool { return !h.Done })
	switch {
	case hook:
		return "its lifecycle hook to be completed"
	case l.rec.Rehearsed() && !l.rec.Release:
		return "the node to be put back into service"
	case l.rec.ComesBack():
		return "its instance to come back"
	case l.rec.Phase == interruption.Released:
		return ""
	}
	return "the node to be handed back"
}

// turn says how many nodes of the pool come first.
func (l *look) turn() string {
	begun, ahead := l.line.Ahead(l.node.Name)
	return fmt.Sprintf("its turn in its pool: %d under way, %d ahead of it", begun, ahead)
}
