package handler

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/lifecycle"
)

func unknown(n *interruption.Notice) { n.InstanceID = "i-00000000000000bad" }

// through settles the hooks of notices on their way to the handler.
func through(h *Handler, hooks *fakeHooks) lifecycle.Accepter {
	return lifecycle.Accepter{Next: h, Hooks: hooks, Nodes: h.opts.Index, Rules: h.opts.Rules, Logger: h.opts.Logger}
}

func settle(t *testing.T, h *Handler, hooks *fakeHooks, n interruption.Notice) interruption.Verdict {
	t.Helper()
	v, err := through(h, hooks).Accept(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func launch(n *interruption.Notice) { n.Hook.Launching = true }

// A Node may be about to register; after that the hook needs no drain.
func TestHookOfAnUnknownInstance(t *testing.T) {
	hookStory(t, nil, func(t *testing.T, _ *script, f *fakeNodes, hooks *fakeHooks, h *Handler) {
		n := hooked("drain", unknown)
		if _, err := through(h, hooks).Accept(t.Context(), n); !errors.Is(err, interruption.ErrNotYet) {
			t.Fatalf("at first: %v, want not yet", err)
		}
		after(10 * time.Second)
		away := errors.New("away")
		hooks.CompleteFunc = func() error { return away }
		if _, err := through(h, hooks).Accept(t.Context(), n); !errors.Is(err, away) {
			t.Fatalf("Auto Scaling away: %v", err)
		}
		for _, result := range []error{nil, lifecycle.ErrGone} {
			hooks.CompleteFunc = func() error { return result }
			if v := settle(t, h, hooks, n); v != interruption.Completed {
				t.Errorf("verdict %s", v)
			}
		}
		hooks.CompleteFunc = func() error { return lifecycle.ErrDenied } // another cluster's group
		if v := settle(t, h, hooks, n); v != interruption.Unknown {
			t.Errorf("verdict %s where it is not allowed", v)
		}
		hooks.CompleteFunc = func() error { return away }
		after(2 * time.Hour)
		if v := settle(t, h, hooks, n); v != interruption.Unknown {
			t.Errorf("verdict %s after the longest timeout of a hook", v)
		}
		if done := hooks.seen(); f.patches != 0 || len(done.completed) != 1 || done.unknown != done.asked {
			t.Errorf("%d patches, %+v", f.patches, done)
		}
	})
}

// The Node goes between the lookup and the patch: the hook is completed all the same, and the
// message is not settled before that.
func TestHookOfANodeThatGoesAtThisMoment(t *testing.T) {
	hookStory(t, nil, func(t *testing.T, _ *script, f *fakeNodes, hooks *fakeHooks, h *Handler) {
		f.beforePatch = func() { f.remove("node-a") }
		n := hooked("drain")
		if v, err := through(h, hooks).Accept(t.Context(), n); !errors.Is(err, interruption.ErrNotYet) {
			t.Fatalf("%s, %v; want not yet", v, err)
		}
		after(10 * time.Second)
		if v := settle(t, h, hooks, n); v != interruption.Completed {
			t.Errorf("verdict %s", v)
		}
	})
}

func TestHookOfALaunch(t *testing.T) {
	hookStory(t, nil, func(t *testing.T, _ *script, f *fakeNodes, hooks *fakeHooks, h *Handler) {
		ready := func(status corev1.ConditionStatus) {
			f.change(func(n *corev1.Node) { n.Status.Conditions[0].Status = status })
			after(0)
		}
		ready(corev1.ConditionFalse)
		n := hooked("launch", launch)
		for _, n := range []interruption.Notice{n, hooked("launch", launch, unknown)} {
			if _, err := through(h, hooks).Accept(t.Context(), n); !errors.Is(err, interruption.ErrNotYet) {
				t.Fatalf("not ready: %v, want not yet", err)
			}
		}
		after(time.Minute)
		ready(corev1.ConditionTrue)
		if v := settle(t, h, hooks, n); v != interruption.Completed || len(hooks.seen().completed) != 1 {
			t.Errorf("ready: verdict %s, completed %v", v, hooks.seen().completed)
		}
		ready(corev1.ConditionFalse)
		after(2 * time.Minute) // the hook's timeout
		if v := settle(t, h, hooks, n); v != interruption.Ignored {
			t.Errorf("too late: verdict %s", v)
		}
		if v := settle(t, h, hooks, hooked("launch", launch, unknown, func(n *interruption.Notice) {
			n.Hook.Since = n.Hook.Since.Add(-3 * time.Minute)
		})); v != interruption.Unknown {
			t.Errorf("too late, no node: verdict %s", v)
		}
		if _, has := f.raw(t); has || len(hooks.seen().completed) != 1 || hooks.seen().unknown != 0 {
			t.Errorf("record there: %t, %+v", has, hooks.seen())
		}
	})
}

// The hooks of a Node that is opted out are left to others: of its end and of its launch.
func TestHooksOfANodeThatIsOptedOut(t *testing.T) {
	hookStory(t, nil, func(t *testing.T, _ *script, f *fakeNodes, hooks *fakeHooks, h *Handler) {
		h.opts.Rules = func(*corev1.Node, bool) (interruption.Rules, error) {
			return interruption.Rules{Unmanaged: "labelled"}, nil
		}
		for _, n := range []interruption.Notice{hooked("drain"), hooked("launch", launch)} {
			if v := settle(t, h, hooks, n); v != interruption.Unmanaged {
				t.Errorf("%s: verdict %s", n.Hook.Name, v)
			}
		}
		after(time.Hour)
		if f.patches != 0 || hooks.seen().asked != 0 {
			t.Errorf("%d patches, asked %d times", f.patches, hooks.seen().asked)
		}
	})
}

// Waiting for Auto Scaling holds nobody up: neither the notices that are being written, nor the
// drains, which begin when there are none.
func TestHooksAreInNobodysWay(t *testing.T) {
	hookStory(t, nil, func(t *testing.T, s *script, f *fakeNodes, hooks *fakeHooks, h *Handler) {
		slow := make(chan struct{})
		hooks.CompleteFunc = func() error { <-slow; return nil }
		n := hooked("launch", launch)
		for range 10 * acceptsAtOnce {
			go func() { _, _ = through(h, hooks).Accept(t.Context(), n) }()
		}
		after(0)
		defer after(0)
		defer close(slow)
		settle(t, h, hooks, notice(interruption.SpotInterruption))
		after(2 * yieldCheck) // the notice's own
		wantPhase(t, f, interruption.Draining)
	})
}
