package plan

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
)

// TestPods says of each pod what becomes of it: "NAME OUTCOME leaves..gone waits REASON", seconds
// rounded down.
func TestPods(t *testing.T) {
	tests := map[string]struct {
		of   func(s *scene)
		want []string
	}{
		"a Deployment is surged, one by one": {func(s *scene) {
			s.deployment("web", "lost", 2)
		}, []string{
			"web-0 graceful 11..16 surge: surged: waits for its replacement pod",
			"web-1 graceful 21..26 surge: waits for a slot: maxSurge of Deployment web is in use",
		}},
		"without room for replacement pods they leave at the latest": {func(s *scene) {
			s.Nodes = s.Nodes[:1]
			s.deployment("web", "lost", 1)
		}, []string{"web-0 graceful 80..85 surge: surged: waits for its replacement pod"}},
		"the replacement is waited for": {func(s *scene) {
			s.Nodes, s.Lost = nil, nil
			s.lose("lost", plan.PendingCapacity)
			s.deployment("web", "lost", 1)
			s.pods("StatefulSet", "db", "lost", 1)
		}, []string{
			"db-0 graceful 40..45 : waits for the replacement",
			"web-0 graceful 50..55 surge: surged: waits for its replacement pod",
		}},
		"a budget lets go one after the other": {func(s *scene) {
			s.pods("StatefulSet", "db", "lost", 3)
			s.budget("db", "db", 1)
		}, []string{
			"db-0 graceful 0..5 :",
			"db-1 graceful 16..21 : PDB db",
			"db-2 graceful 31..36 : PDB db",
		}},
		"a budget that never lets go": {func(s *scene) {
			s.pods("StatefulSet", "db", "lost", 1)
			s.budget("db", "db", 0)
		}, []string{"db-0 left -..120 : PDB db; The disruption budget db needs 1 healthy pods and has 1 currently"}},
		"a pod elsewhere that is late by 20 s is taken to be ready in 20 s": {func(s *scene) {
			s.pods("StatefulSet", "db", "lost", 1)
			s.pods("StatefulSet", "db", "other", 1, startsSince(30*time.Second))
			s.budget("db", "db", 1)
		}, []string{"db-0 graceful 20..25 : PDB db"}},
		"and one that is late by 40 s is not": {func(s *scene) {
			s.pods("StatefulSet", "db", "lost", 1)
			s.pods("StatefulSet", "db", "other", 1, startsSince(50*time.Second))
			s.budget("db", "db", 1)
		}, []string{"db-0 left -..120 : PDB db; The disruption budget db needs 1 healthy pods and has 1 currently"}},
		"and Karpenter deletes what is left": {func(s *scene) {
			s.Lost[0].Deleted = true
			s.pods("StatefulSet", "db", "lost", 1)
			s.budget("db", "db", 0)
		}, []string{"db-0 left 115..120 : PDB db; The disruption budget db needs 1 healthy pods and has 1 currently; Karpenter deletes it"}},
		"and one that is overridden": {func(s *scene) {
			s.pods("StatefulSet", "db", "lost", 1, annotated(plan.BlockedAnnotation, "delete"))
			s.budget("db", "db", 0)
		}, []string{"db-0 forced 80..85 : PDB db; The disruption budget db needs 1 healthy pods and has 1 currently"}},
		"and one without a grace period, a second before the drain ends": {func(s *scene) {
			s.Policy.Margin = 5 * time.Second
			s.pods("StatefulSet", "db", "lost", 1, annotated(plan.BlockedAnnotation, "delete"), graceOf(0))
			s.budget("db", "db", 0)
		}, []string{"db-0 forced 114..114 : PDB db; The disruption budget db needs 1 healthy pods and has 1 currently"}},
		"a pod that starts late needs as long again": {func(s *scene) {
			s.pods("StatefulSet", "db", "other", 1, func(p *corev1.Pod) {
				p.Status.Conditions = p.Status.Conditions[:1]
				p.Status.Conditions[0].LastTransitionTime.Time = at.Add(-20 * time.Second)
			})
			s.pods("StatefulSet", "db", "lost", 1)
			s.budget("db", "db", 1)
		}, []string{"db-1 graceful 10..15 : PDB db"}},
		"two budgets": {func(s *scene) {
			s.pods("StatefulSet", "db", "lost", 1)
			s.budget("db", "db", 1)
			s.budget("more", "db", 1)
		}, []string{"db-0 left -..120 : two PDBs select it; This pod has more than one PodDisruptionBudget"}},
		"a grace period that does not fit": {func(s *scene) {
			s.pods("", "bare", "lost", 1, graceOf(600))
		}, []string{"bare-0 truncated 0..5 :; its grace period of 600 s does not fit: 109 s are left"}},
		"a Job runs as long as it can": {func(s *scene) {
			s.pods("Job", "batch", "lost", 1)
		}, []string{"batch-0 graceful 80..85 : Job pod: might finish by itself"}},
		"a Job waits longer for each pod that fails": {func(s *scene) {
			s.pods("Job", "batch", "lost", 3, graceOf(600))
			s.budget("batch", "batch", 1)
		}, []string{
			"batch-0 truncated 0..5 :; its grace period of 600 s does not fit: 109 s are left",
			"batch-1 truncated 20..25 : PDB batch; its grace period of 600 s does not fit",
			"batch-2 truncated 50..56 : PDB batch; its grace period of 600 s does not fit",
		}},
		"a gang leaves together, when the first of it has to": {func(s *scene) {
			s.lose("first", plan.NoCapacity).Deadline = at.Add(time.Minute)
			s.deployment("train", "lost", 2, labelled(plan.GangLabel, "g"))
			s.pods("ReplicaSet", "train", "first", 1, labelled(plan.GangLabel, "g"), graceOf(20))
			s.pods("StatefulSet", "db", "other", 1, labelled(plan.GangLabel, "g"), graceOf(60))
		}, []string{
			"train-2 graceful 30..35 : leaves with its gang",
			"train-0 graceful 30..35 : leaves with its gang",
			"train-1 graceful 30..35 : leaves with its gang",
		}},
		"a pod of a gang that goes at once takes it along": {func(s *scene) {
			s.pods("Job", "train", "lost", 1, labelled(plan.GangLabel, "g"), annotated(plan.WhenAnnotation, "now"))
			s.lose("second", plan.NoCapacity)
			s.pods("Job", "train", "second", 1, labelled(plan.GangLabel, "g"))
		}, []string{"train-0 graceful 0..5 :", "train-1 graceful 0..5 :"}},
		"a pod that tolerates the end": {func(s *scene) {
			s.pods("", "bare", "lost", 1, func(p *corev1.Pod) {
				p.Spec.Tolerations = []corev1.Toleration{{Key: interruption.TaintKey, Operator: corev1.TolerationOpExists}}
			})
			s.pods("DaemonSet", "agent", "lost", 1)
		}, []string{"bare-0 stays -..120 :; tolerates " + interruption.TaintKey}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			tt.of(s)
			f := forecastOf(s.Input)
			var got []string
			for _, p := range f.Pods {
				got = append(got, say(p))
			}
			for i := range max(len(got), len(tt.want)) {
				switch {
				case i >= len(got):
					t.Errorf("missing %q", tt.want[i])
				case i >= len(tt.want):
					t.Errorf("too many: %q", got[i])
				case !strings.HasPrefix(got[i], tt.want[i]) && got[i] != tt.want[i]:
					t.Errorf("got  %q\nwant %q", got[i], tt.want[i])
				}
			}
			if again := forecastOf(s.Input); !reflect.DeepEqual(f, again) {
				t.Errorf("the same input has another forecast:\n%+v\n%+v", f, again)
			}
		})
	}
}

