package drain

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// watchOf has shown the pods.
func watchOf(pods ...*corev1.Pod) *podWatch {
	w := newPodWatch(func(_, _ *corev1.Pod) {}, func() {})
	_ = w.Replace(anyOf(pods...), "1") // its error is always nil
	return w
}

func anyOf(pods ...*corev1.Pod) []any {
	list := make([]any, len(pods))
	for i, p := range pods {
		list[i] = p
	}
	return list
}

// Whoever watches hears of every change once, also of those that a gap in the watch has hidden.
func TestPodWatch(t *testing.T) {
	var told []string
	w := newPodWatch(func(before, after *corev1.Pod) {
		switch {
		case before == nil:
			told = append(told, "new "+after.Name)
		case after == nil:
			told = append(told, "gone "+before.Name)
		default:
			told = append(told, "changed "+after.Name+" to "+string(after.Status.Phase))
		}
	}, func() { told = append(told, "known") })
	phase := func(phase corev1.PodPhase) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Status.Phase = phase }
	}
	another := pod("a", func(p *corev1.Pod) { p.UID = "another" })
	steps := []struct {
		name string
		do   func() error
		want []string
		have []string
	}{
		{"the first list", func() error { return w.Replace(anyOf(pod("a"), pod("b")), "1") }, []string{"known"}, []string{"a", "b"}},
		{"a new pod", func() error { return w.Add(pod("c")) }, []string{"new c"}, []string{"a", "b", "c"}},
		{"a change", func() error { return w.Update(pod("a", phase(corev1.PodFailed))) }, []string{"changed a to Failed"}, []string{"a", "b", "c"}},
		{"an end", func() error { return w.Delete(pod("c")) }, []string{"gone c"}, []string{"a", "b"}},
		{"the same end", func() error { return w.Delete(pod("c")) }, nil, []string{"a", "b"}},
		{"a gap", func() error { return w.Replace(anyOf(pod("a", phase(corev1.PodFailed)), pod("d")), "9") },
			[]string{"changed a to Failed", "gone b", "new d"}, []string{"a", "d"}},
		{"another pod of that name", func() error { return w.Update(another) }, []string{"changed a to Running"}, []string{"a", "d"}},
	}
	for _, s := range steps {
		told = nil
		if w.hasSynced() != (s.name != "the first list") {
			t.Errorf("before %s: synced %t", s.name, w.hasSynced())
		}
		if err := s.do(); err != nil {
			t.Fatal(err)
		}
		slices.Sort(told)
		if diff := cmp.Diff(s.want, told); diff != "" {
			t.Errorf("%s (-want +told):\n%s", s.name, diff)
		}
		var have []string
		for _, p := range w.list() {
			have = append(have, p.Name)
		}
		slices.Sort(have)
		if diff := cmp.Diff(s.have, have); diff != "" {
			t.Errorf("after %s (-want +have):\n%s", s.name, diff)
		}
	}
	if _, ok := w.current(pod("a")); ok {
		t.Error("the pod that has gone is taken for the one of its name")
	}
	if p, ok := w.current(another); !ok || p.UID != "another" {
		t.Errorf("have %v, %t; want the other", p, ok)
	}
}
