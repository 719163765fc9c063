package handler

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/notify"
	"spot-handler/handler/provisioner"
)

// A node that is interrupted again, during the life of one process, is drained again, and with
// a replacement of its own.
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
			untilStable(t, f, h)
			if rec := wantPhase(t, f, interruption.Replacing); rec.Event != event || asked[0] != nil {
				t.Fatalf("record %s, asked for with %+v; want %s and none", rec, asked[0], event)
			}
			s.left, s.state = 0, provisioner.StateReady
			untilStable(t, f, h)
			wantPhase(t, f, interruption.Released)
			time.Sleep(time.Hour)
		}
		if diff := cmp.Diff(map[string]float64{"spot-interruption completed": 2}, drains(t, h)); diff != "" {
			t.Error(diff)
		}
	})
}

// The Node goes just as its drain has ended: that is one end, a good one.
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
		if len(h.memory.byNode) != 0 {
			t.Errorf("%d nodes remembered", len(h.memory.byNode))
		}
	})
}

// An annotation that somebody has broken is not acted on: what was begun stops.
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

// A record that cannot be read, or that speaks of another instance than its Node's, is said
// once, counted, and not acted on: its drain would detach, terminate or complete hooks of an
// instance that somebody else has named.
func TestRecordThatIsNotActedOn(t *testing.T) {
	forged := interruption.NewRecord(notice(interruption.SpotInterruption, func(n *interruption.Notice) { n.InstanceID = "i-0fedcba9876543210" }))
	drained := forged
	drained.Phase = interruption.Drained
	for name, text := range map[string]string{
		"unreadable": `{"kind":"meteor","phase":"Noticed"}`, "of another instance": forged.String(), "of another instance, drained": drained.String(),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeNodes(testNode(func(n *corev1.Node) {
					n.Labels = map[string]string{interruption.InstanceIDLabel: "i-0fedcba9876543210"} // whoever can write the one can write the other
					n.Annotations = map[string]string{interruption.Annotation: text}
				}))
				defer f.watcher.Stop()
				h := newTestHandler(t, f, (&script{}).options)
				for range 2 {
					if again, err := step(t, h); err != nil || again != 0 || f.patches != 0 {
						t.Errorf("again in %s, error %v, %d patches; want to be left alone", again, err, f.patches)
					}
				}
				counted := &dto.Metric{}
				if err := h.metrics.rejected.Write(counted); err != nil || counted.GetCounter().GetValue() != 1 {
					t.Errorf("counted %v times, %v; want once", counted.GetCounter().GetValue(), err)
				}
			})
		})
	}
}

// Whoever owns a kubelet can make its Node with another's provider id. Its record is not acted on
// while the real Node is Ready, as long as that was there first.
func TestRecordOfAnInstanceThatAnotherNodeIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		real := testNode(func(n *corev1.Node) {
			n.Name = "real"
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		})
		f := newFakeNodes(real, testNode(func(n *corev1.Node) {
			n.CreationTimestamp = metav1.NewTime(time.Now())
			n.Annotations = map[string]string{interruption.Annotation: interruption.NewRecord(notice(interruption.SpotInterruption)).String()}
			n.Status.Conditions = real.Status.Conditions
		}))
		defer f.watcher.Stop()
		h := newTestHandler(t, f, (&script{}).options)
		if again, err := step(t, h); err != nil || again != 0 || f.patches != 0 {
			t.Errorf("again in %s, error %v, %d patches; want to be left alone", again, err, f.patches)
		}
		if node, ok := h.opts.Index.Find(notice(interruption.SpotInterruption)); !ok || node.Name != "real" {
			t.Errorf("the instance is %v", node)
		}
		f.remove("real")
		synctest.Wait()
		if _, err := step(t, h); err != nil || f.patches == 0 {
			t.Errorf("error %v, %d patches; want to be acted on", err, f.patches)
		}
	})
}

// A Node can be gone for seconds before the watch says so. Its drain ends once, and is reported once: a write
// that found no such Node is believed until then.
func TestNodeIsGoneBeforeTheWatchSaysSo(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		events := &shownNews{}
		h.opts.Events = events
		accept(t, h, notice(interruption.SpotInterruption))
		s.left = 1
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		f.mu.Lock()
		gone := f.byName["node-a"]
		delete(f.byName, "node-a")
		f.mu.Unlock()
		time.Sleep(interruption.SpotNotice)
		for range 3 {
			if _, err := step(t, h); err != nil {
				t.Fatal(err)
			}
		}
		f.watcher.Delete(gone)
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		if want := []string{"noticed spot-interruption", notify.ReasonDeadlineReached}; !slices.Equal(events.shown, want) || s.finished != 1 {
			t.Errorf("finished %d times, notified %q, want once and %q", s.finished, events.shown, want)
		}
	})
}

// A node that goes before its drain has ended is an outcome too, and is reported with what is
// known of it.
func TestNodeGoneIsReported(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		events := &shownNews{}
		h.opts.Events = events
		accept(t, h, notice(interruption.SpotInterruption))
		s.left = 1
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		h.nodeGone(t.Context(), "node-a", h.memory.get("node-a"))
		h.nodeGone(t.Context(), "node-a", h.memory.get("node-a")) // forgotten
		want := []string{"noticed spot-interruption", notify.ReasonNodeGone}
		if diff := cmp.Diff(want, events.shown); diff != "" {
			t.Errorf("notified (-want +got):\n%s", diff)
		}
	})
}

// Somebody else was faster, and the watch brings what they wrote. If it doesn't, the node is looked at again.
func TestConflictIsLookedAtAgain(t *testing.T) {
	story(t, func(t *testing.T, _ *script, f *fakeNodes, h *Handler) {
		cancels(h, func() bool { return true })
		accept(t, h, notice(interruption.SpotInterruption))
		f.change(func(n *corev1.Node) { n.Annotations[interruption.CancelAnnotation] = "true" })
		f.beforePatch = func() { // nothing comes by the watch
			f.mu.Lock()
			defer f.mu.Unlock()
			f.put(f.byName["node-a"].DeepCopy())
		}
		again, err := step(t, h)
		if err != nil || again != 5*time.Second {
			t.Errorf("again in %s, %v; want 5 s", again, err)
		}
	})
}