func say(p Pod) string {
	second := func(s *Seconds) string {
		if s == nil {
			return "-"
		}
		return fmt.Sprint(int(*s))
	}
	text := fmt.Sprintf("%s %s %s..%s ", p.Name, p.Outcome, second(p.Leaves), second(p.Gone))
	if p.Surge {
		text += "surge"
	}
	text += ":"
	if p.WaitsFor != "" {
		text += " " + p.WaitsFor
	}
	if reason := strings.TrimPrefix(p.Reason, "Cannot evict pod as it would violate the pod's disruption budget. "); reason != "" {
		text += "; " + reason
	}
	return text
}

// A workload's dip is what its pods are missing, for as long as they are.
func TestDips(t *testing.T) {
	s := newScene(t)
	s.deployment("web", "lost", 2)
	s.pods("StatefulSet", "db", "lost", 1)
	s.pods("StatefulSet", "db", "other", 1)
	s.budget("db", "db", 1)
	f := forecastOf(s.Input)
	if len(f.Workloads) != 2 || len(f.Budgets) != 1 || len(f.Nodes) != 1 {
		t.Fatalf("%+v", f)
	}
	if w := f.Workloads[0]; w.Name != "deployment/web" || w.FewestReady != 2 || w.UnavailablePodSeconds != 0 {
		t.Errorf("a surged Deployment dips: %+v", w)
	}
	if w := f.Workloads[1]; w.FewestReady != 1 || w.UnavailablePodSeconds < 15 || w.UnavailablePodSeconds > 16 {
		t.Errorf("want one pod missing for 15 s: %+v", w)
	}
	if b := f.Budgets[0]; b.Covers != 1 || b.Desired != 1 || b.Healthy != 2 || b.FewestHealthy != 1 || b.UnavailablePodSeconds != 0 {
		t.Errorf("budget: %+v", b)
	}
	if w := f.Workloads; w[0].Unplaced != 0 || w[1].Unplaced != 0 {
		t.Errorf("replacement pods without a node where there is room: %+v", w)
	}
	s.Nodes = s.Nodes[:1]
	if w := forecastOf(s.Input).Workloads; w[0].Unplaced != 2 || w[1].Unplaced != 1 {
		t.Errorf("want no node for a replacement pod of each pod: %+v", w)
	}
	if n := f.Nodes[0]; n.Empty == nil || *n.Empty < 25 || *n.Empty > 27 || n.Slack == nil || *n.Slack != *n.Deadline-*n.Ended {
		t.Errorf("node: %+v", n)
	}
}

