package handler

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// A replica that does not lead sees every node for weeks, and keeps none of it.
func TestNothingIsKeptWhileNobodyReconciles(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		accept(t, h, notice(interruption.SpotInterruption))
		synctest.Wait()
		if h.queue.Len() != 0 || len(h.memory.byNode) != 0 {
			t.Errorf("%d nodes wait for nobody, %d are remembered", h.queue.Len(), len(h.memory.byNode))
		}
	})
}

// A replica that does not lead writes records for as long as it lives, and keeps none of them.
func TestStandbyKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newStandby(t, newFakeNodes(testNode()), nil)
		accept(t, h, notice(interruption.SpotInterruption))
		synctest.Wait()
		if len(h.opts.Index.WithRecord()) != 1 {
			t.Fatal("the record is not seen")
		}
		if n := h.queue.Len(); n != 0 {
			t.Errorf("%d names wait for a reconciliation that nobody makes", n)
		}
	})
}

// During a burst drains wait, but not for ever, and not where a notice leaves them no time for that; after it they
// begin at once. For a few notices whose writes hang none waits.
func TestDrainsYieldToNotices(t *testing.T) {
	for name, tt := range map[string]struct {
		others int64         // notices that are being written
		lead   time.Duration // of the node's own
		over   time.Duration // when the burst is over; zero: it goes on
		begins time.Duration
	}{
		"the burst is over":        {burst, 2 * time.Minute, time.Second, time.Second},
		"the burst goes on":        {burst, 2 * time.Minute, 0, 30 * time.Second},
		"the notice is late":       {burst, 100 * time.Second, 0, 10 * time.Second},
		"there is no time to wait": {burst, 90 * time.Second, 0, 0},
		"the notice has no lead":   {burst, 0, 0, 0},
		"some writes hang":         {burst - 1, 2 * time.Minute, 0, 0},
		"the deadline is far away": {burst, 24 * time.Hour, 0, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
				h.running.Store(true)
				go func() {
					for h.work(t.Context()) {
					}
				}()
				h.accepting.Add(tt.others)
				accept(t, h, notice(interruption.SpotInterruption, func(n *interruption.Notice) {
					n.Deadline = n.Received.Add(tt.lead)
				}))
				if tt.over > 0 {
					time.AfterFunc(tt.over, func() {
						h.accepting.Add(-1)
						_, _ = h.Accept(t.Context(), notice(interruption.SpotInterruption)) // once more
					})
				}
				if tt.begins > 0 {
					time.Sleep(tt.begins - time.Millisecond)
					wantPhase(t, f, interruption.Noticed)
				}
				time.Sleep(2 * time.Millisecond)
				if _, rec := f.now(t); rec.Phase == interruption.Noticed {
					t.Errorf("the drain has not begun after %s", tt.begins)
				}
				h.queue.ShutDown()
			})
		})
	}
}

// A process that begins to drain announces what a node's own process has recorded since, and not what was recorded
// long before.
func TestRunAnnouncesOnlyWhatIsNew(t *testing.T) {
	for age, want := range map[time.Duration]int{time.Minute: 0, time.Second: 1} {
		synctest.Test(t, func(t *testing.T) {
			f, events := newFakeNodes(testNode()), &shownNews{}
			defer f.watcher.Stop()
			s := &script{state: provisioner.StateRequested, left: 3}
			h := newStandby(t, f, func(o *setup) { s.options(o); o.Events = events })
			rec := interruption.NewRecord(notice(interruption.SpotInterruption, func(n *interruption.Notice) {
				n.Source, n.Received = interruption.IMDS, time.Now().Add(-age)
			}))
			f.change(func(n *corev1.Node) { n.Annotations = map[string]string{interruption.Annotation: rec.String()} })
			synctest.Wait()
			ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
			defer stop()
			_ = h.Run(ctx)
			if len(events.shown) != want {
				t.Errorf("a record of %s ago: announced %q, want %d", age, events.shown, want)
			}
		})
	}
}

// Of a node that is gone nothing is remembered; of one that is still there only what was written of
// its condition, which has yet to be removed.
func TestForgottenNode(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		accept(t, h, notice(interruption.SpotInterruption))
		synctest.Wait()
		remembered := func() (condition bool) {
			_, condition = h.conditions.written.Load("node-a")
			return condition
		}
		h.memory.get("node-a").rec.Instance = "i-a"
		h.conditions.written.Store("node-a", "5")
		h.forget("node-a")
		if len(h.memory.byNode) != 0 || !remembered() {
			t.Errorf("the node is there: %d interruptions are remembered, and a condition: %t", len(h.memory.byNode), remembered())
		}
		f.remove("node-a")
		synctest.Wait()
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		if len(h.memory.byNode) != 0 || remembered() {
			t.Errorf("the node is gone: %d interruptions are remembered, and a condition: %t", len(h.memory.byNode), remembered())
		}
	})
}

// The lease is given up when Run returns, so it returns only when everything that it started has.
func TestRunWaitsForWhatItStarted(t *testing.T) {
	slow := func(ctx context.Context) error { <-ctx.Done(); time.Sleep(2 * time.Second); return nil }
	for name, tt := range map[string]struct{ drainer, provisioner func(context.Context) error }{
		"the drainer":     {drainer: slow},
		"the provisioner": {provisioner: slow},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeNodes(testNode())
				defer f.watcher.Stop()
				h := newStandby(t, f, func(o *setup) {
					o.Drainer, o.Provisioner = &fakeDrainer{RunFunc: tt.drainer}, &fakeProvisioner{RunFunc: tt.provisioner}
				})
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- h.Run(ctx) }()
				time.Sleep(time.Minute)
				stop()
				time.Sleep(time.Second)
				select {
				case err := <-ended:
					t.Fatalf("Run has returned %v, and %s goes on", err, name)
				default:
				}
				time.Sleep(2 * time.Second)
				select {
				case err := <-ended:
					if err != nil {
						t.Error(err)
					}
				default:
					t.Error("Run does not return")
				}
			})
		})
	}
}

// What ends by an error ends all, so that the process says so and another one takes over.
func TestRunReturnsErrors(t *testing.T) {
	broken := errors.New("broken")
	fails := func(context.Context) error { time.Sleep(time.Second); return broken }
	for name, tt := range map[string]struct{ drainer, provisioner func(context.Context) error }{
		"the drainer":     {drainer: fails},
		"the provisioner": {provisioner: fails},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeNodes(testNode())
				defer f.watcher.Stop()
				h := newStandby(t, f, func(o *setup) {
					o.Drainer, o.Provisioner = &fakeDrainer{RunFunc: tt.drainer}, &fakeProvisioner{RunFunc: tt.provisioner}
				})
				if err := h.Run(t.Context()); !errors.Is(err, broken) {
					t.Errorf("Run returns %v, want the error of %s", err, name)
				}
			})
		})
	}
}
