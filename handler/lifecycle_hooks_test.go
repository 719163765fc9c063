package handler

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/lifecycle"
	"spot-handler/handler/provisioner"
)

// fakeHooks is a group that waits; nil funcs succeed.
type fakeHooks struct {
	limits        lifecycle.Limits
	LimitsFunc    func() error
	HeartbeatFunc func() error
	CompleteFunc  func() error

	mu   sync.Mutex
	done calls
}

// calls counts the calls that a group has received.
type calls struct {
	beats     []time.Time
	asked     int // to stop waiting
	unknown   int // the same, for an instance that is no Node
	completed []string
}

func (f *fakeHooks) seen() calls {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.done
}

var (
	_ lifecycle.Hooks = (*fakeHooks)(nil)
	_ lifecycle.Hooks = (*lifecycle.Client)(nil)
)

func (f *fakeHooks) Limits(context.Context, interruption.Hook) (lifecycle.Limits, error) {
	if f.LimitsFunc != nil {
		if err := f.LimitsFunc(); err != nil {
			return lifecycle.Limits{}, err
		}
	}
	return f.limits, nil
}

func (f *fakeHooks) Heartbeat(context.Context, string, interruption.Hook) error {
	if f.HeartbeatFunc != nil {
		if err := f.HeartbeatFunc(); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done.beats = append(f.done.beats, time.Now())
	return nil
}

func (f *fakeHooks) Complete(_ context.Context, node, instance string, h interruption.Hook) error {
	f.mu.Lock()
	f.done.asked++
	if node == "" {
		f.done.unknown++
	}
	f.mu.Unlock()
	if f.CompleteFunc != nil {
		if err := f.CompleteFunc(); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done.completed = append(f.done.completed, instance+" "+h.Name)
	return nil
}

// hooked is the message about a hook that the group began to wait at a second ago.
func hooked(name string, change ...func(*interruption.Notice)) interruption.Notice {
	return notice(interruption.InstanceTerminating, append([]func(*interruption.Notice){func(n *interruption.Notice) {
		n.EventID = "event-" + name
		n.Hook = &interruption.Hook{Group: "spot", Name: name, Token: "token-" + name, Since: n.Noticed}
	}}, change...)...)
}

// hookStory is a drain of three pods, with the handler running; they leave at s.left = 0.
func hookStory(t *testing.T, options func(*setup), f func(t *testing.T, s *script, nodes *fakeNodes, hooks *fakeHooks, h *Handler)) {
	synctest.Test(t, func(t *testing.T) {
		s, nodes := &script{state: provisioner.StateUnsupported, left: 3, begun: true}, newFakeNodes(testNode())
		hooks := &fakeHooks{limits: lifecycle.LimitsOf(2 * time.Minute)}
		h := newTestHandler(t, nodes, func(o *setup) {
			s.options(o)
			o.lifecycle = lifecycle.TenderOptions{Hooks: hooks}
			if options != nil {
				options(o)
			}
		})
		runs(t, h)
		defer nodes.watcher.Stop()
		f(t, s, nodes, hooks, h)
	})
}

// runs lets the handler reconcile, as the process does, until the returned function stops it.
func runs(t *testing.T, h *Handler) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = h.Run(ctx) }()
	return func() { cancel(); <-ended }
}

// after lets d pass and everything that follows settle.
func after(d time.Duration) {
	time.Sleep(d) // fake time
	synctest.Wait()
}

