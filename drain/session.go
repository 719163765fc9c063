package drain

import (
	"context"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/fair"
	"spot-handler/drain/plan"
	"spot-handler/drain/rewatch"
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
	going   context.Context // ends with ctx, and when the drain is cancelled
	halt    context.CancelFunc
	began   time.Time

	mu      sync.Mutex
	in      plan.NodeState
	tracked map[types.UID]*tracked
	begun   bool
	emptied time.Time               // when the last pod had gone
	known   time.Time               // when its pods were first known
	ready   time.Time               // since when the replacement is Ready; zero if it is not
	off     bool                    // cancelled: nothing more is begun
	working int                     // how many tasks are under way
	soon    bool                    // Notify is about to be called for the node
	said    map[string]bool         // of whom, that they ask for something meaningless
	answers map[types.UID]plan.When // of pods to notices
	came    map[types.UID]time.Time // pods that have come since the first list, and when

	gathered   plan.Situation // the last, which is not changed any more
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
		drainer: d, node: node, began: time.Now(), tracked: map[types.UID]*tracked{}, said: map[string]bool{}, answers: map[types.UID]plan.When{}, came: map[types.UID]time.Time{},
		opened: sync.OnceFunc(func() { close(opened) }),
	}
	s.ctx, s.stop = context.WithCancel(ctx)
	s.going, s.halt = context.WithCancel(s.ctx)
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

// end stops the watch, what is shared with other nodes, and the tasks that wait.
func (s *session) end() {
	s.stop()
	s.drainer.queue.drop(s)
	s.drainer.budgets.leave(s.node)
	s.drainer.deployments.leave(s.node)
	s.drainer.attached.leave(s.node)
	s.decideGangs(time.Now(), nil)
}

// decideGangs takes in when the gangs of the node's pods leave, as far as these decide it.
func (s *session) decideGangs(now time.Time, own map[plan.Gang]plan.Departure) {
	for _, node := range s.drainer.gangs.report(now, s.node, own) {
		s.drainer.opts.Notify(node)
	}
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
	s.halt()
	return s.working == 0
}

// concerns takes in what the drain is about now.
func (s *session) concerns(in plan.NodeState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case in.Capacity != plan.ReadyCapacity:
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
func (s *session) interruption() (plan.NodeState, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.in, s.in != plan.NodeState{} && s.watch.HasSynced()
}

// gatheredFor is how old a situation can be that a single decision is made from. To gather it looks at
// all pods of the node.
const gatheredFor = 250 * time.Millisecond

// decision is the current plan for the pod of a task that has reached the head of the queue: the
// deadline, the pod or its Deployment might have changed since it was put there, so these are
// read again. False ends the task: the pod has gone, is terminating, or is held again.
func (s *session) decision(t *task) (decision plan.Decision, ok bool) {
	now := time.Now()
	if current, there := s.current(t.pod); there {
		s.mu.Lock()
		in, sit, old := s.in, s.gathered, now.Sub(s.gatheredAt) >= gatheredFor
		s.mu.Unlock()
		if old {
			sit = s.situation(in)
		} else {
			s.renew(&sit, in)
			if _, known := sit.Deployments[t.workload]; known {
				if w, ok := s.drainer.deployments.workload(t.workload); ok {
					sit.Deployments = maps.Clone(sit.Deployments)
					sit.Deployments[t.workload] = w
				}
			}
		}
		decision = plan.Decide(now, sit, current)
		t.asked, t.latest = now, decision.Due()
		ok = decision.Action.Requests() || decision.Waits
	}
	if !ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		t.state.task = nil // the next plan says what follows
	}
	return decision, ok
}

// current returns the pod as it is now; false if it has gone, even if another has its name.
func (s *session) current(pod *corev1.Pod) (*corev1.Pod, bool) {
	now, ok := s.watch.Get(cache.MetaObjectToName(pod).String())
	return now, ok && now.UID == pod.UID
}

// renew brings up to date what of a situation this process knows by itself.
func (s *session) renew(sit *plan.Situation, in plan.NodeState) {
	sit.NodeState, sit.Waves, sit.Gangs = in, s.drainer.starts.get(), s.drainer.gangs.concerning(s.node)
	sit.Refused, sit.Fixed = map[types.UID]bool{}, map[types.UID]string{}
	s.mu.Lock()
	defer s.mu.Unlock()
	sit.Came = maps.Clone(s.came)
	sit.Ready, sit.Answers, sit.Left = s.ready, maps.Clone(s.answers), nil
	for uid, t := range s.tracked {
		if t.gone && time.Since(t.goneAt) < plan.LeftFor {
			sit.Left = append(sit.Left, plan.Leaving{Pod: t.pod, Gone: t.goneAt})
		}
		if t.refusal != "" {
			sit.Refused[uid] = true
		}
		if t.fixed != "" {
			sit.Fixed[uid] = t.fixed
		}
	}
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
	return ok && plan.IsSurged(current)
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
