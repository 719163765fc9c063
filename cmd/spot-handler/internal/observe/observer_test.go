package observe

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/internal/plan"
	"spot-handler/cmd/spot-handler/internal/status"
	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/notify"
	"spot-handler/handler/provisioner"
)

// play shows an interruption as the watches do, to its end: of two pods one is surged, and one
// is refused and then evicted; a third one runs elsewhere.
func play() *scene {
	s := newScene("lost-1")
	a, b, c := s.new("web-1", "lost-1", true), s.new("web-2", "lost-1", true), s.new("web-3", "other", true)
	daemon := s.new("agent", "lost-1", true)
	daemon.OwnerReferences[0].Kind, daemon.Labels = "DaemonSet", nil
	for _, pod := range []*corev1.Pod{a, b, c, daemon} {
		s.show(after(-9), pod)
	}
	s.counted(after(-8), "default")
	s.budget(after(-8), pdb(3, 3), false)

	s.recorded(after(.1), interruption.Noticed)
	s.recorded(after(.3), interruption.Replacing, replacement(provisioner.StateRequested))
	s.show(after(.4), surged(a))
	s.claim(after(.5), &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": "fallback-1"}, "status": map[string]any{"providerID": "aws:///eu-west-1a/i-0fedcba9876543210"},
	}}, false)
	s.node(after(19), fallback(), false)
	s.recorded(after(20), interruption.Draining, replacement(provisioner.StateReady))
	d := s.new("web-4", "fallback-node", false)
	s.show(after(20), d)
	forged := blocked(b, after(21))
	forged.Namespace = "mine"
	s.event(after(21), forged, false)
	s.event(after(22.5), blocked(b, after(22)), false)
	d = s.new("web-4", "fallback-node", true)
	s.show(after(25), d)
	s.show(after(25.1), stopping(surged(a), 30))
	s.pod(after(25.2), surged(a), false) // the other watch is behind
	s.show(after(28), stopping(surged(a), 0))
	s.pod(after(28), stopping(surged(a), 0), true)
	s.show(after(60), stopping(b, 30))
	s.budget(after(60), pdb(3, 2), false)
	s.pod(after(65), stopping(b, 0), true)
	s.recorded(after(65.1), interruption.Released, replacement(provisioner.StateReady), ended(after(65), interruption.Pods{Total: 2, Graceful: 2}))
	s.node(after(70), s.bare, true)
	return s
}

