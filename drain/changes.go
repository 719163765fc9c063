package drain

import (
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A pod that leaves is seen three or four times on its way out, and most of that does not
// matter, as it was we who sent it away. When each change had the node planned again, two
// thousand pods that left a hundred nodes cost as much processor time for plans as for
// everything else.

// quietFor is how long a change that does not concern the node's other pods waits until the
// node is planned again. It delays what is reported of the drain, never an eviction or the
// drain's end.
const quietFor = 500 * time.Millisecond

// changed has the node planned again after a pod has come, changed or gone: at once, in a moment if the
// pod only goes on leaving, or not at all if no plan reads what has changed.
func (s *session) changed(was, is *corev1.Pod) {
	switch {
	case is == nil:
		s.departed()
	case was == nil || was.UID != is.UID:
		s.drainer.opts.Notify(s.node)
	case same(was, is):
	case is.DeletionTimestamp == nil || IsSurged(was) != IsSurged(is):
		s.drainer.opts.Notify(s.node)
	case Finished(is) && !Finished(was):
		s.departed()
	default:
		s.notifySoon()
	}
}

// same reports whether nothing that Lean keeps has changed.
func same(a, b *corev1.Pod) bool {
	as := *a
	as.ResourceVersion = b.ResourceVersion
	return reflect.DeepEqual(&as, b)
}

// departed has the node planned again after a pod has gone: in a moment, or at once if it
// was the last, or the last besides our own.
func (s *session) departed() {
	s.mu.Lock()
	in := s.in
	s.mu.Unlock()
	if newPlanner(time.Time{}, Situation{Interruption: in, Policy: s.drainer.opts.Policy, Pods: s.pods()}).others {
		s.notifySoon()
		return
	}
	s.drainer.opts.Notify(s.node)
}

// notifySoon calls Notify in a moment, once for everything that happens until then.
func (s *session) notifySoon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.soon {
		return
	}
	s.soon = true
	time.AfterFunc(quietFor, func() {
		s.note(func() { s.soon = false })
		if s.ctx.Err() == nil {
			s.drainer.opts.Notify(s.node)
		}
	})
}

// catchUpLocked takes in which pods are leaving or have gone since the last plan.
func (s *session) catchUpLocked(pods []*corev1.Pod) {
	p := planner{Situation: Situation{Interruption: s.in}}
	for _, t := range s.tracked {
		t.gone = true
	}
	for _, pod := range pods {
		if t := s.tracked[pod.UID]; t != nil && p.notOurs(pod) == "" {
			t.gone = false
			if pod.DeletionTimestamp != nil {
				t.evicted, t.refusal = true, ""
			}
		}
	}
}
