package marks

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/patched"
	"spot-handler/handler/interruption"
)

// apply is what the API server does with a merge patch.
func apply(t *testing.T, node *corev1.Node, p Patch) *corev1.Node {
	t.Helper()
	if p.Type != types.MergePatchType {
		t.Fatalf("patch of type %s", p.Type)
	}
	after, err := patched.Node(node, p.Type, p.Data)
	if err != nil {
		t.Fatal(err)
	}
	return after
}

// someNode has some of what an interruption sets, by somebody else.
func someNode(r *rand.Rand) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", ResourceVersion: "1", Labels: map[string]string{"team": "a"}}}
	n.Spec.Unschedulable = r.IntN(2) == 0
	n.Status.NodeInfo.BootID = "boot-1"
	if r.IntN(2) == 0 {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "team", Value: "a", Effect: corev1.TaintEffectNoExecute})
	}
	if r.IntN(3) == 0 {
		n.Spec.Taints = append(n.Spec.Taints, outOfService)
	}
	if r.IntN(3) == 0 {
		n.Labels[interruption.ExcludeFromLoadBalancers] = "maintenance"
	}
	if r.IntN(2) == 0 {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	}
	return n
}

// Whatever was on the Node before is there after Set and Undo, and nothing else but the
// memory of what is past.
func TestUndoRestores(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for range 2000 {
		node := someNode(r)
		n := interruption.Notice{Kind: interruption.Kinds()[r.IntN(len(interruption.Kinds()))], EventID: "e", InstanceID: "i", Noticed: now, Received: now}
		if n.Kind == interruption.StateChange {
			n.Action = interruption.ActionTerminated
		}
		set := Set(node, interruption.NewRecord(n))
		marked := apply(t, node, set)
		if !marked.Spec.Unschedulable || marked.Annotations[interruption.Annotation] != set.Record.String() {
			t.Fatalf("%s: %+v is not cordoned, or has no record", n.Kind, marked)
		}
		for _, left := range []bool{false, true} {
			var rest *interruption.Record
			if left {
				waits := set.Record.Undone()
				rest = &waits
			}
			after := apply(t, marked, Undo(marked, *set.Record, rest, now))
			if past, has := after.Annotations[interruption.PastAnnotation]; has && past == "[]" {
				t.Fatalf("%s: a memory of nothing", n.Kind)
			}
			if text, has := after.Annotations[interruption.Annotation]; has != left || left && text != rest.String() {
				t.Fatalf("%s: record %q after it was undone, want one: %v", n.Kind, text, left)
			}
			if diff := cmp.Diff(node, after, cmpopts.IgnoreFields(metav1.ObjectMeta{}, "Annotations"), cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("%s, %s: not as it was (-want +got):\n%s", n.Kind, set.Record, diff)
			}
		}
	}
}

// A label of load balancers goes if the record says that it is ours and nobody has changed it since.
// Somebody who has changed it has made it theirs.
func TestLabelThatSomebodyChanged(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		ours  []string
		value string // "": no label
		stays bool
	}{
		"ours":                         {[]string{interruption.OursLoadBalancer}, interruption.ExcludeFromLoadBalancersValue, false},
		"ours, and changed since":      {[]string{interruption.OursLoadBalancer}, "maintenance", true},
		"ours, and removed since":      {[]string{interruption.OursLoadBalancer}, "", false},
		"another's with the same text": {[]string{interruption.OursCordon}, interruption.ExcludeFromLoadBalancersValue, true},
		"another's":                    {nil, "maintenance", true},
	} {
		rec := interruption.NewRecord(interruption.Notice{Kind: interruption.SpotInterruption, EventID: "e", InstanceID: "i", Noticed: now, Received: now})
		rec.Ours = tt.ours
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "node-a", ResourceVersion: "1", Labels: map[string]string{"team": "a"}, Annotations: map[string]string{interruption.Annotation: rec.String()},
		}}
		if tt.value != "" {
			node.Labels[interruption.ExcludeFromLoadBalancers] = tt.value
		}
		after := apply(t, node, Undo(node, rec, nil, now))
		if got, stays := after.Labels[interruption.ExcludeFromLoadBalancers]; stays != tt.stays || stays && got != tt.value {
			t.Errorf("%s: label %q, there: %t; want it there: %t", name, got, stays, tt.stays)
		}
	}
}