func TestRecording(t *testing.T) {
	s := play()
	for _, want := range []need{{node: "lost-1"}, {namespace: "default"}} {
		n := 0
		for _, asked := range s.asked {
			if asked == want {
				n++
			}
		}
		if n == 0 {
			t.Errorf("did not ask for %+v", want)
		}
	}
	r := s.Recording(after(80))
	if len(r.Nodes) != 1 || len(r.Workloads) != 1 || len(r.Budgets) != 1 {
		t.Fatalf("%d nodes, %d workloads, %d budgets, want one of each: %+v", len(r.Nodes), len(r.Workloads), len(r.Budgets), r)
	}
	n := r.Nodes[0]
	if n.Deadline == nil || !n.Deadline.Equal(noticed.Add(2*time.Minute)) {
		t.Errorf("deadline %v, want two minutes after the notice", n.Deadline)
	}
	var phases []interruption.Phase
	for _, p := range n.Phases {
		phases = append(phases, p.Phase)
	}
	if diff := cmp.Diff([]interruption.Phase{interruption.Noticed, interruption.Replacing, interruption.Draining, interruption.Released}, phases); diff != "" {
		t.Errorf("phases (-want +got):\n%s", diff)
	}
	for what, is := range map[string]struct{ got, want *time.Time }{
		"cordoned": {n.Cordoned, new(after(.1))}, "requested": {&n.Replacement.Requested, new(after(.3))}, "launched": {n.Replacement.Launched, new(after(.5))},
		"ready": {n.Replacement.Ready, new(after(20))}, "drained": {n.Drained, new(after(65))}, "end": {n.EndAt, new(after(70))},
	} {
		if is.got == nil || !is.got.Equal(*is.want) {
			t.Errorf("%s at %v, want %v", what, is.got, is.want)
		}
	}
	if n.End != Gone || n.SlackSeconds == nil || *n.SlackSeconds != 55 || n.Pool != "batch" {
		t.Errorf("end %q, slack %v, pool %q, want gone, 55 and batch", n.End, n.SlackSeconds, n.Pool)
	}

	refused := "The disruption budget web needs 3 healthy pods" // a line break is no part of a clause
	want := []Step{
		{status.Waiting, "the replacement", noticed, after(.4)}, {status.Surging, "its replacement pod", after(.4), after(25.1)}, {status.Ending, "", after(25.1), after(28)},
		{status.Waiting, "the replacement", noticed, after(20)}, {status.Waiting, "a slot, or its eviction deadline", after(20), after(22)},
		{status.Refused, refused, after(22), after(60)}, {status.Ending, "", after(60), after(65)},
	}
	var steps []Step
	for _, p := range n.Pods {
		steps = append(steps, p.Steps...)
		if p.Outcome != plan.Graceful || p.GivenSeconds == nil || *p.GivenSeconds != 30 || p.Workload != "deployment/web" {
			t.Errorf("pod %s: %s, given %v, of %s", p.Name, p.Outcome, p.GivenSeconds, p.Workload)
		}
	}
	if len(n.Pods) != 2 || n.Pods[0].Name != "web-1" {
		t.Errorf("pods %+v, want web-1 and web-2", n.Pods)
	}
	if diff := cmp.Diff(want, steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}

	w := r.Workloads[0]
	if w.Name != "deployment/web" || w.Fewest != 2 || w.Missing != 1 || w.UnavailableSeconds != 20 {
		t.Errorf("%+v, want one pod missing from 60 s to the end", w)
	}
	if b := r.Budgets[0]; b.Needed != 3 || b.Fewest != 2 || !cmp.Equal(b.Workloads, []string{"deployment/web"}) {
		t.Errorf("budget %+v", b)
	}
}

// A pod whose work was done was given no time to end: it needed none.
func TestFinishedPodWasGivenNoTime(t *testing.T) {
	for finished, want := range map[bool]*int64{false: new(int64(30)), true: nil} {
		p := podLife{Pod: Pod{GivenSeconds: new(int64(30))}, node: &nodeLife{}, finished: finished}
		if diff := cmp.Diff(want, p.recorded(time.Now()).GivenSeconds); diff != "" {
			t.Errorf("finished: %t: given seconds (-want +got):\n%s", finished, diff)
		}
	}
}

