package handler

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

// script is a drain of three pods in a test: the replacement's state and what is left.
type script struct {
	state    string
	requests int
	left     int
	staying  int
	leaving  time.Time // until when the pods that are left have their grace, if they are leaving
	begun    bool
	in       plan.NodeState
	finished int
	released int
	release  error
}

func (s *script) options(o *setup) {
	view := func() (v plan.View) {
		for range s.left {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
			if !s.leaving.IsZero() {
				pod.DeletionTimestamp = &metav1.Time{Time: s.leaving}
			}
			v.Moving = append(v.Moving, pod)
		}
		for range s.staying {
			v.Staying = append(v.Staying, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "stays"}})
		}
		return v
	}
	o.Drainer = &fakeDrainer{
		LookFunc: func(string, plan.NodeState) (plan.View, bool) { return view(), true },
		DrainFunc: func(_ string, in plan.NodeState) (plan.Status, bool) {
			s.in = in
			return plan.Status{View: view(), Total: 3, Begun: s.begun, Done: s.left+s.staying == 0}, true
		},
		ResultFunc: func(string) interruption.Pods {
			return interruption.Pods{Total: 3, Graceful: 3 - s.left, Left: s.left}
		},
		RemoveFunc: func(string) { s.finished++ },
	}
	o.Provisioner = &fakeProvisioner{
		RequestFunc: func(interruption.Record) (interruption.Replacement, error) {
			s.requests++
			if s.state == "" {
				return interruption.Replacement{}, errors.New("API server is unreachable")
			}
			return interruption.Replacement{Backend: "karpenter", Name: "claim", State: s.state}, nil
		},
		ReleaseFunc: func(interruption.Record) error { s.released++; return s.release },
	}
}

// step lets the index see the last write and reconciles once.
func step(t *testing.T, h *Handler) (time.Duration, error) {
	t.Helper()
	synctest.Wait()
	again, err := h.reconcile(t.Context(), "node-a")
	synctest.Wait()
	return again, err
}

func story(t *testing.T, f func(t *testing.T, s *script, nodes *fakeNodes, h *Handler)) {
	synctest.Test(t, func(t *testing.T) {
		s, nodes := &script{state: provisioner.StateRequested, left: 3}, newFakeNodes(testNode())
		h := newTestHandler(t, nodes, s.options)
		defer nodes.watcher.Stop()
		f(t, s, nodes, h)
	})
}

func wantPhase(t *testing.T, f *fakeNodes, want interruption.Phase) interruption.Record {
	t.Helper()
	_, rec := f.now(t)
	if rec.Phase != want {
		t.Fatalf("phase %s, want %s: %s", rec.Phase, want, rec)
	}
	return rec
}

// With surge the replacement pods come between the replacement and the first eviction: no write is
// spent on each.
func TestReadyAndDrainingAreOneWrite(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		accept(t, h, notice(interruption.SpotInterruption))
		for _, now := range []struct {
			state   string
			begun   bool
			patches int
			phase   interruption.Phase
		}{
			{provisioner.StateRequested, false, 2, interruption.Replacing},
			{provisioner.StateLaunched, false, 2, interruption.Replacing},
			{provisioner.StateReady, false, 3, interruption.Draining},
			{provisioner.StateReady, true, 3, interruption.Draining},
		} {
			s.state, s.begun = now.state, now.begun
			if _, err := step(t, h); err != nil {
				t.Fatal(err)
			}
			if wantPhase(t, f, now.phase); f.patches != now.patches {
				t.Errorf("%d patches with the replacement %s, want %d", f.patches, now.state, now.patches)
			}
		}
	})
}

// Where pods have found another place before the replacement is Ready, the drain has begun already.
func TestDrainingIsLoggedOnce(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		var log bytes.Buffer
		h.opts.Logger = zerolog.New(&log)
		accept(t, h, notice(interruption.SpotInterruption))
		for _, now := range []struct {
			state string
			begun bool
			lines int
		}{{provisioner.StateRequested, false, 0}, {provisioner.StateLaunched, true, 1}, {provisioner.StateReady, true, 1}} {
			s.state, s.begun = now.state, now.begun
			if _, err := step(t, h); err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(log.String(), `"draining"`); n != now.lines {
				t.Errorf("logged %d times with the replacement %s, want %d: %s", n, now.state, now.lines, &log)
			}
		}
	})
}