// The taint out-of-service is set on a dead node of a terminated instance, and taken back
// from one that lives, with nothing else.
func TestShutDown(t *testing.T) {
	rec := interruption.NewRecord(interruption.Notice{Kind: interruption.StateChange, Action: interruption.ActionTerminated, InstanceID: "i"})
	dead := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", ResourceVersion: "1"}}
	p, ok := ShutDown(dead, rec)
	if !ok {
		t.Fatal("not set on a node whose instance is terminated")
	}
	marked := apply(t, dead, p)
	if _, missing := withTaint(marked.Spec.Taints, outOfService); missing {
		t.Errorf("taints %v", marked.Spec.Taints)
	}
	if _, ok := ShutDown(marked, *p.Record); ok {
		t.Error("a second time")
	}
	running := dead.DeepCopy()
	running.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if _, ok := ShutDown(running, rec); ok {
		t.Error("set on a node that is Ready")
	}
	marked.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	p, ok = ShutDown(marked, *p.Record)
	if !ok {
		t.Fatal("not removed from a node that is Ready")
	}
	alive := apply(t, marked, p)
	if _, missing := withTaint(alive.Spec.Taints, outOfService); !missing || !alive.Spec.Unschedulable {
		t.Errorf("taints %v, cordon %v; want the cordon alone", alive.Spec.Taints, alive.Spec.Unschedulable)
	}
	if ours := p.Record.Ours; !slices.Contains(ours, interruption.OursCordon) || slices.Contains(ours, interruption.OursOutOfService) {
		t.Errorf("ours %q, want the cordon and not the taint", ours)
	}
}

// A cancellation that is still on the Node was about something else, and goes with the next record.
func TestAcceptEndsAnOldCancellation(t *testing.T) {
	rec := interruption.NewRecord(interruption.Notice{Kind: interruption.SpotInterruption, EventID: "e", InstanceID: "i"})
	for _, canceled := range []bool{false, true} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", ResourceVersion: "1", Annotations: map[string]string{"team": "a"}}}
		if canceled {
			node.Annotations[interruption.CancelAnnotation] = "true"
		}
		after := apply(t, node, Accept(node, rec))
		if _, still := after.Annotations[interruption.CancelAnnotation]; still || after.Annotations["team"] != "a" {
			t.Errorf("cancelled before: %t; annotations %v", canceled, after.Annotations)
		}
	}
}

// What somebody has cancelled on the Node must not begin again when its message comes once more. What was undone for
// another reason may.
func TestUndoRemembersWhatWasCancelled(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	n := interruption.Notice{Kind: interruption.SpotInterruption, EventID: "e", InstanceID: "i", Source: interruption.Queue, Noticed: now, Received: now}
	rec := interruption.NewRecord(n)
	for _, canceled := range []bool{false, true} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "node-a", ResourceVersion: "1", Annotations: map[string]string{interruption.Annotation: rec.String()},
		}}
		if canceled {
			node.Annotations[interruption.CancelAnnotation] = "true"
		}
		after := apply(t, node, Undo(node, rec, nil, now))
		if past := interruption.ParsePast(after.Annotations[interruption.PastAnnotation]); past.Has(n) != canceled {
			t.Errorf("cancelled: %t, and it is remembered: %t (%v)", canceled, past.Has(n), past)
		}
	}
}

// A patch leaves alone what it does not change, and a record that was given stays as it is.
func TestPatchHasNothingElse(t *testing.T) {
	rec := interruption.NewRecord(interruption.Notice{Kind: interruption.SpotInterruption, EventID: "e", InstanceID: "i"})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", ResourceVersion: "1"}}
	if undone := string(Undo(node, rec, nil, time.Now()).Data); strings.Contains(undone, `"spec"`) {
		t.Errorf("%s changes the spec, of which nothing is ours", undone)
	}
	rec.Ours = append(make([]string, 0, 8), interruption.OursTaint)
	given := slices.Clone(rec.Ours[:cap(rec.Ours)])
	set := Set(node, rec)
	if !slices.Equal(given, rec.Ours[:cap(rec.Ours)]) {
		t.Errorf("what was given is %q now", rec.Ours[:cap(rec.Ours)])
	}
	if !slices.Contains(set.Record.Ours, interruption.OursCordon) {
		t.Errorf("ours %q, want the cordon among it", set.Record.Ours)
	}
}

// How an instance that comes back is told from the one before is noted when it is first marked, and not changed then.
func TestBootOfAnInstanceThatComesBack(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", ResourceVersion: "1"}}
	for name, tt := range map[string]struct {
		notice interruption.Notice
		known  string
		want   string
	}{
		"a reboot":             {interruption.Notice{Kind: interruption.ScheduledEvent, Action: interruption.ActionReboot}, "", "boot-2"},
		"a reboot, once more":  {interruption.Notice{Kind: interruption.ScheduledEvent, Action: interruption.ActionReboot}, "boot-1", "boot-1"},
		"a spot interruption":  {interruption.Notice{Kind: interruption.SpotInterruption}, "", ""},
		"a planned retirement": {interruption.Notice{Kind: interruption.ScheduledEvent, Action: interruption.ActionRetirement}, "", ""},
	} {
		tt.notice.EventID, tt.notice.InstanceID, tt.notice.Noticed, tt.notice.Received = "e", "i", now, now
		rec := interruption.NewRecord(tt.notice)
		rec.Boot = tt.known
		node.Status.NodeInfo.BootID = "boot-2"
		if got := Set(node, rec).Record.Boot; got != tt.want {
			t.Errorf("%s: boot id %q, want %q", name, got, tt.want)
		}
	}
}