func TestHookIsCompletedAfterTheDrain(t *testing.T) {
	hookStory(t, nil, func(t *testing.T, s *script, f *fakeNodes, hooks *fakeHooks, h *Handler) {
		n := hooked("drain")
		accept(t, h, n)
		after(time.Second)
		rec := wantPhase(t, f, interruption.Draining)
		if want := n.Noticed.Add(2 * time.Minute); !rec.Deadline.Equal(want) || !s.in.Deadline.Equal(want) {
			t.Fatalf("deadline %v, of the drain %s, want the hook's %s", rec.Deadline, s.in.Deadline, want)
		}
		if v := accept(t, h, n); v != interruption.Duplicate || len(hooks.seen().completed) != 0 {
			t.Fatalf("again: %s, completed %v before the drain has ended", v, hooks.seen().completed)
		}
		s.left = 0
		h.Enqueue("node-a")
		after(time.Second)
		rec = wantPhase(t, f, interruption.Released)
		if len(hooks.seen().completed) != 1 || !rec.Hooks[0].Done || hooks.seen().completed[0] != instance+" drain" {
			t.Fatalf("completed %v, record %s", hooks.seen().completed, rec)
		}
		if v := accept(t, h, n); v != interruption.Duplicate {
			t.Errorf("verdict %s of a message that comes again", v)
		}
		// A second hook, when all is over: at once.
		if v := accept(t, h, hooked("late")); v != interruption.Accepted {
			t.Errorf("verdict %s of another hook", v)
		}
		after(time.Second)
		if len(hooks.seen().completed) != 2 || s.finished != 1 || len(hooks.seen().beats) != 0 {
			t.Errorf("completed %v, %d drains, %d heartbeats; want both, one, none", hooks.seen().completed, s.finished, len(hooks.seen().beats))
		}
		after(time.Hour)
		if hooks.seen().asked != 2 {
			t.Errorf("asked %d times, want 2", hooks.seen().asked)
		}
	})
}

// Even with pods left, and in the time that the group leaves.
func TestHookIsCompletedAtTheDeadline(t *testing.T) {
	hookStory(t, nil, func(t *testing.T, s *script, f *fakeNodes, hooks *fakeHooks, h *Handler) {
		n := hooked("drain")
		accept(t, h, n)
		after(114 * time.Second)
		wantPhase(t, f, interruption.Draining)
		after(2 * time.Second)
		rec := wantPhase(t, f, interruption.Released)
		if len(hooks.seen().completed) != 1 || rec.Pods.Left != 3 || time.Since(n.Noticed) > 2*time.Minute {
			t.Errorf("completed %v, record %s", hooks.seen().completed, rec)
		}
	})
}

func TestEveryHookIsCompletedBesideASpotNotice(t *testing.T) {
	hookStory(t, nil, func(t *testing.T, s *script, f *fakeNodes, hooks *fakeHooks, h *Handler) {
		hooks.limits = lifecycle.LimitsOf(time.Hour)
		accept(t, h, hooked("one"))
		after(10 * time.Second)
		spot := notice(interruption.SpotInterruption)
		accept(t, h, spot)
		accept(t, h, hooked("two"))
		after(time.Second)
		rec := wantPhase(t, f, interruption.Draining)
		if rec.Kind != interruption.SpotInterruption || !rec.Deadline.Equal(spot.Deadline) {
			t.Fatalf("record %s, want the notice's own two minutes", rec)
		}
		after(3 * time.Minute)
		if rec = wantPhase(t, f, interruption.Released); len(hooks.seen().completed) != 2 {
			t.Errorf("completed %v, record %s", hooks.seen().completed, rec)
		}
	})
}

// Killed between the end of the drain and the answer: the next process completes the hook.
func TestHookIsCompletedAfterARestart(t *testing.T) {
	hookStory(t, nil, func(t *testing.T, s *script, f *fakeNodes, hooks *fakeHooks, h *Handler) {
		f.change(func(n *corev1.Node) {
			rec := interruption.NewRecord(hooked("drain"))
			rec.Phase = interruption.Released
			n.Annotations = map[string]string{interruption.Annotation: rec.String()}
		})
		after(time.Second)
		if _, rec := f.now(t); len(hooks.seen().completed) != 1 || !rec.Hooks[0].Done || s.finished != 0 {
			t.Errorf("completed %v, record %s", hooks.seen().completed, rec)
		}
	})
}