func TestPhasesOfAnInterruption(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		accept(t, h, notice(interruption.SpotInterruption))
		for range 2 { // the second time changes nothing
			if _, err := step(t, h); err != nil {
				t.Fatal(err)
			}
			rec := wantPhase(t, f, interruption.Replacing)
			if rec.Replacement.Name != "claim" || rec.Pods.Total != 3 || s.in.Capacity != plan.PendingCapacity {
				t.Fatalf("record %s, capacity %v", rec, s.in.Capacity)
			}
		}
		if f.patches != 2 {
			t.Errorf("%d patches up to here, want 2", f.patches)
		}
		s.state, s.begun = provisioner.StateReady, true
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		wantPhase(t, f, interruption.Draining)
		if s.in.Capacity != plan.ReadyCapacity {
			t.Errorf("capacity %v, want ready", s.in.Capacity)
		}
		s.left = 0
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		rec := wantPhase(t, f, interruption.Released)
		if *rec.Pods != (interruption.Pods{Total: 3, Graceful: 3}) || s.released != 1 || rec.Ended.IsZero() {
			t.Errorf("record %s, released %d times", rec, s.released)
		}
		if f.patches != 4 {
			t.Errorf("%d patches in all, want 4", f.patches)
		}
	})
}

// A result that cannot be written is kept, not counted again.
func TestResultOutlivesAFailedWrite(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		accept(t, h, notice(interruption.SpotInterruption))
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		s.left, s.release = 0, errors.New("API server is unreachable")
		f.beforePatch = func() { // a second notice is merged just then
			if v := accept(t, h, notice(interruption.SpotInterruption, func(n *interruption.Notice) { n.Deadline = n.Deadline.Add(-time.Minute) })); v != interruption.Accepted {
				t.Errorf("verdict %s", v)
			}
		}
		if again, err := step(t, h); err != nil || again != changedCheck {
			t.Fatalf("again in %s, %v; want to wait for the watch, as the record is not as it was", again, err)
		}
		s.release = nil
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		rec := wantPhase(t, f, interruption.Released)
		if rec.Pods.Graceful != 3 || s.finished != 1 {
			t.Errorf("record %s, counted %d times", rec, s.finished)
		}
	})
}

func TestDeadlineEndsTheDrain(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		n := notice(interruption.SpotInterruption)
		accept(t, h, n)
		if _, err := step(t, h); err != nil { // begins
			t.Fatal(err)
		}
		again, err := step(t, h)
		if err != nil {
			t.Fatal(err)
		}
		if want := time.Until(n.Deadline.Add(-5 * time.Second)); again != want {
			t.Errorf("looks again in %s, want %s", again, want)
		}
		time.Sleep(again)
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		if rec := wantPhase(t, f, interruption.Released); rec.Pods.Left != 3 {
			t.Errorf("record %s, want 3 left", rec)
		}
	})
}

// The next process carries on from the record, and counts the pods that the process before it moved.
func TestNextLeaderCountsWhatWasMovedBefore(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		rec := interruption.NewRecord(notice(interruption.SpotInterruption))
		rec.Phase, rec.Pods = interruption.Draining, &interruption.Pods{Total: 10}
		node := testNode(func(n *corev1.Node) {
			n.Annotations = map[string]string{interruption.Annotation: rec.String()}
			n.ResourceVersion = "100"
		})
		f.mu.Lock()
		f.put(node)
		f.mu.Unlock()
		f.watcher.Modify(node.DeepCopy())
		s.left = 0
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		if rec := wantPhase(t, f, interruption.Released); rec.Pods.Total != 10 || rec.Pods.Graceful != 10 {
			t.Errorf("record %s, want all 10 graceful", rec)
		}
	})
}

