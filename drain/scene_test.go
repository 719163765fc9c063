package drain

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
)

// podEvents keeps the Events of pods.
type podEvents struct {
	mu   sync.Mutex
	list []string
}

var _ Events = (*podEvents)(nil)

func (e *podEvents) say(what string, pod *corev1.Pod, reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, what+" "+pod.Name+": "+reason)
}

// all are the Events so far.
func (e *podEvents) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.list)
}

func (e *podEvents) EvictionBlocked(_ string, pod *corev1.Pod, reason string) {
	e.say("blocked", pod, reason)
}

func (e *podEvents) EvictionForced(_ string, pod *corev1.Pod, reason string) {
	e.say("forced", pod, reason)
}

func (e *podEvents) AnnotationMeaningless(_ string, pod *corev1.Pod, text string) {
	e.say("meaningless", pod, text)
}

func (e *podEvents) NamespaceAnnotationMeaningless(_ string, pod *corev1.Pod, text string) {
	e.say("meaningless", pod, "namespace: "+text)
}

func (e *podEvents) PodLeft(_ string, pod *corev1.Pod, reason string) { e.say("left", pod, reason) }

// TestMain turns off client-go's pause between errors: it counts from process start, which in a synctest bubble is
// decades ahead.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}

// scene is a node under drain in fake time, planned again whenever the drainer says so.
type scene struct {
	*testing.T
	api    *fakeAPI
	events *podEvents
	d      *Drainer
	start  time.Time
	in     plan.NodeState
	wake   chan struct{}
	atOnce int // requests
	end    func()

	mu     sync.Mutex
	status plan.Status
	over   bool // node-a is drained no more
}

// stage plays f with node-a interrupted, as soon as the pods that prepare puts there are
// known.
func stage(t *testing.T, policy plan.Policy, in time.Duration, capacity plan.Capacity, prepare func(*fakeAPI), f func(*scene)) {
	stageAtOnce(t, 4, policy, in, capacity, prepare, f)
}

// stageAtOnce is stage with that many requests at once.
func stageAtOnce(
	t *testing.T, atOnce int, policy plan.Policy, in time.Duration, capacity plan.Capacity, prepare func(*fakeAPI), f func(*scene),
) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		prepare(api)
		s := &scene{T: t, api: api, events: &podEvents{}, start: time.Now(), wake: make(chan struct{}, 1), atOnce: atOnce}
		s.in = plan.NodeState{Taint: taint, Deadline: s.start.Add(in), Capacity: capacity}
		if in == 0 {
			s.in.Deadline = time.Time{}
		}
		notify := func(string) {
			select {
			case s.wake <- struct{}{}:
			default:
			}
		}
		s.d = s.drainer(policy, notify)
		done := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { defer close(done); _ = s.d.Run(ctx) }()
		s.end = func() {
			cancel()
			synctest.Wait()
		}
		go func() {
			for {
				s.plan()
				var timer <-chan time.Time
				if next := s.now().Next; !next.IsZero() {
					timer = time.After(time.Until(next))
				}
				select {
				case <-t.Context().Done():
					return
				case <-s.wake:
				case <-timer:
				}
			}
		}()
		s.pass(time.Second)
		f(s)
	})
}

// drainer is one of a process.
func (s *scene) drainer(policy plan.Policy, notify func(string)) *Drainer {
	s.Helper()
	d := New(Options{
		Pods: s.api.client(s.T, corev1.SchemeGroupVersion), Budgets: s.api.client(s.T, policyv1.SchemeGroupVersion), Dynamic: s.api.dynamic(s.T),
		Policy: policy, Notify: notify, Events: s.events, Registerer: prometheus.NewRegistry(), Logger: zerolog.Nop(),
	})
	d.fleet = plan.NewFleet(policy, s.atOnce, 1)
	return d
}