// Without a deadline pods move once the replacement is there, and those that must not be disturbed
// stay.
func TestAtRisk(t *testing.T) {
	s := newScene(t)
	s.Lost = nil
	s.Nodes = nil
	lost := s.lose("lost", plan.PendingCapacity)
	lost.Kind, lost.Deadline = interruption.RebalanceRecommendation, time.Time{}
	s.pods("StatefulSet", "db", "lost", 1)
	s.pods("Job", "batch", "lost", 1)
	f := forecastOf(s.Input)
	if got := say(f.Pods[0]); got != "batch-0 stays -..- :; no deadline: Job pod: might finish by itself" {
		t.Error(got)
	}
	if got := say(f.Pods[1]); !strings.HasPrefix(got, "db-0 graceful 40..45") {
		t.Error(got)
	}
	if n := f.Nodes[0]; n.Ended != nil || n.Deadline != nil {
		t.Errorf("the drain ends though a pod stays: %+v", n)
	}
}

// Notices of a mass interruption arrive one after the other.
func TestMassInterruption(t *testing.T) {
	s := newScene(t)
	s.lose("lost-2", plan.NoCapacity).after(30 * time.Second)
	s.pods("", "bare", "lost-2", 1)
	f := forecastOf(s.Input)
	if got := say(f.Pods[0]); got != "bare-0 graceful 30..35 :" {
		t.Error(got)
	}
	if n := f.Nodes[1]; n.Notice != 30 || *n.Deadline != 150 {
		t.Errorf("%+v", n)
	}
}

// Two of four nodes drain already, and their pods have all of maxSurge. Once these have left, the pods
// of a third are surged; without knowing that, they leave in the waves of their budget.
func TestUnderway(t *testing.T) {
	for _, known := range []bool{true, false} {
		s := newScene(t)
		s.Lost[0].Capacity, s.Lost[0].Becomes = plan.PendingCapacity, aNode("instead-of-lost", "8")
		s.deploymentOf("web", 28, 14)
		s.budget("web", "web", 2)
		s.pods("ReplicaSet", "web", "lost", 7)
		s.pods("ReplicaSet", "web", "other", 7)
		for _, name := range []string{"draining-1", "draining-2"} {
			l := s.lose(name, plan.PendingCapacity)
			l.Underway = true
			l.after(-20 * time.Second)
			s.pods("ReplicaSet", "web", name, 7)
		}
		for i, p := range s.Pods {
			if strings.HasPrefix(p.Spec.NodeName, "draining") {
				s.Pods[i] = plan.AsSurged(p, at.Add(-10*time.Second))
				s.pods("ReplicaSet", "web", "", 1, func(p *corev1.Pod) { p.Status.Conditions, p.Status.Phase = nil, corev1.PodPending }) // on its way
			}
		}
		if !known {
			s.Lost = s.Lost[:1]
		}
		f := forecastOf(s.Input)
		if len(f.Nodes) != 1 || len(f.Pods) != 7 || known != slices.Equal(f.Underway, []string{"draining-1", "draining-2"}) {
			t.Fatalf("%d nodes, %d pods, under way %q", len(f.Nodes), len(f.Pods), f.Underway)
		}
		last := Seconds(0)
		for _, p := range f.Pods {
			if p.Leaves == nil || p.Outcome != Graceful {
				t.Fatal(say(p))
			}
			last = max(last, *p.Leaves)
		}
		if dip := f.Workloads[0].UnavailablePodSeconds; known != (last < 60) || dip != 0 {
			t.Errorf("the others known: %t, the last pod leaves at %v, %v unavailable pod-seconds", known, last, dip)
		}
	}
}