// With CordonOnly a node is marked when its time comes, and nothing else is asked of anybody:
// the drainer and the provisioner of this test would panic.
func TestCordonOnly(t *testing.T) {
	for _, kind := range interruption.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeNodes(&corev1.Node{
					ObjectMeta: metav1.ObjectMeta{Name: "node-a"},
					Spec:       corev1.NodeSpec{ProviderID: "aws:///eu-west-1a/i-a"},
				})
				h := newTestHandler(t, f, func(o *setup) {
					o.CordonOnly, o.rules.lead = true, 10*time.Minute
					o.Drainer = &fakeDrainer{CancelFunc: func(string) *plan.Canceled { return &plan.Canceled{} }}
					o.Provisioner = &fakeProvisioner{}
				})
				n := interruption.Notice{
					Kind: kind, Source: interruption.Queue, EventID: "e", InstanceID: "i-a", Action: interruption.ActionStop,
					Noticed: time.Now(), Received: time.Now(), Deadline: time.Now().Add(time.Hour),
				}
				if kind == interruption.RebalanceRecommendation {
					n.Deadline = time.Time{}
				}
				if verdict, err := h.Accept(t.Context(), n); verdict != interruption.Accepted || err != nil {
					t.Fatalf("%s, %v", verdict, err)
				}
				// While there is something to wait for, then a moment later, then past its end.
				for _, pass := range []time.Duration{0, 51 * time.Minute, time.Hour} {
					time.Sleep(pass)
					synctest.Wait()
					for range 3 {
						if _, err := h.reconcile(t.Context(), "node-a"); err != nil {
							t.Fatal(err)
						}
						synctest.Wait()
					}
				}
				node, _ := f.raw(t)
				rec, err := nodes.Record(node)
				if err != nil || rec.Phase != interruption.Noticed || !node.Spec.Unschedulable || len(node.Spec.Taints) != 1 {
					t.Errorf("phase %s, %v, unschedulable %v, taints %v", rec.Phase, err, node.Spec.Unschedulable, node.Spec.Taints)
				}

				// It goes with its pods, as the operator wanted: nothing has failed.
				f.remove("node-a")
				synctest.Wait()
				if _, err := h.reconcile(t.Context(), "node-a"); err != nil {
					t.Fatal(err)
				}
				var failed dto.Metric
				if err := h.metrics.drains.WithLabelValues(string(kind), resultFailed).Write(&failed); err != nil || failed.GetCounter().GetValue() != 0 {
					t.Errorf("%v drains have failed, %v", failed.GetCounter().GetValue(), err)
				}
			})
		})
	}
}

// The record names a refusal until no pod is due: the refused pod has left, and it isn't yet time for the others. While
// a pod is due, the refusal stays: the pod can be refused again any moment, and a new leader doesn't know that yet.
func TestRefusalThatIsOver(t *testing.T) {
	const why = "needs 2 healthy pods"
	for name, tt := range map[string]struct {
		was    string
		status plan.Status
		want   string
		worth  bool
	}{
		"begins":       {"", plan.Status{Refusal: why, Due: true}, why, true},
		"goes on":      {why, plan.Status{Refusal: why, Due: true}, why, false},
		"another":      {why, plan.Status{Refusal: "of another PDB", Due: true}, why, false},
		"not asked":    {why, plan.Status{Due: true}, why, false},
		"over":         {why, plan.Status{}, "", true},
		"no more news": {"", plan.Status{}, "", false},
	} {
		was := interruption.Record{Phase: interruption.Draining, Pods: &interruption.Pods{Total: 3, Refusal: tt.was}}
		next := was
		worth := progressOf(was, &next, plan.NodeState{}, tt.status)
		if worth != tt.worth || next.Pods.Refusal != tt.want || next.Phase != interruption.Draining || next.Pods.Total != 3 {
			t.Errorf("%s: write %t, phase %s, %+v; want %t, %q", name, worth, next.Phase, next.Pods, tt.worth, tt.want)
		}
		if was.Pods.Refusal != tt.was {
			t.Errorf("%s: the old record has changed", name)
		}
	}
}
