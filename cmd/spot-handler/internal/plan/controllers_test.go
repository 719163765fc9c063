package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/cmd/spot-handler/internal/cluster"
	"spot-handler/drain/plan"
)

// made lists the pods that controllers made: after how many whole seconds, and their names.
func made(in Input) []string {
	w := newWorld(in)
	w.play()
	list := []string{}
	for _, p := range w.pods {
		if p.fresh {
			list = append(list, fmt.Sprintf("%02d %s", int(p.CreationTimestamp.Sub(at).Seconds()), p.Name))
		}
	}
	slices.Sort(list)
	return list
}

// Controllers make the pods that are missing, each as its kind does.
func TestControllers(t *testing.T) {
	for name, tt := range map[string]struct {
		of   func(s *scene)
		want []string
	}{
		"a ReplicaSet makes another at once": {func(s *scene) {
			s.pods("ReplicaSet", "web", "lost", 1)
		}, []string{"00 web--forecast-1"}},
		"a StatefulSet makes the same once it is gone": {func(s *scene) {
			s.pods("StatefulSet", "db", "lost", 1)
		}, []string{"05 db-0"}},
		"a Job waits ten seconds": {func(s *scene) {
			s.pods("Job", "batch", "lost", 1, annotated(plan.WhenAnnotation, "now"))
		}, []string{"10 batch--forecast-1"}},
		"a StatefulSet in order waits for the first of its pods": {func(s *scene) {
			s.pods("StatefulSet", "db", "lost", 2)
			s.Owners = map[types.UID]cluster.Owner{"of-db": {Replicas: 2, InOrder: true}}
		}, []string{"05 db-0", "15 db-1"}},
		"and one that need not": {func(s *scene) {
			s.pods("StatefulSet", "db", "lost", 2)
			s.Owners = map[types.UID]cluster.Owner{"of-db": {Replicas: 2}}
		}, []string{"05 db-0", "05 db-1"}},
		"what is scaled down comes back no more": {func(s *scene) {
			s.pods("ReplicaSet", "web", "lost", 1)
			s.pods("ReplicaSet", "web", "other", 1)
			s.Owners = map[types.UID]cluster.Owner{"of-web": {Replicas: 1}}
		}, nil},
		"a DaemonSet's is gone with its node": {func(s *scene) {
			s.pods("DaemonSet", "agent", "lost", 1)
		}, nil},
		"and so is a mirror pod": {func(s *scene) {
			s.pods("Node", "proxy", "lost", 1)
		}, nil},
		"without a controller it is gone": {func(s *scene) {
			s.pods("", "bare", "lost", 1)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			tt.of(s)
			if tt.want == nil {
				tt.want = []string{}
			}
			if diff := cmp.Diff(tt.want, made(s.Input)); diff != "" {
				t.Errorf("pods that were made (-want +got):\n%s", diff)
			}
		})
	}
}

// A pod that is made again is of its template: the labels by which it is found and the name of its own.
func TestPodIsMadeAgain(t *testing.T) {
	s := newScene(t)
	s.pods("StatefulSet", "db", "lost", 1, labelled("statefulset.kubernetes.io/pod-name", "db-0"))
	w := newWorld(s.Input)
	s.Pods[0].Labels["statefulset.kubernetes.io/pod-name"] = "another" // of a template that is another pod
	w.make(w.pods["db-0"].controller, "db-7")
	for _, p := range w.pods {
		if p.fresh && (p.Labels["statefulset.kubernetes.io/pod-name"] != "db-7" || p.Labels["app"] != "db" || p.Spec.NodeName != "" || p.Status.Phase != corev1.PodPending || p.CreationTimestamp.Time != at) {
			t.Errorf("%+v", p.Pod)
		}
	}
	if s.Pods[0].Labels["statefulset.kubernetes.io/pod-name"] != "another" {
		t.Error("the template has changed")
	}
}

// Two ReplicaSets that lose all of their pods at the same time take turns, so each finds some of the room.
func TestReplicaSetsTakeTurns(t *testing.T) {
	s := newScene(t)
	s.Nodes[1] = aNode("other", "6")
	for _, name := range []string{"a", "b"} {
		s.pods("ReplicaSet", name, "lost", 5)
	}
	w := newWorld(s.Input)
	w.play()
	found := map[string]int{}
	for _, p := range w.pods {
		if p.node != nil && p.node.Name == "other" {
			found[p.Labels["app"]]++
		}
	}
	if found["a"] != 3 || found["b"] != 3 {
		t.Errorf("room for %v, want three each", found)
	}
}

// Of pods that are too many the first to go is one without a node, then one that is not Ready, then the
// newest.
func TestTooManyPods(t *testing.T) {
	s := newScene(t)
	s.pods("ReplicaSet", "web", "other", 1) // web-0
	s.pods("ReplicaSet", "web", "other", 1, func(p *corev1.Pod) { p.Status.Conditions = p.Status.Conditions[:1] })
	s.pods("ReplicaSet", "web", "other", 1, func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(at.Add(-time.Minute)) })
	s.pods("ReplicaSet", "web", "", 1)
	w := newWorld(s.Input)
	c := w.pods["web-0"].controller
	for i, want := range []string{"web-3", "web-1", "web-2"} {
		c.desired = 3 - i
		w.reconcile(c)
		if p := w.pods[types.UID(want)]; p != nil && p.DeletionTimestamp == nil {
			t.Errorf("scaled to %d: %s is still there", c.desired, want)
		}
		n := 0
		for _, p := range w.pods {
			if p.DeletionTimestamp == nil {
				n++
			}
		}
		if n != c.desired {
			t.Errorf("scaled to %d: %d pods", c.desired, n)
		}
	}
}

// The delay of a Job doubles with each pod that fails, from ten seconds up to ten minutes.
func TestJobDelay(t *testing.T) {
	c := &controller{kind: "Job"}
	for _, want := range []time.Duration{10, 20, 40, 80, 160, 320, 600, 600} {
		c.podFailed(at)
		if got := c.delayed.Sub(at); got != want*time.Second {
			t.Errorf("delayed by %v, want %v", got, want*time.Second)
		}
	}
	of := &controller{kind: "ReplicaSet"}
	of.podFailed(at)
	if !of.delayed.IsZero() {
		t.Error("a ReplicaSet waits")
	}
}
