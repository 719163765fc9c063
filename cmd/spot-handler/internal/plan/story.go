package plan

import (
	"fmt"
	"time"

	"spot-handler/drain"
)

// story is what becomes of a pod of a lost node.
type story struct {
	Pod
	waitsFor string
	since    time.Time
	longest  time.Duration
}

// tell notes what is planned for a pod. Those that DaemonSets and kubelets made, and finished ones,
// have no story.
func (w *world) tell(l *lostNode, p *pod, d drain.Decision) {
	if p.story == nil {
		if d.Action == drain.Skip && (drain.IsDaemon(p.Pod) || p.controller == nil && p.workload == nil && len(p.OwnerReferences) > 0) {
			return
		}
		p.story = &story{Pod: Pod{
			Namespace: p.Namespace, Name: p.Name, Workload: WorkloadOf(p.Pod), Node: l.Name(),
			Grace: Seconds(drain.Grace(p.Pod).Seconds()), Surge: d.Surge, NoSurge: d.NoSurge, Outcome: Graceful,
		}}
		if !d.At.IsZero() {
			p.story.EvictBy = w.offsetOf(d.At)
		}
		if own, left := p.Spec.TerminationGracePeriodSeconds, p.DeletionGracePeriodSeconds; p.DeletionTimestamp != nil && own != nil && left != nil && *left < *own {
			p.story.Outcome, p.story.Reason = Truncated, "it is ending with less than its grace period already"
		}
		if !p.heir && !l.Underway { // else nobody has asked about it
			w.stories = append(w.stories, p.story)
		}
	}
	switch {
	case d.Action == drain.Skip, d.Stays:
		p.story.Outcome, p.story.Reason = Stays, d.Reason
	case d.Action == drain.Later:
		p.story.waits(w, d.Reason)
	case d.Action == drain.Wait:
		p.story.waits(w, "")
	}
	if p.story.Outcome == Stays && d.Moves() {
		p.story.Outcome, p.story.Reason = Graceful, ""
	}
}

// waits notes what the pod waits for from now on; "" is nothing. What it waits for longest is told.
func (s *story) waits(w *world, what string) {
	if what == s.waitsFor {
		return
	}
	if took := w.now.Sub(s.since); s.waitsFor != "" && took > s.longest && took >= worthTelling {
		s.longest, s.WaitsFor = took, s.waitsFor
	}
	s.waitsFor, s.since = what, w.now
}

// worthTelling is how long a pod has to wait for something to have waited for it.
const worthTelling = 500 * time.Millisecond

// leaves notes that the pod's eviction or deletion begins.
func (s *story) leaves(w *world, d drain.Decision) {
	s.waits(w, "")
	s.Leaves = w.offsetOf(w.now)
	if d.Grace != nil {
		s.Outcome = Truncated
		s.Reason = fmt.Sprintf("its grace period of %d s does not fit: %d s are left", int(s.Grace), *d.Grace)
	}
}
