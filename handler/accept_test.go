package handler

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
	"spot-handler/handler/nodes"
)

const instance = "i-0123456789abcdef0"

func testNode(change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: "node-a"},
		Spec:       corev1.NodeSpec{ProviderID: "aws:///eu-west-1a/" + instance},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
	for _, f := range change {
		f(n)
	}
	return n
}

func notice(kind interruption.Kind, change ...func(*interruption.Notice)) interruption.Notice {
	now := time.Now().Truncate(time.Second)
	n := interruption.Notice{Kind: kind, Source: interruption.Queue, EventID: "event-1", InstanceID: instance, Noticed: now, Received: now}
	if kind == interruption.SpotInterruption {
		n.Deadline = now.Add(2 * time.Minute)
	}
	for _, f := range change {
		f(&n)
	}
	return n
}

func accept(t *testing.T, h *Handler, n interruption.Notice) interruption.Verdict {
	t.Helper()
	v, err := h.Accept(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (f *fakeNodes) now(t *testing.T) (*corev1.Node, interruption.Record) {
	t.Helper()
	n, err := f.Get(t.Context(), "node-a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rec, err := nodes.Record(n)
	if err != nil {
		t.Fatal(err)
	}
	return n, rec
}

// A queue doesn't keep order. What is withdrawn before it arrives is remembered on the Node, and does not begin.
func TestAcceptOfWhatWasWithdrawnBefore(t *testing.T) {
	story(t, func(t *testing.T, _ *script, nodes *fakeNodes, h *Handler) {
		withdrawal := rebootInAWeek()
		withdrawal.Withdrawn = true
		for _, n := range []interruption.Notice{withdrawal, withdrawal} {
			if v := accept(t, h, n); v != interruption.Ignored {
				t.Errorf("the withdrawal is %s, want %s", v, interruption.Ignored)
			}
		}
		if v := accept(t, h, rebootInAWeek()); v != interruption.Duplicate {
			t.Errorf("the announcement after its withdrawal is %s, want %s", v, interruption.Duplicate)
		}
		node, has := nodes.raw(t)
		if past := interruption.ParsePast(node.Annotations[interruption.PastAnnotation]); has || len(past) != 1 || node.Spec.Unschedulable {
			t.Errorf("record %t, cordoned %t, %d past events; want only the withdrawn one remembered", has, node.Spec.Unschedulable, len(past))
		}
	})
}

// One patch: record, cordon, taint and label.
func TestAcceptIsOnePatch(t *testing.T) {
	f := newFakeNodes(testNode(func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "team", Value: "a", Effect: corev1.TaintEffectNoSchedule}}
	}))
	h := newTestHandler(t, f, nil)
	n := notice(interruption.SpotInterruption)
	if v := accept(t, h, n); v != interruption.Accepted {
		t.Fatalf("verdict %s", v)
	}
	node, rec := f.now(t)
	if f.patches != 1 {
		t.Errorf("%d patches, want 1", f.patches)
	}
	if !node.Spec.Unschedulable || node.Labels[interruption.ExcludeFromLoadBalancers] != interruption.ExcludeFromLoadBalancersValue {
		t.Errorf("not cordoned: %+v", node.Spec)
	}
	if len(node.Spec.Taints) != 2 || node.Spec.Taints[0].Key != "team" || node.Spec.Taints[1] != marks.Taint(rec) {
		t.Errorf("taints %+v, want the old one and ours", node.Spec.Taints)
	}
	if rec.Phase != interruption.Noticed || !rec.Deadline.Equal(n.Deadline) || rec.Event != "event-1" {
		t.Errorf("record %s", rec)
	}
	if want := []string{interruption.OursCordon, interruption.OursTaint, interruption.OursLoadBalancer}; !slices.Equal(rec.Ours, want) {
		t.Errorf("ours %v, want %v", rec.Ours, want)
	}
}

// What an admin had set before is not ours.
func TestAcceptKeepsWhatAnAdminSet(t *testing.T) {
	f := newFakeNodes(testNode(func(n *corev1.Node) {
		n.Spec.Unschedulable = true
		n.Labels = map[string]string{interruption.ExcludeFromLoadBalancers: "maintenance"}
	}))
	h := newTestHandler(t, f, nil)
	accept(t, h, notice(interruption.SpotInterruption))
	node, rec := f.now(t)
	if !slices.Equal(rec.Ours, []string{interruption.OursTaint}) {
		t.Errorf("ours %v, want the taint alone", rec.Ours)
	}
	if got := node.Labels[interruption.ExcludeFromLoadBalancers]; got != "maintenance" {
		t.Errorf("label %q, want the admin's", got)
	}
}

