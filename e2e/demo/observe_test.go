package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner/karpenter"
)

func testNode(name, capacity string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"karpenter.sh/capacity-type": capacity}},
		Spec:       corev1.NodeSpec{ProviderID: "kwok://" + name},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		}}},
	}
}

func recorded(node *corev1.Node, record interruption.Record) *corev1.Node {
	node = node.DeepCopy()
	node.Spec.Unschedulable = true
	record.Kind = interruption.SpotInterruption
	node.Annotations = map[string]string{interruption.Annotation: record.String()}
	return node
}

func testPod(name, node string, ready bool) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: node}}
	if ready {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return pod
}

func stopping(pod *corev1.Pod, grace int64) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: noticed}, &grace
	return pod
}

func testClaim(name, providerID, replaces string, conditions ...string) *unstructured.Unstructured {
	c := &unstructured.Unstructured{Object: map[string]any{}}
	c.SetName(name)
	c.SetLabels(map[string]string{karpenter.ReplacesLabel: replaces})
	var list []any
	for _, kind := range conditions {
		list = append(list, map[string]any{"type": kind, "status": "True"})
	}
	c.Object["status"] = map[string]any{"providerID": providerID, "conditions": list}
	return c
}

// An interruption as the watches show it, to its end.
func TestObserver(t *testing.T) {
	old, other, replacement := testNode("old", "spot"), testNode("other", "spot"), testNode("new", "on-demand")
	a, b, c := testPod("a", "old", true), testPod("b", "old", true), testPod("c", "other", true)
	instance := controlplane.InstanceID("old")

	o := newObserver(queueMode, old)
	o.node(noticed, old, false)
	o.node(noticed, other, false)
	for _, pod := range []*corev1.Pod{a, b, c} {
		o.pod(noticed, pod, false)
	}
	o.claim(noticed, testClaim("old", "kwok://old", ""), false)
	o.noticed(noticed, after(120))

	o.node(after(0.1), recorded(old, interruption.Record{Phase: interruption.Noticed}), false)
	o.claim(after(0.2), testClaim("new", "", instance), false)
	o.claim(after(0.4), testClaim("new", "kwok://new", instance, "Launched"), false)
	o.node(after(20), replacement, false)
	o.claim(after(20.5), testClaim("new", "kwok://new", instance, "Launched", "Registered", "Initialized"), false)
	o.node(after(21), recorded(old, interruption.Record{Phase: interruption.Draining}), false)
	o.pod(after(22), stopping(a, 30), false)
	o.pod(after(22.1), testPod("d", "", false), false)
	o.pod(after(22.2), testPod("e", "new", false), false)

	middle := o.state(after(23))
	want := []place{
		{role: roleInterrupted, node: "old", capacity: "spot", ready: 1, stopping: 1},
		{role: roleOther, node: "other", capacity: "spot", ready: 1},
		{role: roleReplacement, node: "new", capacity: "on-demand", starting: 1},
	}
	if diff := cmp.Diff(want, middle.places, cmp.AllowUnexported(place{})); diff != "" || middle.unscheduled != 1 {
		t.Errorf("%d pods without a node, want 1; places (-want +got):\n%s", middle.unscheduled, diff)
	}
	if middle.remaining != 2 || middle.phase != interruption.Draining {
		t.Errorf("%d pods remain in phase %s, want 2 in Draining", middle.remaining, middle.phase)
	}

	o.pod(after(25), stopping(a, 0), false) // how the kubelet says that it has ended
	o.pod(after(25), stopping(a, 0), true)
	o.pod(after(26), stopping(b, 30), false)
	o.pod(after(29), stopping(b, 0), true)
	o.node(after(29.5), recorded(old, interruption.Record{Phase: interruption.Released, Pods: &interruption.Pods{Total: 2, Graceful: 2}}), false)
	o.node(after(31), recorded(old, interruption.Record{Phase: interruption.Released, Pods: &interruption.Pods{Total: 2, Graceful: 2}}), true)
	o.claim(after(32), testClaim("old", "kwok://old", ""), true)

	s := o.state(after(33))
	for _, mark := range []struct {
		name      string
		got, want time.Time
	}{
		{"cordoned", s.cordoned, after(0.1)},
		{"requested", s.requested, after(0.2)},
		{"launched", s.launched, after(0.4)},
		{"ready", s.ready, after(20)},
		{"drained", s.drained, after(29)},
		{"Node gone", s.nodeGone, after(31)},
		{"NodeClaim gone", s.claimGone, after(32)},
	} {
		if !mark.got.Equal(mark.want) {
			t.Errorf("%s at %s, want %s", mark.name, mark.got, mark.want)
		}
	}
	if s.fewest != 1 || s.moving != 2 || s.remaining != 0 || s.shortestGrace != grace {
		t.Errorf("fewest %d, moving %d, remaining %d, grace %s, want 1, 2, 0, %s", s.fewest, s.moving, s.remaining, s.shortestGrace, grace)
	}
	if s.result == nil || s.result.Graceful != 2 {
		t.Errorf("result %+v, want 2 graceful", s.result)
	}
}

// The watch says what grace each pod was given; the daemon does not.
func TestObserverGrace(t *testing.T) {
	pod := testPod("a", "old", true)
	for _, test := range []struct {
		name   string
		events func(*observer)
		want   time.Duration
	}{
		{"whole", func(o *observer) { o.pod(noticed, stopping(pod, 30), false); o.pod(noticed, stopping(pod, 0), true) }, 30 * time.Second},
		{"clamped", func(o *observer) { o.pod(noticed, stopping(pod, 4), false); o.pod(noticed, stopping(pod, 0), true) }, 4 * time.Second},
		{"tightened later", func(o *observer) { o.pod(noticed, stopping(pod, 30), false); o.pod(noticed, stopping(pod, 9), false) }, 9 * time.Second},
		{"none", func(o *observer) { o.pod(noticed, stopping(pod, 0), false) }, 0},
		{"gone without a word", func(o *observer) { o.pod(noticed, pod, true) }, 0},
		{"still running", func(o *observer) { o.pod(noticed, pod, false) }, -1},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := newObserver(queueMode, testNode("old", "spot"))
			o.pod(noticed, pod, false)
			o.noticed(noticed, after(120))
			test.events(o)
			if got := o.state(noticed).shortestGrace; got != test.want {
				t.Errorf("shortest grace %s, want %s", got, test.want)
			}
		})
	}
}

func TestProblems(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*state)
		want   []string
	}{
		{"none", func(*state) {}, nil},
		{"late", func(s *state) { s.drained = after(121) }, []string{"drained 1.40 s after the deadline"}},
		{"grace", func(s *state) { s.shortestGrace = 2 * time.Second }, []string{"a pod had 2s to end, and asks for 30s"}},
		{"left", func(s *state) { s.result = &interruption.Pods{Total: 6, Graceful: 5, Left: 1} }, []string{"1 pods were left on the node"}},
		{"budget", func(s *state) { s.fewest = 9 }, []string{"only 9 pods were ready at some time, the budget asks for 10"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := ended()
			test.change(&s)
			if got := s.problems(); !cmp.Equal(got, test.want) {
				t.Errorf("problems (-want +got):\n%s", cmp.Diff(test.want, got))
			}
			if s.over() != true {
				t.Error("the end was not seen")
			}
		})
	}
}
