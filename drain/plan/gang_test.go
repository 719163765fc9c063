package plan

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func labelled(keysAndValues ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		for i := 0; i < len(keysAndValues); i += 2 {
			p.Labels[keysAndValues[i]] = keysAndValues[i+1]
		}
	}
}

func inPodGroup(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &name} }
}

// The labels are as the controllers of each project set them.
func TestGangOf(t *testing.T) {
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want Gang
	}{
		"none":                 {pod("a"), Gang{}},
		"of a Deployment":      {webPod("a"), Gang{}},
		"by our own label":     {pod("a", labelled("spot-handler/gang", "g")), Gang{"shop", "spot-handler/gang", "g"}},
		"of another's":         {pod("a", inNamespace("bank"), labelled("spot-handler/gang", "g")), Gang{"bank", "spot-handler/gang", "g"}},
		"not by annotation":    {pod("a", annotated("spot-handler/gang", "g")), Gang{}},
		"our own before all":   {pod("a", labelled("spot-handler/gang", "g", "ray.io/cluster", "r")), Gang{"shop", "spot-handler/gang", "g"}},
		"out of its gang":      {pod("a", labelled("spot-handler/gang", "", "ray.io/cluster", "r"), inPodGroup("p")), Gang{}},
		"JobSet":               {pod("a", labelled("jobset.sigs.k8s.io/jobset-name", "j", "batch.kubernetes.io/job-name", "j-workers-0")), Gang{"shop", "jobset.sigs.k8s.io/jobset-name", "j"}},
		"LeaderWorkerSet":      {pod("a", labelled("leaderworkerset.sigs.k8s.io/name", "l", "leaderworkerset.sigs.k8s.io/group-key", "ab78")), Gang{"shop", "leaderworkerset.sigs.k8s.io/group-key", "ab78"}},
		"LWS within Kueue":     {pod("a", labelled("kueue.x-k8s.io/pod-group-name", "k", "leaderworkerset.sigs.k8s.io/group-key", "ab78")), Gang{"shop", "leaderworkerset.sigs.k8s.io/group-key", "ab78"}},
		"Kubeflow":             {pod("a", labelled("training.kubeflow.org/job-name", "t", "training.kubeflow.org/replica-type", "worker")), Gang{"shop", "training.kubeflow.org/job-name", "t"}},
		"Ray":                  {pod("a", labelled("ray.io/cluster", "r", "ray.io/node-type", "head")), Gang{"shop", "ray.io/cluster", "r"}},
		"Volcano Job":          {pod("a", labelled("volcano.sh/job-name", "v", "volcano.sh/job-namespace", "shop")), Gang{"shop", "volcano.sh/job-name", "v"}},
		"scheduled by Volcano": {webPod("a", annotated("scheduling.k8s.io/group-name", "podgroup-1")), Gang{}},
		"Kueue":                {pod("a", labelled("kueue.x-k8s.io/pod-group-name", "k")), Gang{"shop", "kueue.x-k8s.io/pod-group-name", "k"}},
		"PodGroup":             {pod("a", inPodGroup("p")), Gang{"shop", podGroup, "p"}},
		"JobSet in PodGroup":   {pod("a", inPodGroup("p"), labelled("jobset.sigs.k8s.io/jobset-name", "j")), Gang{"shop", "jobset.sigs.k8s.io/jobset-name", "j"}},
		"PodGroup by no name":  {pod("a", func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{} }), Gang{}},
	} {
		t.Run(name, func(t *testing.T) {
			got := gangOf(tt.pod)
			if got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
			if kept := gangOf(Lean(tt.pod)); kept != got {
				t.Errorf("%+v of what is kept of the pod", kept)
			}
		})
	}
}

func inNamespace(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Namespace = name }
}

// A node with pods of two gangs goes: neither gang waits for it any more, and it isn't remembered.
func TestGangsOfANodeThatGoes(t *testing.T) {
	g, first, second := newGangs(), Gang{Name: "first"}, Gang{Name: "second"}
	late, soon := Departure{At: now.Add(time.Minute)}, Departure{At: now.Add(time.Second)}
	g.Report(now, "node-a", map[Gang]Departure{first: soon, second: soon})
	g.Report(now, "node-b", map[Gang]Departure{second: late})
	g.Report(now, "node-a", map[Gang]Departure{second: soon})
	if got := g.Of("node-b")[second].At; !got.Equal(soon.At) {
		t.Errorf("second leaves at %v, want it with the pods of node-a", got)
	}
	if again := g.Report(now, "node-a", nil); !slices.Equal(again, []string{"node-b"}) {
		t.Errorf("%v to plan again, want node-b", again)
	}
	if got := g.Of("node-b")[second].At; !got.Equal(late.At) {
		t.Errorf("second leaves at %v, want it with the pods of node-b alone", got)
	}
	g.Report(now, "node-b", nil)
	if len(g.of)+len(g.on) > 0 {
		t.Errorf("gangs %v of nodes %v are remembered", g.of, g.on)
	}
}

// Once a node's interruption is cancelled, the node no longer decides when its gangs leave other nodes, even if it is
// planned again.
func TestGangsOfACancelledNode(t *testing.T) {
	f := NewFleet(holding, 32, 1)
	gang := Gang{"shop", GangLabel, "g"}
	for name, in := range map[string]time.Duration{"node-a": 2 * time.Minute, "node-b": time.Hour} {
		f.Apply(now, Set{name, Wanted{NodeState{Deadline: now.Add(in), Since: now, Capacity: PendingCapacity}, Drain}})
		f.Apply(now, PodSeen{Node: name, After: pod("of-"+name, labelled(GangLabel, "g"))})
		f.Apply(now, PodsListed{name})
	}
	at := func() time.Duration {
		f.Next(now)
		f.Status(now, "node-a") // plans it
		return f.gangs.Of("node-b")[gang].At.Sub(now).Round(time.Minute)
	}
	if got := at(); got > 2*time.Minute {
		t.Fatalf("the gang leaves in %v, want it to leave with node-a", got)
	}
	f.Apply(now, Set{"node-a", Wanted{Goal: Cancel}})
	if got := at(); got < 50*time.Minute {
		t.Errorf("the gang leaves in %v, though node-a is cancelled", got)
	}
}