// What becomes of a pod is judged by what it was given, and by what the record says of the drain.
func TestOutcomes(t *testing.T) {
	for _, tt := range []struct {
		name string
		want plan.Outcome
		do   func(s *scene, pod *corev1.Pod)
	}{
		{"whole grace", plan.Graceful, func(s *scene, pod *corev1.Pod) {
			s.show(after(10), stopping(pod, 30))
			s.pod(after(12), stopping(pod, 0), true)
		}},
		{"less", plan.Truncated, func(s *scene, pod *corev1.Pod) {
			s.show(after(10), stopping(pod, 12))
			s.pod(after(12), stopping(pod, 0), true)
		}},
		{"less later", plan.Truncated, func(s *scene, pod *corev1.Pod) {
			s.show(after(10), stopping(pod, 30))
			s.show(after(12), stopping(pod, 4))
			s.pod(after(16), stopping(pod, 0), true)
		}},
		{"gone without a word", plan.Truncated, func(s *scene, pod *corev1.Pod) { s.pod(after(10), pod, true) }},
		{"past its budget", plan.Forced, func(s *scene, pod *corev1.Pod) {
			pod = stopping(pod, 30)
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: drain.ReasonForced})
			s.show(after(10), pod)
			s.pod(after(12), pod, true)
		}},
		{"done by itself", plan.Graceful, func(s *scene, pod *corev1.Pod) {
			pod = pod.DeepCopy()
			pod.Status.Phase = corev1.PodSucceeded
			s.show(after(10), pod)
		}},
		{"left, as its Event says", plan.Left, func(s *scene, pod *corev1.Pod) {
			e := blocked(pod, after(115))
			e.Reason = notify.ReasonPodLeft
			s.event(after(115), e, false)
			s.show(after(116), stopping(pod, 30))
			s.pod(after(118), stopping(pod, 0), true)
		}},
		{"still there", plan.Left, func(s *scene, _ *corev1.Pod) {
			s.recorded(after(115), interruption.DeadlineReached, ended(after(115), interruption.Pods{Total: 1, Left: 1}))
		}},
		{"evicted by others later", plan.Left, func(s *scene, pod *corev1.Pod) {
			s.recorded(after(115), interruption.Released, ended(after(115), interruption.Pods{Total: 1, Left: 1}))
			s.show(after(117), stopping(pod, 30))
			s.pod(after(118), stopping(pod, 0), true)
		}},
		{"gone with its node", plan.Left, func(s *scene, _ *corev1.Pod) { s.node(after(50), s.bare, true) }},
		{"still ending", plan.Truncated, func(s *scene, pod *corev1.Pod) {
			s.show(after(100), stopping(pod, 30))
			s.recorded(after(115), interruption.DeadlineReached, ended(after(115), interruption.Pods{Total: 1, Truncated: 1}))
		}},
		{"on its way", "", func(s *scene, pod *corev1.Pod) { s.show(after(10), stopping(pod, 30)) }},
		{"cancelled", "", func(s *scene, _ *corev1.Pod) { s.node(after(20), s.bare, false) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newScene()
			pod := s.new("web-1", "lost-1", true)
			s.recorded(after(.1), interruption.Draining)
			s.show(after(.2), pod)
			tt.do(s, pod)
			if got := s.Recording(after(130)).Nodes[0].Pods[0].Outcome; got != tt.want {
				t.Errorf("outcome %q, want %q", got, tt.want)
			}
		})
	}
}

func TestOver(t *testing.T) {
	s := newScene("lost-1", "another")
	if s.Over(after(1000)) {
		t.Error("over before it has begun")
	}
	s = play()
	if s.Over(after(71)) {
		t.Error("over although a pod is missing")
	}
	if !s.Over(after(101)) {
		t.Error("not over although the workload had its time")
	}
	s.show(after(75), s.new("web-5", "fallback-node", true))
	if !s.Over(after(76)) {
		t.Error("not over although the node is gone and every pod is back")
	}
	if w := s.Recording(after(101)).Workloads[0]; w.Missing != 1 || w.UnavailableSeconds != 15 {
		t.Errorf("%+v, want one pod missing from 60 s to 75 s", w)
	}

	s = newScene()
	s.recorded(after(.1), interruption.Draining)
	s.recorded(after(10), interruption.Drained, ended(after(10), interruption.Pods{}))
	if s.Over(after(39)) || !s.Over(after(41)) {
		t.Error("a drained node that nobody takes is over after half a minute")
	}
	s = newScene()
	s.recorded(after(.1), interruption.Draining)
	s.node(after(5), s.bare, false)
	if !s.Over(after(6)) || s.Recording(after(6)).Nodes[0].End != Restored {
		t.Error("not over although the interruption was cancelled")
	}
}

// What is recorded of an interruption ends with it: its pods wait no longer, and the next one of the same node is
// another.
func TestWhatEndsWithTheInterruption(t *testing.T) {
	s := newScene()
	pod := s.new("web-1", "lost-1", true)
	s.recorded(after(.1), interruption.Draining)
	s.show(after(.2), pod)
	s.node(after(20), s.bare, false)
	s.recorded(after(60), interruption.Draining, func(r *interruption.Record) { r.Event = "another" })
	r := s.Recording(after(90))
	if len(r.Nodes) != 2 || r.Nodes[0].End != Restored || r.Nodes[1].End != "" {
		t.Fatalf("%+v, want two interruptions, of which the first was cancelled", r.Nodes)
	}
	for i, want := range []time.Time{after(20), after(90)} {
		steps := r.Nodes[i].Pods[0].Steps
		if last := steps[len(steps)-1]; !last.To.Equal(want) {
			t.Errorf("interruption %d: the pod's last step ends at %s, want %s", i, last.To, want)
		}
	}
}

