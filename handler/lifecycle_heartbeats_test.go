package handler

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"spot-handler/handler/interruption"
	"spot-handler/handler/lifecycle"
	"spot-handler/handler/provisioner"
)

func heartbeats(until time.Duration) func(*setup) {
	return func(o *setup) { o.lifecycle.HeartbeatUntil = until }
}

func TestHeartbeatsAreExactAndStopAtTheDeadline(t *testing.T) {
	for _, tt := range []struct {
		timeout, until time.Duration
		beats          int
		lasts          time.Duration // the wait
	}{
		{2 * time.Minute, 10 * time.Minute, 9, 10 * time.Minute},
		{90 * time.Second, 10 * time.Minute, 13, 10 * time.Minute},
		{30 * time.Second, 48 * time.Hour, 199, 50 * time.Minute}, // 100 × timeout
		{time.Hour, 30 * time.Minute, 1, time.Hour},               // not shorter than the hook's
	} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			hookStory(t, heartbeats(tt.until), func(t *testing.T, s *script, f *fakeNodes, hooks *fakeHooks, h *Handler) {
				hooks.limits = lifecycle.LimitsOf(tt.timeout)
				n := hooked("drain")
				accept(t, h, n)
				after(time.Second)
				if rec := wantPhase(t, f, interruption.Draining); !rec.Deadline.Equal(n.Noticed.Add(tt.lasts)) {
					t.Errorf("deadline %s after the beginning, want %s", rec.Deadline.Sub(n.Noticed), tt.lasts)
				}
				after(49 * time.Hour)
				rec := wantPhase(t, f, interruption.Released)
				if len(hooks.seen().beats) != tt.beats || rec.Hooks[0].Heartbeats != tt.beats || len(hooks.seen().completed) != 1 {
					t.Fatalf("%d heartbeats, want %d; completed %v, record %s", len(hooks.seen().beats), tt.beats, hooks.seen().completed, rec)
				}
				every := tt.timeout / 2
				for i, at := range hooks.seen().beats {
					if want := n.Noticed.Add(time.Duration(i+1) * every); at.Before(want) || at.Sub(want) > time.Second {
						t.Errorf("heartbeat %d at %s, want %s after the beginning", i+1, at.Sub(n.Noticed), want.Sub(n.Noticed))
					}
				}
			})
		})
	}
}

// While records can't be written the pods leave all the same, and the group is told to wait for them.
func TestHookWhileRecordsCannotBeWritten(t *testing.T) {
	var slow *slowNodes
	hang := func(o *setup) {
		slow = &slowNodes{fakeNodes: o.Nodes.(*fakeNodes)}
		o.Nodes, o.lifecycle.HeartbeatUntil = slow, time.Hour
	}
	hookStory(t, hang, func(t *testing.T, s *script, f *fakeNodes, hooks *fakeHooks, h *Handler) {
		n := hooked("drain")
		accept(t, h, n)
		slow.set(time.Hour)
		after(time.Second)
		if want := n.Noticed.Add(time.Hour); !s.in.Deadline.Equal(want) {
			t.Errorf("drained until %s, want it until %s at once", s.in.Deadline, want)
		}
		after(5 * time.Minute)
		if beats := hooks.seen().beats; len(beats) != 5 {
			t.Errorf("%d heartbeats, want one a minute", len(beats))
		}
		slow.set(0)
		after(time.Minute)
		rec := wantPhase(t, f, interruption.Draining)
		if !rec.Deadline.Equal(n.Noticed.Add(time.Hour)) || rec.Hooks[0].Beat.IsZero() {
			t.Errorf("record %s, want what was learned meanwhile", rec)
		}
	})
}

// A drain that ends early needs no more heartbeats.
func TestHeartbeatsStopWithTheDrain(t *testing.T) {
	hookStory(t, heartbeats(time.Hour), func(t *testing.T, s *script, f *fakeNodes, hooks *fakeHooks, h *Handler) {
		accept(t, h, hooked("drain"))
		after(125 * time.Second)
		s.left = 0
		h.Enqueue("node-a")
		after(time.Hour)
		if len(hooks.seen().beats) != 2 || len(hooks.seen().completed) != 1 {
			t.Errorf("%d heartbeats, completed %v; want 2 and one", len(hooks.seen().beats), hooks.seen().completed)
		}
	})
}