func TestHookIsCompletedWhenTheNodeGoes(t *testing.T) {
	hookStory(t, nil, func(t *testing.T, s *script, f *fakeNodes, hooks *fakeHooks, h *Handler) {
		fails := 2
		hooks.CompleteFunc = func() error {
			if fails--; fails >= 0 {
				return errors.New("throttled")
			}
			return nil
		}
		accept(t, h, hooked("drain"))
		after(time.Second)
		f.remove("node-a")
		after(time.Minute)
		if len(hooks.seen().completed) != 1 {
			t.Errorf("completed %v, want once", hooks.seen().completed)
		}
	})
}

// The group may end the instance, and the Node go, before its answer about one of several hooks
// has been recorded, and while another answer is on its way.
func TestNodeGoesWhileItsHooksAreCompleted(t *testing.T) {
	hookStory(t, nil, func(t *testing.T, s *script, f *fakeNodes, hooks *fakeHooks, h *Handler) {
		s.left = 0
		var calls atomic.Int64
		hooks.CompleteFunc = func() error {
			if calls.Add(1) == 1 {
				time.Sleep(time.Second) // until both notices are accepted
				f.remove("node-a")
				return nil
			}
			time.Sleep(5 * time.Second)
			return nil
		}
		accept(t, h, hooked("one"))
		accept(t, h, hooked("two"))
		after(time.Minute)
		if n := calls.Load(); n != 2 {
			t.Errorf("asked %d times to complete, completed %v; want once for each hook", n, hooks.seen().completed)
		}
	})
}

// Heartbeats that are not allowed are no reason to complete a hook any later, whether its node
// is being drained or is gone.
func TestHeartbeatThatFailsDelaysNoCompletion(t *testing.T) {
	for what, end := range map[string]func(s *script, f *fakeNodes, h *Handler){
		"drained": func(s *script, f *fakeNodes, h *Handler) {
			s.left = 0
			h.Enqueue("node-a")
		},
		"gone": func(s *script, f *fakeNodes, h *Handler) { f.remove("node-a") },
	} {
		t.Run(what, func(t *testing.T) {
			hookStory(t, func(o *setup) { o.lifecycle.HeartbeatUntil = time.Hour }, func(t *testing.T, s *script, f *fakeNodes, hooks *fakeHooks, h *Handler) {
				hooks.HeartbeatFunc = func() error { return lifecycle.ErrDenied }
				accept(t, h, hooked("drain"))
				after(65 * time.Second) // the first heartbeat is due after a minute
				end(s, f, h)
				after(2 * time.Second)
				if n := len(hooks.seen().completed); n != 1 {
					t.Errorf("completed %d times, want once and at once", n)
				}
			})
		})
	}
}

func TestCompletionIsTriedAgain(t *testing.T) {
	hookStory(t, nil, func(t *testing.T, s *script, f *fakeNodes, hooks *fakeHooks, h *Handler) {
		fails := 3
		hooks.CompleteFunc = func() error {
			if fails--; fails >= 0 {
				return errors.New("throttled")
			}
			return nil
		}
		s.left = 0
		accept(t, h, hooked("drain"))
		after(30 * time.Second)
		if _, rec := f.now(t); len(hooks.seen().completed) != 1 || hooks.seen().asked != 4 || !rec.Hooks[0].Done {
			t.Errorf("asked %d times, completed %v, record %s", hooks.seen().asked, hooks.seen().completed, rec)
		}
	})
}

// The group waits until the hook's own timeout, and we ask once a minute until then.
func TestCompletionIsNotAllowed(t *testing.T) {
	hookStory(t, nil, func(t *testing.T, s *script, f *fakeNodes, hooks *fakeHooks, h *Handler) {
		hooks.CompleteFunc = func() error { return lifecycle.ErrDenied }
		s.left = 0
		accept(t, h, hooked("drain"))
		after(time.Hour)
		if _, rec := f.now(t); hooks.seen().asked < 3 || hooks.seen().asked > 14 || !rec.Hooks[0].Done {
			t.Errorf("asked %d times, record %s", hooks.seen().asked, rec)
		}
		asked := hooks.seen().asked
		after(time.Hour)
		if hooks.seen().asked != asked {
			t.Errorf("still asked after the hook's timeout")
		}
	})
}

