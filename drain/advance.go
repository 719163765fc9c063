package drain

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
)

// advance takes in a plan, and returns the tasks that are due and not yet under way.
func (s *session) advance(now time.Time, view plan.View) (Status, []*task) {
	in := view.For
	volumes, known := s.volumes(view)
	s.mu.Lock()
	defer s.mu.Unlock()

	var due []*task
	status := Status{View: view, Moved: true}
	next := func(at time.Time) {
		if at.After(now) {
			status.Next = interruption.Earlier(status.Next, at)
		}
	}
	present := make(map[types.UID]bool, len(view.Plan))
	for _, d := range view.Plan {
		if d.Stays {
			status.Moved = false
			next(d.Until)
		}
		if !d.Moves() {
			continue
		}
		s.reportMeaningless(d)
		present[d.Pod.UID] = true
		status.Moved = false
		t := s.trackLocked(d.Pod)
		next(d.At)
		next(d.Until)
		if t.refusal != "" {
			next(d.Latest)
		}
		if t.blocked && t.refusal != "" {
			status.Refusal = t.refusal
		}
		if t.task != nil {
			s.drainer.queue.due(t.task, d.Due())
		}
		switch {
		case d.Action == plan.Wait:
			t.sendLocked(evicted)
			s.begun = true
		case t.sent != notSent:
		case d.Waits:
			s.begun = s.begun || in.Capacity == plan.ReadyCapacity && plan.IsSurged(d.Pod)
			if t.task == nil {
				t.task = s.task(t, d)
				s.drainer.queue.park(t.task)
			}
		case d.Action != plan.Hold:
			s.begun = s.begun || d.Action == plan.Evict || d.Action == plan.Force || d.Action == plan.SurgeNow && in.Capacity == plan.ReadyCapacity
			if t.task == nil {
				t.task = s.task(t, d)
				due = append(due, t.task)
			} else if d.Action == plan.Force && !t.forcing {
				t.forcing = true
				s.drainer.queue.wakeTask(t.task) // it waits for its budget
			} else {
				s.drainer.queue.unpark(t.task)
			}
		}
	}
	for uid, t := range s.tracked {
		if t.gone = !present[uid]; !t.gone {
			t.goneAt = time.Time{}
		} else if t.goneAt.IsZero() {
			t.goneAt = now
		}
	}
	if !status.Moved {
		s.emptied = time.Time{}
	} else if s.emptied.IsZero() {
		s.emptied = now
	}
	status.Done = status.Moved && (known && len(volumes) == 0 || in.Deadline.IsZero() && now.Sub(s.emptied) >= detachFor)
	if status.Moved && !status.Done && in.Deadline.IsZero() {
		next(s.emptied.Add(detachFor))
	}
	status.Volumes = len(volumes)
	status.Total, status.Begun = len(s.tracked), s.begun
	return status, due
}

// trackLocked returns what is known of a pod that has to leave.
func (s *session) trackLocked(pod *corev1.Pod) *tracked {
	t := s.tracked[pod.UID]
	if t == nil {
		t = &tracked{}
		if plan.CutShort(pod) { // an earlier leader has evicted it late
			t.sent = cutShort
		}
		s.tracked[pod.UID] = t
	}
	t.pod = pod
	return t
}

// reportMeaningless does so once for each pod, or for its namespace.
func (s *session) reportMeaningless(d plan.Decision) {
	who := string(d.Pod.UID)
	if d.OfNamespace {
		who = d.Pod.Namespace
	}
	if d.Meaningless != "" && !s.said[who] {
		s.said[who] = true
		s.drainer.opts.Events.AnnotationMeaningless(s.node, d.Pod, d.Meaningless, d.OfNamespace)
	}
}

func (s *session) task(t *tracked, d plan.Decision) *task {
	return &task{session: s, pod: d.Pod, state: t, latest: d.Due(), workload: d.Deployment}
}