func (s *scene) plan() {
	s.mu.Lock()
	in, over := s.in, s.over
	s.mu.Unlock()
	if over {
		return
	}
	if status, ok := s.drain("node-a", in); ok {
		s.mu.Lock()
		s.status = status
		s.mu.Unlock()
	}
}

// look, drain, finish and cancel do what the handler does.
func (s *scene) look(node string, in plan.NodeState) (plan.View, bool) {
	s.d.Set(node, plan.Wanted{NodeState: in, Goal: plan.Look})
	status, ok := s.d.Status(s.Context(), node)
	return status.View, ok
}

func (s *scene) drain(node string, in plan.NodeState) (plan.Status, bool) {
	s.d.Set(node, plan.Wanted{NodeState: in, Goal: plan.Drain})
	return s.d.Status(s.Context(), node)
}

func (s *scene) finish(node string) interruption.Pods {
	status, _ := s.d.Status(s.Context(), node)
	for _, left := range status.Left {
		s.events.PodLeft(node, left.Pod, left.Reason)
	}
	s.d.Remove(node)
	return status.Pods
}

// cancel returns nil if it is not over within that time.
func (s *scene) cancel(node string, within time.Duration) *plan.Canceled {
	if node == "node-a" {
		s.mu.Lock()
		s.over = true
		s.mu.Unlock()
	}
	s.d.Set(node, plan.Wanted{Goal: plan.Cancel})
	s.pass(within)
	status, _ := s.d.Status(s.Context(), node)
	if status.Canceled != nil {
		s.d.Remove(node)
	}
	return status.Canceled
}

func (s *scene) now() plan.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// change sets how the interruption stands now.
func (s *scene) change(f func(*plan.NodeState)) {
	s.mu.Lock()
	f(&s.in)
	s.mu.Unlock()
	s.wake <- struct{}{}
	synctest.Wait()
}

// pass lets time go by.
func (s *scene) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// until lets time go by to a moment of the story.
func (s *scene) until(at time.Duration) { s.pass(time.Until(s.start.Add(at))) }

var (
	holding  = plan.Policy{Strategy: plan.StrategyHold, Blocked: plan.Leave, Margin: 10 * time.Second}
	deleting = plan.Policy{Strategy: plan.StrategyHold, Blocked: plan.Delete, Margin: 10 * time.Second}
)

func pods(names ...string) func(*fakeAPI) {
	return func(f *fakeAPI) {
		for _, name := range names {
			f.pod(pod(name, withGrace(30)))
		}
	}
}

// What goes wrong around a drain.

var surgePolicy = plan.Policy{Strategy: plan.StrategySurge, Margin: 10 * time.Second}

// surgeScene is a Deployment of one pod, which is on node-a.
func surgeScene(maxSurge int) func(*fakeAPI) {
	return func(f *fakeAPI) {
		f.put("/apis/apps/v1/namespaces/shop/deployments/web", object{
			"apiVersion": "apps/v1", "kind": "Deployment",
			"metadata": object{"name": "web", "namespace": "shop", "uid": "web"},
			"spec": object{
				"replicas": 1, "selector": object{"matchLabels": object{"app": "web"}},
				"strategy": object{"type": "RollingUpdate", "rollingUpdate": object{"maxSurge": maxSurge}},
			},
			"status": object{"replicas": 1, "updatedReplicas": 1},
		})
		f.put("/apis/apps/v1/namespaces/shop/replicasets/web-abc12", object{
			"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": object{"name": "web-abc12", "namespace": "shop", "uid": "set"},
		})
		f.pod(webPod("a", withGrace(30), readyNow))
	}
}

func readyNow(p *corev1.Pod) {
	for i := range p.Status.Conditions {
		p.Status.Conditions[i].LastTransitionTime = metav1.Now()
	}
}

func (s *scene) labels(name string) map[string]any {
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	return s.api.objects["/api/v1/namespaces/shop/pods/"+name]["metadata"].(object)["labels"].(object)
}