// A workload that is deleted misses no pods, and one whose Deployment makes no sense is left as it was.
func TestDesiredPods(t *testing.T) {
	s := newScene()
	s.show(after(-9), s.new("web-1", "lost-1", true))
	s.counted(after(-8), "default")
	s.recorded(after(.1), interruption.Draining)
	deployment := func(replicas any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"namespace": "default", "name": "web"},
			"spec":     map[string]any{"replicas": replicas, "selector": map[string]any{"matchLabels": map[string]any{"app": "web"}}},
		}}
	}
	var got []int
	for i, change := range []func(at time.Time){
		func(at time.Time) { s.controller(at, "deployment", deployment(int64(5)), false) },
		func(at time.Time) { s.controller(at, "deployment", deployment("many"), false) },
		func(at time.Time) { s.controller(at, "deployment", deployment(int64(5)), true) },
	} {
		at := after(float64(i + 1))
		change(at)
		samples := s.Recording(at).Workloads[0].Samples
		got = append(got, samples[len(samples)-1].Desired)
	}
	if diff := cmp.Diff([]int{5, 5, 0}, got); diff != "" {
		t.Errorf("desired (-want +got):\n%s", diff)
	}
}

// Budgets are ordered by name, whatever order they were seen in.
func TestOrderOfBudgets(t *testing.T) {
	s := newScene()
	for _, name := range []string{"c", "a", "d", "b"} {
		b := pdb(1, 1)
		b.Name, b.UID = name, types.UID(name)
		s.budget(after(-8), b, false)
	}
	s.recorded(after(.1), interruption.Draining)
	s.show(after(.2), s.new("web-1", "lost-1", true))
	for range 20 {
		var got []string
		for _, b := range s.Recording(after(1)).Budgets {
			got = append(got, b.Name)
		}
		if want := []string{"a", "b", "c", "d"}; !cmp.Equal(want, got) {
			t.Fatalf("%v, want %v", got, want)
		}
	}
}

// Which workloads a budget covers comes in the same order each time.
func TestWorkloadsOfABudget(t *testing.T) {
	s := newScene()
	s.budget(after(-8), pdb(3, 3), false)
	s.recorded(after(.1), interruption.Draining)
	for _, app := range []string{"d", "b", "e", "a", "c"} {
		pod := s.new("pod-"+app, "lost-1", true)
		pod.OwnerReferences[0].Kind, pod.OwnerReferences[0].Name = "StatefulSet", app
		s.show(after(.2), pod)
	}
	for range 20 {
		want := []string{"statefulset/a", "statefulset/b", "statefulset/c", "statefulset/d", "statefulset/e"}
		if diff := cmp.Diff(want, s.Recording(after(1)).Budgets[0].Workloads); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	}
}

// Where nothing can be requested, nothing is said to be.
func TestHappeningsWithoutReplacement(t *testing.T) {
	s := newScene()
	s.recorded(after(.1), interruption.Draining, func(r *interruption.Record) {
		r.Replacement = &interruption.Replacement{Backend: "none", State: provisioner.StateUnsupported, Reason: "none can"}
	})
	r := s.Recording(after(1))
	all := r.Happenings()
	if got := r.Line(all[len(all)-1]); got != "    0.1 s  replacement  none: none can" {
		t.Errorf("%q", got)
	}
	r.Nodes = append(r.Nodes, r.Nodes[0])
	if got := r.Line(all[len(all)-1]); got != "    0.1 s  lost-1  replacement  none: none can" {
		t.Errorf("of several: %q", got)
	}
}

