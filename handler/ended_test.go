package handler

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// A drain ends in the moment in which another replica merges a notice into the record: what
// came is not lost with the write that has to be made again.
func TestEndKeepsWhatCameMeanwhile(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		accept(t, h, hooked("one", func(n *interruption.Notice) { n.Deadline = n.Noticed.Add(time.Hour) }))
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		s.left = 0
		f.beforePatch = func() {
			f.change(func(n *corev1.Node) {
				rec, _, err := recordOf(n)
				if err != nil {
					t.Fatal(err)
				}
				merged, _ := rec.Merge(hooked("two"))
				n.Annotations[interruption.Annotation] = merged.String()
			})
		}
		if _, err := step(t, h); err == nil {
			t.Fatal("a record that was changed meanwhile was written over")
		}
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		rec := wantPhase(t, f, interruption.Released)
		if len(rec.Hooks) != 2 || rec.Pods.Graceful != 3 || s.finished != 1 {
			t.Errorf("record %s, ended %d times; want both hooks, and one end", rec, s.finished)
		}
		if diff := cmp.Diff(map[string]float64{"instance-terminating completed": 1}, drains(t, h)); diff != "" {
			t.Error(diff)
		}
	})
}

// A node that is interrupted once more, in the life of one process, is drained once more,
// and for a replacement of its own.
func TestNextInterruptionIsDrained(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		var asked []*interruption.Replacement
		request := h.opts.Provisioner.(*fakeProvisioner).RequestFunc
		h.opts.Provisioner.(*fakeProvisioner).RequestFunc = func(rec interruption.Record) (interruption.Replacement, error) {
			asked = append(asked, rec.Replacement)
			return request(rec)
		}
		for _, event := range []string{"first", "second"} {
			s.left, s.state, asked = 3, provisioner.StateRequested, nil
			if v := accept(t, h, notice(interruption.SpotInterruption, func(n *interruption.Notice) { n.EventID = event })); v != interruption.Accepted {
				t.Fatalf("verdict %s", v)
			}
			steps(t, f, h)
			if rec := wantPhase(t, f, interruption.Replacing); rec.Event != event || asked[0] != nil {
				t.Fatalf("record %s, asked for with %+v; want %s and none", rec, asked[0], event)
			}
			s.left, s.state = 0, provisioner.StateReady
			steps(t, f, h)
			wantPhase(t, f, interruption.Released)
			time.Sleep(time.Hour)
		}
		if diff := cmp.Diff(map[string]float64{"spot-interruption completed": 2}, drains(t, h)); diff != "" {
			t.Error(diff)
		}
	})
}

// The Node goes in the moment in which its drain has ended: that is one end, a good one.
func TestNodeGoneAtItsEndIsCountedOnce(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		accept(t, h, notice(interruption.SpotInterruption))
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		s.left = 0
		f.beforePatch = func() { f.remove("node-a") }
		for range 2 {
			if _, err := step(t, h); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(map[string]float64{"spot-interruption completed": 1}, drains(t, h)); diff != "" {
			t.Error(diff)
		}
		if len(h.known) != 0 {
			t.Errorf("%d nodes remembered", len(h.known))
		}
	})
}

// A replica that does not lead hears of every node for weeks: it keeps nothing of it.
func TestNothingIsKeptWhileNobodyReconciles(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		accept(t, h, notice(interruption.SpotInterruption))
		synctest.Wait()
		if h.queue.Len() != 0 || len(h.known) != 0 {
			t.Errorf("%d nodes wait for nobody, %d are remembered", h.queue.Len(), len(h.known))
		}
	})
}

// Whatever others have to say of a failure, the record can be read again.
func TestLongTextsOfOthers(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		long := strings.Repeat("no capacity, ö; ", 2000)
		h.opts.Provisioner.(*fakeProvisioner).RequestFunc = func(interruption.Record) (interruption.Replacement, error) {
			return interruption.Replacement{Backend: "karpenter", Name: "claim", State: provisioner.StateFailed, Reason: long}, nil
		}
		d := h.opts.Drainer.(*fakeDrainer)
		drainFunc, finish := d.DrainFunc, d.FinishFunc
		d.DrainFunc = func(node string, in drain.Interruption) (drain.Status, bool) {
			status, ok := drainFunc(node, in)
			status.Refusal = long
			return status, ok
		}
		d.FinishFunc = func(node string) drain.Result {
			result := finish(node)
			result.Refusal = long
			return result
		}
		accept(t, h, notice(interruption.SpotInterruption))
		steps(t, f, h)
		wantPhase(t, f, interruption.Draining)
		s.left = 0
		steps(t, f, h)
		wantPhase(t, f, interruption.Released)
	})
}

// An annotation that somebody has broken is not acted on: what was begun is not gone on with.
func TestUnreadableRecordStopsTheDrain(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		forgotten := 0
		h.opts.Drainer = &forgets{h.opts.Drainer.(*fakeDrainer), &forgotten}
		accept(t, h, notice(interruption.SpotInterruption))
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		f.change(func(n *corev1.Node) { n.Annotations[interruption.Annotation] = "{" })
		for range 2 {
			if again, err := step(t, h); err != nil || again != 0 {
				t.Fatalf("again in %s, %v", again, err)
			}
		}
		if forgotten != 1 {
			t.Errorf("the drain was forgotten %d times, want once", forgotten)
		}
	})
}