func TestAcceptVerdicts(t *testing.T) {
	recorded := func(change func(*interruption.Record)) func(*corev1.Node) {
		return func(n *corev1.Node) {
			rec := interruption.NewRecord(notice(interruption.SpotInterruption))
			change(&rec)
			n.Annotations = map[string]string{interruption.Annotation: rec.String()}
		}
	}
	old := time.Now().Add(-time.Hour)
	for name, tt := range map[string]struct {
		node   *corev1.Node
		notice interruption.Notice
		policy interruption.RebalancePolicy
		want   interruption.Verdict
		phase  interruption.Phase
	}{
		"unknown instance": {testNode(), notice(interruption.SpotInterruption, func(n *interruption.Notice) { n.InstanceID = "i-0" }), "", interruption.Unknown, ""},
		"by the node's name": {testNode(func(n *corev1.Node) { n.Spec.ProviderID = "" }), notice(interruption.SpotInterruption, func(n *interruption.Notice) {
			n.InstanceID, n.NodeName = "i-0", "node-a"
		}), "", interruption.Accepted, interruption.Noticed},
		"by a wrong node's name": {testNode(), notice(interruption.SpotInterruption, func(n *interruption.Notice) {
			n.InstanceID, n.NodeName = "i-0", "node-a"
		}), "", interruption.Unknown, ""},
		"over another instance's record": {testNode(recorded(func(r *interruption.Record) { r.Instance = "i-0fedcba9876543210" })),
			notice(interruption.SpotInterruption), "", interruption.Accepted, interruption.Noticed},
		"the same again": {testNode(recorded(func(*interruption.Record) {})), notice(interruption.SpotInterruption), "", interruption.Duplicate, ""},
		"the other source, a second apart": {testNode(recorded(func(*interruption.Record) {})), notice(interruption.SpotInterruption, func(n *interruption.Notice) {
			n.Source, n.EventID, n.Deadline = interruption.IMDS, "imds/1", n.Deadline.Add(-time.Second)
		}), "", interruption.Duplicate, ""},
		"a tighter deadline": {testNode(recorded(func(r *interruption.Record) { r.Phase = interruption.Draining })),
			notice(interruption.SpotInterruption, func(n *interruption.Notice) { n.Deadline = n.Deadline.Add(-time.Minute) }), "", interruption.Accepted, interruption.Draining},
		"a later deadline": {testNode(recorded(func(*interruption.Record) {})),
			notice(interruption.SpotInterruption, func(n *interruption.Notice) { n.Deadline = n.Deadline.Add(time.Minute) }), "", interruption.Duplicate, ""},
		"a weaker kind":   {testNode(recorded(func(*interruption.Record) {})), notice(interruption.RebalanceRecommendation), "", interruption.Duplicate, ""},
		"rebalance":       {testNode(), notice(interruption.RebalanceRecommendation), "", interruption.Accepted, interruption.Waiting},
		"rebalance, off":  {testNode(), notice(interruption.RebalanceRecommendation), interruption.RebalanceIgnore, interruption.Ignored, ""},
		"unreadable":      {testNode(func(n *corev1.Node) { n.Annotations = map[string]string{interruption.Annotation: "{"} }), notice(interruption.SpotInterruption), "", interruption.Accepted, interruption.Noticed},
		"hours old":       {testNode(), notice(interruption.SpotInterruption, func(n *interruption.Notice) { n.Deadline = old }), "", interruption.Stale, ""},
		"hours old, dead": {testNode(func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }), notice(interruption.SpotInterruption, func(n *interruption.Notice) { n.Deadline = old }), "", interruption.Accepted, interruption.Noticed},
		"the next life": {testNode(recorded(func(r *interruption.Record) { r.Phase, r.Deadline = interruption.Released, old })),
			notice(interruption.SpotInterruption, func(n *interruption.Notice) { n.EventID = "event-2" }), "", interruption.Accepted, interruption.Noticed},
		"upgrade of a drained one": {testNode(recorded(func(r *interruption.Record) {
			r.Kind, r.Deadline, r.Phase = interruption.RebalanceRecommendation, time.Time{}, interruption.Drained
		})), notice(interruption.SpotInterruption), "", interruption.Accepted, interruption.Noticed},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeNodes(tt.node)
			h := newTestHandler(t, f, func(o *setup) {
				if tt.policy != "" {
					o.rules.rebalance = tt.policy
				}
			})
			if v := accept(t, h, tt.notice); v != tt.want {
				t.Errorf("verdict %s, want %s", v, tt.want)
			}
			if tt.want != interruption.Accepted {
				if f.patches != 0 {
					t.Errorf("%d patches, want none", f.patches)
				}
				return
			}
			if _, rec := f.now(t); rec.Phase != tt.phase || rec.Kind != tt.notice.Kind {
				t.Errorf("record %s, want phase %s", rec, tt.phase)
			}
		})
	}
}

