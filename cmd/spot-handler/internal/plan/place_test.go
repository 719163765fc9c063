package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/handler/provisioner/room"
)

// What a pod takes of a node's room comes back when it is removed, once.
func TestPlaceAndRemove(t *testing.T) {
	cpu := func(n string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(n)}
	}
	of := func(name string) *pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
		p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: cpu("2")}}}
		return &pod{Pod: p}
	}
	n := &node{free: room.NewSpace(cpu("3")), pods: map[types.UID]*pod{}}
	fits := func(when, what string, want bool) {
		t.Helper()
		if n.free.Fits(cpu(what)) != want {
			t.Errorf("%s: room for %s: %t, want %t", when, what, !want, want)
		}
	}
	a, b := of("a"), of("b")
	fits("empty", "3", true)
	n.place(a)
	fits("with a pod", "1", true)
	fits("with a pod", "2", false)
	n.remove(b)
	fits("another was removed, which was not there", "2", false)
	n.remove(a)
	fits("it was removed", "3", true)
	n.remove(a)
	fits("it was removed again", "4", false)
	if len(n.pods) != 0 {
		t.Errorf("pods %v", n.pods)
	}
}

// A node with a deadline that never becomes empty is said to never do so. Without a deadline there is no hurry.
func TestEmptyInTable(t *testing.T) {
	at := Seconds((2 * time.Minute).Seconds())
	for name, tt := range map[string]struct {
		n    Node
		want string
	}{
		"in time":            {Node{Empty: &at, Deadline: &at}, "120 s"},
		"never":              {Node{Deadline: &at}, "never"},
		"without a deadline": {Node{}, console.None},
		"empty, without one": {Node{Empty: &at}, "120 s"},
	} {
		if got := nodeRow(tt.n)[3].Text; got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