// One interruption fits a terminal of 24 lines of 80 columns, the last of which is the cursor's.
func TestView(t *testing.T) {
	s := newScene("lost-1")
	if got := s.View(noticed, 80, 23); !cmp.Equal(got, []string{"No interruption yet."}) {
		t.Errorf("%q", got)
	}
	for _, name := range []string{"web-1", "web-2"} {
		s.show(after(-9), s.new(name, "lost-1", true))
	}
	s.show(after(-9), s.new("web-3", "other", true))
	s.counted(after(-8), "default")
	s.budget(after(-8), pdb(2, 3), false)
	s.recorded(after(.1), interruption.Replacing, replacement(provisioner.StateRequested))
	begun := strings.Join(s.View(after(.2), 80, 23), "\n")
	for _, want := range []string{"0.0 s  node  noticed: spot-interruption", "0.1 s  node  cordoned", "  2/2  "} {
		if !strings.Contains(begun, want) {
			t.Errorf("no %q in\n%s", want, begun)
		}
	}
	s.show(after(.4), surged(s.new("web-1", "lost-1", true)))
	s.node(after(19), fallback(), false)
	s.recorded(after(20), interruption.Draining, replacement(provisioner.StateReady))
	s.show(after(21), s.new("web-4", "fallback-node", false))
	s.show(after(22), stopping(s.new("web-2", "lost-1", true), 30))
	text := strings.Join(s.View(after(26.5), 80, 23), "\n")
	for _, want := range []string{"Draining", "  94 s  ", "default/deployment/web  ", "2 of 3", "22.0 s  default/web-2  evicted, with 30 of 30 s to end"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if n := strings.Count(text, "\n") + 1; n > 23 {
		t.Errorf("%d lines:\n%s", n, text)
	}
	few := s.View(after(26.5), 80, 9)
	if last := few[len(few)-1]; len(few) != 9 || !strings.Contains(last, "evicted, with 30 of 30 s to end") {
		t.Errorf("%d lines of 9, the last of which is %q; want what happened last", len(few), last)
	}
}

// Two watches show the same pods, and one can be behind: a pod that is gone stays gone.
func TestGonePodStaysGone(t *testing.T) {
	s := newScene()
	pod := s.new("web-1", "lost-1", true)
	s.show(after(-9), pod)
	s.counted(after(-8), "default")
	s.recorded(after(.1), interruption.Draining)
	s.show(after(5), stopping(pod, 0))
	s.pod(after(6), pod, true)
	s.pod(after(7), pod, false)
	w := s.Recording(after(20)).Workloads[0]
	if last := w.Samples[len(w.Samples)-1]; last.Ready != 0 {
		t.Errorf("%+v, want no ready pod", w.Samples)
	}
}

// A workload that has fewer ready pods than at first stands out.
func TestColourOfReadyPods(t *testing.T) {
	for ready, want := range map[int]console.Colour{3: console.Good, 2: console.Bad} {
		w := Workload{Namespace: "default", Name: "deployment/web", Samples: []Sample{{Ready: 3, Desired: 3}, {Ready: ready, Desired: 3}}}
		lines := readyLines(Recording{Workloads: []Workload{w}}, 80)
		if !strings.Contains(strings.Join(lines, ""), string(want)) {
			t.Errorf("%d of 3: %q, want %q in it", ready, lines, want)
		}
	}
}

// Six workloads are shown; the rest are only counted.
func TestMoreWorkloads(t *testing.T) {
	for n, want := range map[int]string{6: "", 7: "and 1 more workload", 9: "and 3 more workloads"} {
		var r Recording
		for i := range n {
			r.Workloads = append(r.Workloads, Workload{Namespace: "default", Name: fmt.Sprint("deployment/web-", i), Samples: []Sample{{Ready: 1, Desired: 1}}})
		}
		lines := readyLines(r, 80)
		if last := lines[len(lines)-1]; strings.HasPrefix(last, "and ") != (want != "") || want != "" && last != want {
			t.Errorf("%d workloads: the last line is %q, want %q", n, last, want)
		}
	}
}
