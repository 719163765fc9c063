package drain

import (
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// A tenant that puts pods on a node past its scheduler is known with a thousand of them, and with none
// that its kubelet has rejected. Another's are all known.
func TestPodsOfANamespaceAreBounded(t *testing.T) {
	w := watchOf(t)
	in := func(namespace string, i int, change ...func(*corev1.Pod)) *corev1.Pod {
		p := pod(fmt.Sprint("p", i), change...)
		p.Namespace = namespace
		return p
	}
	failed := func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }
	leaving := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }
	for i := range 3000 {
		_ = w.Add(in("hostile", i))
		_ = w.Add(in("rejected", i, failed))
	}
	_ = w.Add(in("shop", 0))
	_ = w.Add(in("shop", 1, failed, leaving))
	have := map[string]int{}
	for _, p := range w.All() {
		have[p.Namespace]++
	}
	if want := map[string]int{"hostile": 1000, "shop": 2}; !maps.Equal(have, want) {
		t.Errorf("known are %v, want %v", have, want)
	}
	// One that goes makes room, and one that was known stays until it is gone.
	_ = w.Delete(in("hostile", 0))
	_ = w.Update(in("hostile", 2000))
	_ = w.Update(in("hostile", 2000, failed))
	if _, ok := w.Get("hostile/p2000"); !ok || len(w.All()) != 1002 {
		t.Errorf("%d are known, p2000 among them: %t", len(w.All()), ok)
	}
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