func TestHookThatHasEndedIsCompleted(t *testing.T) {
	hookStory(t, nil, func(t *testing.T, s *script, f *fakeNodes, hooks *fakeHooks, h *Handler) {
		hooks.CompleteFunc = func() error { return lifecycle.ErrGone }
		s.left = 0
		accept(t, h, hooked("drain"))
		after(time.Minute)
		if _, rec := f.now(t); hooks.seen().asked != 1 || !rec.Hooks[0].Done {
			t.Errorf("asked %d times, record %s", hooks.seen().asked, rec)
		}
	})
}

// The metadata service announces the end, but not the hook.
func TestEndWithoutAHook(t *testing.T) {
	for name, hooks := range map[string]lifecycle.Hooks{"imds": nil, "queue": &fakeHooks{}} {
		t.Run(name, func(t *testing.T) {
			hookStory(t, func(o *setup) { o.lifecycle.Hooks = hooks }, func(t *testing.T, s *script, f *fakeNodes, _ *fakeHooks, h *Handler) {
				n := notice(interruption.InstanceTerminating)
				accept(t, h, n)
				after(6 * time.Second)
				if rec := wantPhase(t, f, interruption.Draining); !rec.Deadline.Equal(n.Received.Add(5 * time.Minute)) {
					t.Errorf("record %s, want the assumed timeout", rec)
				}
			})
		})
	}
}

// The node's clock, by which the daemon of mode imds has received it, is ahead. The group waits no longer for
// that, nor does the drain.
func TestEndWithoutAHookByAClockAhead(t *testing.T) {
	for name, hooks := range map[string]lifecycle.Hooks{"imds": nil, "both": &fakeHooks{}} {
		t.Run(name, func(t *testing.T) {
			hookStory(t, func(o *setup) { o.lifecycle.Hooks = hooks }, func(t *testing.T, s *script, f *fakeNodes, _ *fakeHooks, h *Handler) {
				begun := time.Now()
				accept(t, h, notice(interruption.InstanceTerminating, func(n *interruption.Notice) { n.Received = n.Received.Add(4 * time.Minute) }))
				after(time.Second)
				if rec := wantPhase(t, f, interruption.Draining); rec.Deadline.Sub(begun) > 5*time.Minute+time.Second {
					t.Errorf("deadline in %s, want the assumed timeout of 5m", rec.Deadline.Sub(begun))
				}
			})
		})
	}
}

// The message about the hook comes a little later, and is what counts.
func TestEndWithAHookALittleLater(t *testing.T) {
	hookStory(t, nil, func(t *testing.T, s *script, f *fakeNodes, hooks *fakeHooks, h *Handler) {
		hooks.limits = lifecycle.LimitsOf(time.Hour)
		accept(t, h, notice(interruption.InstanceTerminating))
		after(2 * time.Second)
		n := hooked("drain")
		accept(t, h, n)
		after(time.Second)
		if rec := wantPhase(t, f, interruption.Draining); !rec.Deadline.Equal(n.Noticed.Add(time.Hour)) {
			t.Errorf("record %s, want the hook's hour", rec)
		}
	})
}

// Nobody drains for a hook that was cancelled; its group waits until it times out.
func TestCanceledHookIsLeft(t *testing.T) {
	hookStory(t, func(o *setup) {
		o.Drainer.(*fakeDrainer).CancelFunc = func(string) *plan.Canceled { return &plan.Canceled{} }
	}, func(t *testing.T, s *script, f *fakeNodes, hooks *fakeHooks, h *Handler) {
		accept(t, h, hooked("drain"))
		after(time.Second)
		f.change(func(n *corev1.Node) { n.Annotations[interruption.CancelAnnotation] = "true" })
		after(time.Hour)
		if _, has := f.raw(t); has || hooks.seen().asked != 0 {
			t.Errorf("record there: %t, asked %d times", has, hooks.seen().asked)
		}
	})
}
