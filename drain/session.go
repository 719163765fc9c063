package drain

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/fair"
	"spot-handler/drain/rewatch"
	"spot-handler/handler/interruption"
)

// session is the drain of one node: a watch of its pods, and what has become of
// each since the drain began.
type session struct {
	drainer *Drainer
	node    string
	watch   *rewatch.Watch[*corev1.Pod]
	opened  func() // gives its place among those that open back
	stop    context.CancelFunc
	ctx     context.Context // ends with stop
	began   time.Time

	mu      sync.Mutex
	in      Interruption
	tracked map[types.UID]*tracked
	begun   bool
	emptied time.Time          // when the last pod had gone
	known   time.Time          // when its pods were first known
	ready   time.Time          // since when the replacement is Ready; zero if it is not
	off     bool               // cancelled: nothing more is begun
	working int                // how many tasks are under way
	soon    bool               // Notify is about to be called for the node
	said    map[string]bool    // of whom, that they ask for something meaningless
	answers map[types.UID]When // of pods to notices

	gathered   Situation // the last, which is not changed any more
	gatheredAt time.Time
}

// planWithin is how long a watch that has shown the node's pods keeps its place for want of a plan.
const planWithin = time.Second

// startSession opens the watch of a node's pods, in its turn. It ends with ctx or stop.
//
// The watch keeps its place until there is a first plan, or until others have been patient. A node
// without pods ends its watch with that plan, so the watches of such nodes do not pile up.
func startSession(ctx context.Context, d *Drainer, node string) *session {
	opened := make(chan struct{})
	s := &session{
		drainer: d, node: node, began: time.Now(), tracked: map[types.UID]*tracked{}, said: map[string]bool{}, answers: map[types.UID]When{},
		opened: sync.OnceFunc(func() { close(opened) }),
	}
	s.ctx, s.stop = context.WithCancel(ctx)
	s.watch = newPodWatch(d.opts, node, s.changed, func() {
		time.AfterFunc(planWithin, s.opened)
		d.opts.Notify(node)
	})
	d.nodeWatches.Do(s.ctx, fair.Task{Tenant: node, Run: func() {
		go s.watch.Run(s.ctx)
		select {
		case <-opened:
		case <-time.After(patience):
		case <-s.ctx.Done():
		}
	}})
	return s
}

// end stops the watch and what is shared with other nodes.
func (s *session) end() {
	s.stop()
	s.drainer.budgets.leave(s.node)
	s.drainer.deployments.leave(s.node)
	s.drainer.attached.leave(s.node)
	s.decideGangs(time.Now(), nil)
}

// decideGangs takes in when the gangs of the node's pods leave, as far as these decide it.
func (s *session) decideGangs(now time.Time, own map[Gang]Departure) {
	for _, node := range s.drainer.gangs.Report(now, s.node, own) {
		s.drainer.opts.Notify(node)
	}
}

func (s *session) synced() bool { return s.watch.HasSynced() }

func (s *session) pods() []*corev1.Pod { return s.watch.All() }

// advance takes in a plan, and returns the tasks that are due and not yet under way.
func (s *session) advance(now time.Time, view View) (Status, []*task) {
	in := view.of
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
			s.drainer.queue.due(t.task, d.due())
		}
		switch {
		case d.Action == Wait:
			t.sendLocked(evicted)
			s.begun = true
		case t.sent != notSent:
		case d.waits:
			s.begun = s.begun || in.Capacity == ReadyCapacity && IsSurged(d.Pod)
			if t.task == nil {
				t.task = s.task(t, d)
				s.drainer.queue.park(t.task)
			}
		case d.Action != Later:
			s.begun = s.begun || d.Action == Evict || d.Action == Force || d.Action == SurgeNow && in.Capacity == ReadyCapacity
			if t.task == nil {
				t.task = s.task(t, d)
				due = append(due, t.task)
			} else if d.Action == Force && !t.forcing {
				t.forcing = true
				s.drainer.queue.wakeTask(t.task) // it waits for its budget
			} else {
				s.drainer.queue.unpark(t.task)
			}
		}
	}
	for uid, t := range s.tracked {
		t.gone = !present[uid]
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
		if CutShort(pod) { // an earlier leader has evicted it late
			t.sent = cutShort
		}
		s.tracked[pod.UID] = t
	}
	t.pod = pod
	return t
}

// reportMeaningless does so once for each pod, or for its namespace.
func (s *session) reportMeaningless(d Decision) {
	who := string(d.Pod.UID)
	if d.OfNamespace {
		who = d.Pod.Namespace
	}
	if d.Meaningless != "" && !s.said[who] {
		s.said[who] = true
		s.drainer.opts.Events.AnnotationMeaningless(s.node, d.Pod, d.Meaningless, d.OfNamespace)
	}
}

func (s *session) task(t *tracked, d Decision) *task {
	return &task{session: s, pod: d.Pod, state: t, latest: d.due(), workload: d.workload}
}

// enter begins a task's step, unless the drain has ended or was cancelled.
func (s *session) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.off || s.ctx.Err() != nil {
		return false
	}
	s.working++
	return true
}

func (s *session) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.working--
	if s.off && s.working == 0 {
		s.drainer.opts.Notify(s.node)
	}
}

// cancel lets no further step begin, and reports whether none is under way.
func (s *session) cancel() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.off = true
	return s.working == 0
}

// concerns takes in what the drain is about now.
func (s *session) concerns(in Interruption) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case in.Capacity != ReadyCapacity:
		s.ready = time.Time{}
	case s.ready.IsZero():
		s.ready = time.Now()
	}
	if s.in != in {
		s.in = in
		s.drainer.starts.stale()
	}
}

// interruption is what the drain is about; false before the first plan.
func (s *session) interruption() (Interruption, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.in, s.in != Interruption{} && s.synced()
}

// has reports whether one of the pods is on the node.
func (s *session) has(pods map[types.UID]bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid := range s.tracked {
		if pods[uid] {
			return true
		}
	}
	return false
}

// isSurged reports whether the watch has shown that the pod is surged.
func (s *session) isSurged(pod *corev1.Pod) bool {
	current, ok := s.current(pod)
	return ok && IsSurged(current)
}

// fix notes that a pod cannot be surged, and reports whether the same was noted of others.
func (s *session) fix(pod *tracked, reason string) (others bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tracked {
		others = others || t.fixed != ""
	}
	pod.fixed = reason
	return others
}

// refused notes that a pod's eviction was refused, for seconds if it is blocked. Both reports are
// about what is new: that any eviction was refused, of which its plan now depends on, and the latter.
func (s *session) refused(t *tracked, answer answer, isBlocked bool) (first, blocked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, blocked = t.refusal == "", isBlocked && !t.blocked
	t.refusal, t.ofBudget, t.blocked = answer.reason, answer.ofBudget, isBlocked
	return first, blocked
}

// sentAway notes that a pod is gone or on its way, and returns why that was refused before.
func (s *session) sentAway(t *tracked, by exit) (refusal string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	refusal = t.refusal
	t.task = nil
	t.sendLocked(by)
	return refusal
}

// note changes what is known of a pod.
func (s *session) note(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}