// Somebody changes the Node at the same time: both their change and the notice are kept.
func TestAcceptSurvivesConflicts(t *testing.T) {
	f := newFakeNodes(testNode())
	h := newTestHandler(t, f, nil)
	f.beforePatch = func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		other := f.byName["node-a"].DeepCopy()
		other.Spec.Taints = append(other.Spec.Taints, corev1.Taint{Key: "other", Effect: corev1.TaintEffectNoSchedule})
		f.put(other)
	}
	if v := accept(t, h, notice(interruption.SpotInterruption)); v != interruption.Accepted {
		t.Fatalf("verdict %s", v)
	}
	if node, _ := f.now(t); len(node.Spec.Taints) != 2 {
		t.Errorf("taints %+v, want the other's and ours", node.Spec.Taints)
	}
	if f.patches != 2 {
		t.Errorf("%d patches, want 2", f.patches)
	}
}

// Another replica takes the same notice at the same time: one records it, for the other it is a
// duplicate.
func TestAcceptOfTwoReplicas(t *testing.T) {
	f := newFakeNodes(testNode())
	a, b := newTestHandler(t, f, nil), newTestHandler(t, f, nil)
	n := notice(interruption.SpotInterruption)
	f.beforePatch = func() {
		if v := accept(t, b, n); v != interruption.Accepted {
			t.Errorf("verdict of the faster %s", v)
		}
	}
	if v := accept(t, a, n); v != interruption.Duplicate {
		t.Errorf("verdict of the slower %s, want duplicate", v)
	}
}

func TestAcceptGivesUpOnANodeThatNeverStandsStill(t *testing.T) {
	f := newFakeNodes(testNode())
	h := newTestHandler(t, f, nil)
	var restless func()
	restless = func() {
		f.mu.Lock()
		f.put(f.byName["node-a"].DeepCopy())
		f.mu.Unlock()
		f.beforePatch = restless
	}
	f.beforePatch = restless
	if _, err := h.Accept(context.Background(), notice(interruption.SpotInterruption)); err == nil {
		t.Error("no error, though nothing was recorded")
	}
	if f.patches != acceptAttempts {
		t.Errorf("%d attempts, want %d", f.patches, acceptAttempts)
	}
}

// However often it is announced, one interruption is one notice. A rebalance recommendation and
// the interruption that follows it are two.
func TestNoticeIsReportedOnce(t *testing.T) {
	events := &shownNews{}
	h := newTestHandler(t, newFakeNodes(testNode()), func(o *setup) { o.Events = events })
	accept(t, h, notice(interruption.RebalanceRecommendation, func(n *interruption.Notice) { n.EventID = "event-0" }))
	accept(t, h, notice(interruption.SpotInterruption))
	accept(t, h, notice(interruption.SpotInterruption))
	accept(t, h, notice(interruption.SpotInterruption, func(n *interruption.Notice) {
		n.Source, n.EventID, n.Deadline = interruption.IMDS, "imds-1", n.Deadline.Add(-10*time.Second)
	}))
	want := []string{"noticed rebalance-recommendation", "noticed spot-interruption"}
	if diff := cmp.Diff(want, events.shown); diff != "" {
		t.Errorf("notified (-want +got):\n%s", diff)
	}
}
