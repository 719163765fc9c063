package handler

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/notify"
)

// state is a message about the state of the instance, made now: its deadline is its time.
func state(action string) interruption.Notice {
	return notice(interruption.StateChange, func(n *interruption.Notice) {
		n.EventID, n.Action, n.Deadline = "state-"+action, action, n.Noticed
	})
}

func (f *fakeNodes) ready(status corev1.ConditionStatus) {
	f.change(func(n *corev1.Node) { n.Status.Conditions[0].Status = status })
}

func TestStoppingIsAnEmergencyDrain(t *testing.T) {
	for _, action := range []string{interruption.ActionStopping, interruption.ActionShuttingDown} {
		scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
			n := state(action)
			accept(t, h, n)
			wantMarks(t, f, true)
			again := untilStable(t, f, h)
			wantPhase(t, f, interruption.Replacing)
			if !s.in.Deadline.Equal(n.Deadline) || again != time.Until(n.Received.Add(20*time.Second)) {
				t.Errorf("deadline %s, looks again in %s", s.in.Deadline, again)
			}
			f.ready(corev1.ConditionUnknown)
			time.Sleep(again)
			untilStable(t, f, h)
			want := interruption.Released
			if action == interruption.ActionStopping {
				want = interruption.DeadlineReached // kept
			}
			wantPhase(t, f, want)
			if node, _ := f.raw(t); hasTaintOf(node, corev1.TaintNodeOutOfService) {
				t.Errorf("%s: out of service, though not terminated", action)
			}
		})
	}
}

// The usual end: drained and released long ago. Nothing is done twice. Once the instance is terminated, the
// out-of-service taint frees what is left on the node.
func TestStatesAfterTheDrainAreQuiet(t *testing.T) {
	scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		notified := &counting{}
		h.opts.Events = notified
		accept(t, h, notice(interruption.SpotInterruption))
		s.left = 0
		untilStable(t, f, h)
		wantPhase(t, f, interruption.Released)
		patches, events := f.patches, notified.n
		time.Sleep(2 * time.Minute)
		for _, action := range []string{interruption.ActionStopping, interruption.ActionShuttingDown} {
			if v := accept(t, h, state(action)); v != interruption.Duplicate {
				t.Errorf("%s: verdict %s", action, v)
			}
		}
		untilStable(t, f, h)
		if f.patches != patches {
			t.Errorf("%d patches for nothing", f.patches-patches)
		}
		f.ready(corev1.ConditionUnknown)
		untilStable(t, f, h)
		if v := accept(t, h, state(interruption.ActionTerminated)); v != interruption.Accepted {
			t.Errorf("verdict %s", v)
		}
		untilStable(t, f, h)
		rec := wantPhase(t, f, interruption.Released)
		node, _ := f.raw(t)
		if !slices.Contains(node.Spec.Taints, outOfService()) || !slices.Contains(rec.Ours, interruption.OursOutOfService) {
			t.Errorf("taints %v, record %s", node.Spec.Taints, rec)
		}
		if f.patches != patches+1 || notified.n != events || s.finished != 1 || s.released != 1 {
			t.Errorf("%d patches, %d Events, finished %d and released %d times", f.patches-patches, notified.n-events, s.finished, s.released)
		}
		if v := accept(t, h, state(interruption.ActionTerminated)); v != interruption.Duplicate {
			t.Errorf("verdict %s the second time", v)
		}
	})
}

// counting counts Events about notices and ends.
type counting struct{ n int }

func (c *counting) Notify(n notify.News) {
	if n.Stage != "" {
		c.n++
	}
}

