package handler

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// cancels has the fake drainer finish a cancellation as soon as done says so.
func cancels(h *Handler, done func() bool) {
	h.opts.Drainer.(*fakeDrainer).CancelFunc = func(string) *plan.Canceled {
		if !done() {
			return nil
		}
		return &plan.Canceled{Pods: interruption.Pods{Total: 1, Graceful: 1}}
	}
}

// What is known of one interruption's room says nothing about the next.
func TestRoomIsForgottenWithTheInterruption(t *testing.T) {
	another := func(n *interruption.Notice) { n.EventID = "event-2" }
	for name, next := range map[string]func(t *testing.T, f *fakeNodes, h *Handler){
		"cancelled": func(t *testing.T, f *fakeNodes, h *Handler) {
			cancels(h, func() bool { return true })
			f.change(func(n *corev1.Node) { n.Annotations[interruption.CancelAnnotation] = "true" })
		},
		"record removed": func(t *testing.T, f *fakeNodes, h *Handler) {
			cancels(h, func() bool { return true })
			f.change(func(n *corev1.Node) { delete(n.Annotations, interruption.Annotation) })
		},
		"node gone": func(t *testing.T, f *fakeNodes, h *Handler) { f.remove("node-a") },
		"a notice in a rehearsal": func(t *testing.T, f *fakeNodes, h *Handler) {
			accept(t, h, notice(interruption.SpotInterruption, another))
		},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
				rehearse(t, f)
				if _, err := step(t, h); err != nil {
					t.Fatal(err)
				}
				room := h.opts.Provisioner.(*fakeProvisioner)
				if len(room.forgotten) != 0 {
					t.Fatalf("forgotten while its drain goes on: %v", room.forgotten)
				}
				next(t, f, h)
				if _, err := step(t, h); err != nil || len(room.forgotten) == 0 {
					t.Errorf("%v, forgotten %v", err, room.forgotten)
				}
			})
		})
	}
}

func TestCancelUndoesWhatWeSet(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		f.change(func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "theirs", Effect: corev1.TaintEffectNoSchedule}}
		})
		accept(t, h, notice(interruption.SpotInterruption))
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		f.change(func(n *corev1.Node) { n.Annotations[interruption.CancelAnnotation] = "true" })

		tries := 0
		cancels(h, func() bool { tries++; return tries > 2 }) // evictions are under way, then surged pods go back
		for range 2 {
			if again, err := step(t, h); err != nil || again != time.Second {
				t.Fatalf("again in %s, %v; want to look again in a second", again, err)
			}
		}
		if node, _ := f.raw(t); !node.Spec.Unschedulable {
			t.Fatal("uncordoned before the drain was cancelled")
		}
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		node, has := f.raw(t)
		if has || node.Annotations[interruption.CancelAnnotation] != "" {
			t.Errorf("annotations %v, want none of ours", node.Annotations)
		}
		if node.Spec.Unschedulable || len(node.Spec.Taints) != 1 || node.Spec.Taints[0].Key != "theirs" ||
			node.Labels[interruption.ExcludeFromLoadBalancers] != "" {
			t.Errorf("cordon %v, taints %v, labels %v; want the node as it was", node.Spec.Unschedulable, node.Spec.Taints, node.Labels)
		}
	})
}

// A queue delivers twice, the metadata service shows it as long as the node runs, and both
// sources announce the same thing: what was cancelled stays cancelled. What is new does not.
func TestCanceledDoesNotBeginAgain(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		cancels(h, func() bool { return true })
		first, recommended := notice(interruption.SpotInterruption), notice(interruption.RebalanceRecommendation)
		recommended.EventID = "event-0"
		accept(t, h, recommended)
		accept(t, h, first)
		f.change(func(n *corev1.Node) { n.Annotations[interruption.CancelAnnotation] = "true" })
		untilStable(t, f, h)
		if _, has := f.raw(t); has {
			t.Fatal("not cancelled")
		}
		byOther := first
		byOther.Source, byOther.EventID, byOther.Deadline = interruption.IMDS, "imds/other", first.Deadline.Add(time.Second)
		recommendedByOther := recommended
		recommendedByOther.Source, recommendedByOther.EventID = interruption.IMDS, "imds/recommended"
		for _, n := range []interruption.Notice{first, byOther, recommended, recommendedByOther} {
			if v := accept(t, h, n); v != interruption.Duplicate {
				t.Errorf("%s %s from %s is %s, want a duplicate", n.Kind, n.EventID, n.Source, v)
			}
		}
		// One that was announced before, and was weaker, now stands on its own.
		retired := notice(interruption.ScheduledEvent)
		retired.EventID, retired.Action, retired.Noticed = "event-retired", interruption.ActionRetirement, first.Noticed.Add(-time.Hour)
		retired.Deadline = first.Deadline.Add(72 * time.Hour)
		if v := accept(t, h, retired); v != interruption.Accepted {
			t.Errorf("a retirement that is announced too is %s", v)
		}
		next := first
		time.Sleep(time.Minute)
		next.EventID, next.Noticed, next.Deadline = "event-2", time.Now(), first.Deadline.Add(time.Minute)
		if v := accept(t, h, next); v != interruption.Accepted {
			t.Errorf("the next interruption is %s", v)
		}
	})
}

