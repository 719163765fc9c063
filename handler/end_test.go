package handler

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

// changeRecord is another replica that writes the record.
func changeRecord(t *testing.T, f *fakeNodes, change func(*interruption.Record)) {
	f.change(func(n *corev1.Node) {
		rec, err := nodes.Record(n)
		if err != nil {
			t.Fatal(err)
		}
		change(&rec)
		n.Annotations[interruption.Annotation] = rec.String()
	})
}

// A drain ends just as another replica merges a notice into the record: the notice is not lost
// when the write has to be made again.
func TestEndKeepsWhatCameMeanwhile(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		accept(t, h, hooked("one", func(n *interruption.Notice) { n.Deadline = n.Noticed.Add(time.Hour) }))
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		s.left = 0
		f.beforePatch = func() {
			changeRecord(t, f, func(rec *interruption.Record) { *rec, _ = rec.Merge(hooked("two")) })
		}
		if again, err := step(t, h); err != nil || again != changedCheck {
			t.Fatalf("again in %s, %v; want to wait for the watch, as the record is not as it was", again, err)
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

// The same, but the record names a replacement by then. This process requested none, because no pod had to leave.
func TestEndKeepsTheReplacement(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		accept(t, h, hooked("one", func(n *interruption.Notice) { n.Deadline = n.Noticed.Add(time.Hour) }))
		named := interruption.Replacement{Backend: "asg", Name: "group", Pool: "group", State: provisioner.StateRequested}
		s.left = 0
		f.beforePatch = func() {
			changeRecord(t, f, func(rec *interruption.Record) { rec.Replacement = &named })
		}
		for range 3 {
			if _, err := step(t, h); err != nil {
				t.Fatal(err)
			}
		}
		if rec := wantPhase(t, f, interruption.Released); rec.Replacement == nil || *rec.Replacement != named || s.finished != 1 {
			t.Errorf("record %s, ended %d times; want the replacement kept, and one end", rec, s.finished)
		}
	})
}

// Whatever others say about a failure, the record stays readable.
func TestLongTextsOfOthers(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		long := strings.Repeat("no capacity, ö; ", 2000)
		h.opts.Provisioner.(*fakeProvisioner).RequestFunc = func(interruption.Record) (interruption.Replacement, error) {
			return interruption.Replacement{Backend: "karpenter", Name: "claim", State: provisioner.StateFailed, Reason: long}, nil
		}
		d := h.opts.Drainer.(*fakeDrainer)
		drainFunc, finish := d.DrainFunc, d.ResultFunc
		d.DrainFunc = func(node string, in plan.NodeState) (plan.Status, bool) {
			status, ok := drainFunc(node, in)
			status.Refusal = long
			return status, ok
		}
		d.ResultFunc = func(node string) interruption.Pods {
			result := finish(node)
			result.Refusal = long
			return result
		}
		accept(t, h, notice(interruption.SpotInterruption))
		untilStable(t, f, h)
		wantPhase(t, f, interruption.Draining)
		s.left = 0
		untilStable(t, f, h)
		wantPhase(t, f, interruption.Released)
	})
}
