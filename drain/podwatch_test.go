package drain

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain/rewatch"
)

// watchOf has shown the pods.
func watchOf(t *testing.T, pods ...*corev1.Pod) *rewatch.Watch[*corev1.Pod] {
	t.Helper()
	w := newPodWatch(Options{}, "node-a", func(_, _ *corev1.Pod) {}, func() {})
	list := make([]any, len(pods))
	for i, p := range pods {
		list[i] = p
	}
	if err := w.Replace(list, "1"); err != nil {
		t.Fatal(err)
	}
	return w
}

// Another pod of the same name, as a StatefulSet makes it, is not the one that has gone.
func TestAnotherPodOfItsName(t *testing.T) {
	another := pod("a", func(p *corev1.Pod) { p.UID = "another" })
	s := &session{watch: watchOf(t, another)}
	if _, ok := s.current(pod("a")); ok {
		t.Error("the pod that has gone is taken for the one of its name")
	}
	if p, ok := s.current(another); !ok || p.UID != "another" {
		t.Errorf("have %v, %t; want the other", p, ok)
	}
}