// What an admin had set before is none of our business.
func TestCancelLeavesWhatWasThereBefore(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		f.change(func(n *corev1.Node) {
			n.Spec.Unschedulable = true
			n.Labels[interruption.ExcludeFromLoadBalancers] = "admin"
		})
		accept(t, h, notice(interruption.SpotInterruption))
		f.change(func(n *corev1.Node) { n.Annotations[interruption.CancelAnnotation] = "true" })
		cancels(h, func() bool { return true })
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		node, has := f.raw(t)
		if has || !node.Spec.Unschedulable || node.Labels[interruption.ExcludeFromLoadBalancers] != "admin" || len(node.Spec.Taints) != 0 {
			t.Errorf("record %v, cordon %v, labels %v, taints %v", has, node.Spec.Unschedulable, node.Labels, node.Spec.Taints)
		}
	})
}

// Whoever takes the record away takes the node over: the drain stops, the cordon stays.
func TestRecordRemovedStopsTheDrain(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		accept(t, h, notice(interruption.SpotInterruption))
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		f.change(func(n *corev1.Node) { delete(n.Annotations, interruption.Annotation) })
		off := 0
		cancels(h, func() bool { off++; return true })
		for range 2 {
			if _, err := step(t, h); err != nil {
				t.Fatal(err)
			}
		}
		if node, _ := f.raw(t); off != 1 || !node.Spec.Unschedulable {
			t.Errorf("cancelled %d times, cordon %v; want once, and cordoned still", off, node.Spec.Unschedulable)
		}
	})
}

// A notice that comes while the drain of a removed record is being stopped begins a new drain;
// the stopped one begins nothing more.
func TestNoticeWhileARemovedRecordIsStopped(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		forgotten := 0
		h.opts.Drainer = &forgets{h.opts.Drainer.(*fakeDrainer), &forgotten}
		accept(t, h, notice(interruption.SpotInterruption))
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		f.change(func(n *corev1.Node) { delete(n.Annotations, interruption.Annotation) })
		h.opts.Drainer.(*forgets).CancelFunc = func(string) *plan.Canceled { return nil }
		if again, err := step(t, h); err != nil || again != time.Second {
			t.Fatalf("again in %s, %v; want in a second", again, err)
		}
		accept(t, h, notice(interruption.SpotInterruption, func(n *interruption.Notice) { n.EventID = "event-2" }))
		before := forgotten
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		if forgotten != before+1 {
			t.Errorf("the stopped drain was forgotten %d times, want once", forgotten-before)
		}
	})
}

// A cancel annotation left over from an earlier interruption does not cancel a new one.
func TestNoticeRemovesAnOldCancel(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		f.change(func(n *corev1.Node) { n.Annotations = map[string]string{interruption.CancelAnnotation: "true"} })
		accept(t, h, notice(interruption.SpotInterruption))
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		if wantPhase(t, f, interruption.Replacing).Replacement.State != provisioner.StateRequested {
			t.Error("no replacement requested")
		}
	})
}

// The watch is late: the record that has just been removed is seen again.
func TestCancelIsCountedOnce(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		accept(t, h, notice(interruption.SpotInterruption))
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		f.change(func(n *corev1.Node) { n.Annotations[interruption.CancelAnnotation] = "true" })
		synctest.Wait()
		cancels(h, func() bool { return true })
		for range 2 { // the second time before the first one's write comes back
			if _, err := h.reconcile(t.Context(), "node-a"); err != nil {
				t.Fatal(err)
			}
			cancels(h, func() bool { return false }) // a new watch of pods has not synced yet
		}
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		cancels(h, func() bool { return true })
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		if counted := drains(t, h); counted["spot-interruption canceled"] != 1 || len(h.memory.byNode) != 0 {
			t.Errorf("counted %v, %d nodes remembered", counted, len(h.memory.byNode))
		}
	})
}