// If the daemon learns of a hook after its timeout, the instance ends now, whatever heartbeats could have done.
func TestHookThatIsHeardOfTooLate(t *testing.T) {
	hookStory(t, heartbeats(time.Hour), func(t *testing.T, s *script, f *fakeNodes, hooks *fakeHooks, h *Handler) {
		hooks.HeartbeatFunc = func() error { return lifecycle.ErrGone }
		accept(t, h, hooked("drain", func(n *interruption.Notice) {
			n.Hook.Since = n.Hook.Since.Add(-10 * time.Minute)
		}))
		after(time.Second)
		if _, rec := f.now(t); time.Until(rec.Deadline) > 0 {
			t.Errorf("the deadline is in %s: %s", time.Until(rec.Deadline), rec)
		}
		after(30 * time.Second)
		wantPhase(t, f, interruption.Released)
	})
}

// The count is in the record: the next process neither doubles a heartbeat nor makes up for those
// that nobody recorded.
func TestHeartbeatsAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := &script{state: provisioner.StateUnsupported, left: 3, begun: true}, newFakeNodes(testNode())
		hooks := &fakeHooks{limits: lifecycle.LimitsOf(10 * time.Minute)}
		options := func(o *setup) {
			s.options(o)
			o.lifecycle = lifecycle.TenderOptions{Hooks: hooks, HeartbeatUntil: 5 * time.Hour}
		}
		h := newTestHandler(t, f, options)
		stop := runs(t, h)
		n := hooked("drain")
		accept(t, h, n)
		after(750 * time.Second)
		stop()
		if len(hooks.seen().beats) != 2 {
			t.Fatalf("%d heartbeats, want 2", len(hooks.seen().beats))
		}
		after(25 * time.Minute) // nobody is there: 37.5 minutes have passed
		f.watcher.Stop()
		node, _ := f.now(t)
		f = newFakeNodes(node)
		h = newTestHandler(t, f, options)
		stop = runs(t, h)
		after(time.Second)
		if len(hooks.seen().beats) != 3 {
			t.Errorf("%d heartbeats after the restart, want one at once", len(hooks.seen().beats))
		}
		after(5 * time.Minute)
		_, rec := f.now(t)
		if len(hooks.seen().beats) != 4 || rec.Hooks[0].Heartbeats != 4 {
			t.Errorf("%d heartbeats, record %s; want 4", len(hooks.seen().beats), rec)
		}
		s.left = 0
		h.Enqueue("node-a")
		after(time.Second)
		if len(hooks.seen().completed) != 1 {
			t.Errorf("completed %v", hooks.seen().completed)
		}
		stop()
		f.watcher.Stop()
	})
}

// If the hook cannot be read, its timeout is assumed. If heartbeats cannot be recorded, the
// drain has the hook's own timeout.
func TestDeadlineOfAHook(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*setup, *fakeHooks)
		want   time.Duration
	}{
		"not allowed to read it": {func(_ *setup, f *fakeHooks) { f.LimitsFunc = func() error { return lifecycle.ErrDenied } }, 5 * time.Minute},
		"no such hook":           {func(_ *setup, f *fakeHooks) { f.LimitsFunc = func() error { return lifecycle.ErrGone } }, 5 * time.Minute},
		"Auto Scaling away":      {func(_ *setup, f *fakeHooks) { f.LimitsFunc = func() error { return errors.New("away") } }, 5 * time.Minute},
		"heartbeats not allowed": {func(o *setup, f *fakeHooks) {
			heartbeats(time.Hour)(o)
			f.HeartbeatFunc = func() error { return lifecycle.ErrDenied }
		}, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			var hooks *fakeHooks
			hookStory(t, func(o *setup) {
				hooks = o.lifecycle.Hooks.(*fakeHooks)
				tt.change(o, hooks)
			}, func(t *testing.T, s *script, f *fakeNodes, _ *fakeHooks, h *Handler) {
				n := hooked("drain")
				accept(t, h, n)
				after(70 * time.Second) // the first heartbeat is due after a minute
				if rec := wantPhase(t, f, interruption.Draining); !rec.Deadline.Equal(n.Noticed.Add(tt.want)) {
					t.Errorf("deadline %s after the beginning, want %s", rec.Deadline.Sub(n.Noticed), tt.want)
				}
			})
		})
	}
}