// The taint out-of-service is for machines that are known to be off.
func TestLivingNodesAreNeverOutOfService(t *testing.T) {
	out := func(f *fakeNodes) bool {
		node, _ := f.raw(t)
		return hasTaintOf(node, corev1.TaintNodeOutOfService)
	}
	t.Run("not while Ready, and no more when it is again", func(t *testing.T) {
		scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
			accept(t, h, state(interruption.ActionTerminated))
			untilStable(t, f, h)
			if out(f) {
				t.Fatal("a Ready node is out of service")
			}
			f.ready(corev1.ConditionUnknown)
			untilStable(t, f, h)
			if !out(f) {
				t.Fatal("a dead node of a terminated instance is in service")
			}
			f.change(func(n *corev1.Node) {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "theirs", Effect: corev1.TaintEffectNoSchedule})
			})
			f.ready(corev1.ConditionTrue)
			untilStable(t, f, h)
			if node, _ := f.raw(t); out(f) || !hasTaintOf(node, "theirs") || !hasTaintOf(node, interruption.TaintKey) {
				t.Errorf("taints %v, want only the one taken back", node.Spec.Taints)
			}
		})
	})
	t.Run("cancelled", func(t *testing.T) {
		scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
			f.ready(corev1.ConditionUnknown)
			accept(t, h, state(interruption.ActionTerminated))
			if !out(f) {
				t.Fatal("the notice's own patch does not say so")
			}
			f.change(func(n *corev1.Node) { n.Annotations[interruption.CancelAnnotation] = "true" })
			untilStable(t, f, h)
			wantNoRecord(t, f)
			if out(f) {
				t.Error("out of service still")
			}
		})
	})
	t.Run("cancelled when it dies", func(t *testing.T) {
		scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
			accept(t, h, state(interruption.ActionTerminated))
			f.change(func(n *corev1.Node) {
				n.Annotations[interruption.CancelAnnotation] = "true"
				n.Status.Conditions[0].Status = corev1.ConditionUnknown
			})
			untilStable(t, f, h)
			wantNoRecord(t, f)
			if out(f) {
				t.Error("out of service")
			}
		})
	})
	t.Run("tainted by the control plane at the same moment", func(t *testing.T) {
		scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
			accept(t, h, state(interruption.ActionTerminated))
			f.ready(corev1.ConditionUnknown)
			f.beforePatch = func() {
				f.change(func(n *corev1.Node) {
					n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute})
				})
			}
			for range 2 {
				if _, err := step(t, h); err != nil {
					t.Fatal(err)
				}
			}
			if node, _ := f.raw(t); !out(f) || !hasTaintOf(node, corev1.TaintNodeUnreachable) {
				t.Errorf("taints %v, want both", node.Spec.Taints)
			}
		})
	})
	t.Run("an admin's stays", func(t *testing.T) {
		scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
			f.change(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{outOfService()} })
			f.ready(corev1.ConditionUnknown)
			accept(t, h, state(interruption.ActionTerminated))
			f.change(func(n *corev1.Node) { n.Annotations[interruption.CancelAnnotation] = "true" })
			untilStable(t, f, h)
			if !out(f) {
				t.Error("the admin's taint is gone")
			}
		})
	})
	for name, tt := range map[string]struct {
		change func(n *corev1.Node)
		notice func(n *interruption.Notice)
		want   interruption.Verdict
	}{
		"hours old, and the node lives": {func(*corev1.Node) {}, func(n *interruption.Notice) {
			n.Deadline, n.Noticed = n.Deadline.Add(-2*time.Hour), n.Noticed.Add(-2*time.Hour)
		}, interruption.Stale},
		"the node became Ready since": {func(n *corev1.Node) { n.Status.Conditions[0].LastTransitionTime = metav1.Now() },
			func(n *interruption.Notice) {
				n.Deadline, n.Noticed = n.Deadline.Add(-time.Minute), n.Noticed.Add(-time.Minute)
			}, interruption.Stale},
		"another instance": {func(n *corev1.Node) { n.Spec.ProviderID = "aws:///eu-west-1a/i-0fffffffffffffff0" },
			func(*interruption.Notice) {}, interruption.Unknown},
		"Cluster Autoscaler scales it down": {func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Value: "1767225600", Effect: corev1.TaintEffectNoSchedule}}
		}, func(*interruption.Notice) {}, interruption.Ignored},
		"somebody deletes the node": {func(n *corev1.Node) {
			now := metav1.Now()
			n.DeletionTimestamp, n.Finalizers = &now, []string{"karpenter.sh/termination"}
			n.Status.Conditions[0].Status = corev1.ConditionUnknown
		}, func(*interruption.Notice) {}, interruption.Ignored},
	} {
		t.Run(name, func(t *testing.T) {
			for _, action := range []string{interruption.ActionTerminated, interruption.ActionShuttingDown, interruption.ActionStopped} {
				scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
					f.change(tt.change)
					_, _ = step(t, h)
					n := state(action)
					tt.notice(&n)
					before := f.patches
					if v := accept(t, h, n); v != tt.want || f.patches != before {
						t.Errorf("%s: verdict %s, want %s; %d patches", action, v, tt.want, f.patches-before)
					}
				})
			}
		})
	}
}

// A stopped instance that is terminated after all is not waited for.
func TestStoppedInstanceIsTerminatedInTheEnd(t *testing.T) {
	scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		accept(t, h, state(interruption.ActionStopping))
		s.left = 0
		untilStable(t, f, h)
		f.ready(corev1.ConditionUnknown)
		if v := accept(t, h, state(interruption.ActionStopped)); v != interruption.Duplicate {
			t.Errorf("verdict %s", v)
		}
		wantPhase(t, f, interruption.Drained)
		time.Sleep(time.Hour)
		accept(t, h, state(interruption.ActionTerminated))
		untilStable(t, f, h)
		wantPhase(t, f, interruption.Released)
		if node, _ := f.raw(t); !hasTaintOf(node, corev1.TaintNodeOutOfService) {
			t.Errorf("taints %v", node.Spec.Taints)
		}
	})
}

func outOfService() corev1.Taint {
	return corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}
}
