package watch

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/rewatch"
)

// watchOf has shown that there is no pod.
func watchOf(t *testing.T) *rewatch.Watch[*corev1.Pod] {
	t.Helper()
	w := New(Options{}).newPodWatch("node-a", func(_, _ *corev1.Pod) {}, func() {})
	if err := w.Replace(nil, "1"); err != nil {
		t.Fatal(err)
	}
	return w
}

// A tenant that puts pods on a node past its scheduler is known with a thousand of them, and with none
// that its kubelet has rejected. Another's are all known.
func TestPodsOfANamespaceAreBounded(t *testing.T) {
	w := watchOf(t)
	in := func(namespace string, i int, change ...func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("p", i), UID: types.UID(fmt.Sprint(namespace, i))}}
		for _, f := range change {
			f(p)
		}
		return p
	}
	failed := func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }
	leaving := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }
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

// A tenant's budgets are kept up to a bound. One that shrinks, or goes, makes room for another.
func TestBoundedSizes(t *testing.T) {
	s := boundedSizes{most: 100, of: map[string]int{}}
	for i, tt := range []struct {
		name string
		size int
		kept bool
	}{
		{"a", 60, true}, {"b", 50, false}, {"b", 40, true}, {"c", 1, false}, {"a", 59, true}, {"c", 1, true}, {"a", 61, false},
		{"b", 99, true}, {"b", 0, false}, {"a", 99, true},
	} {
		if kept := s.set(tt.name, tt.size); kept != tt.kept || s.sum > s.most {
			t.Errorf("%d: %s of %d is kept: %t, want %t; %d in all", i, tt.name, tt.size, kept, tt.kept, s.sum)
		}
	}
	if got := strings.Join(slices.Sorted(maps.Keys(s.of)), " "); got != "a c" {
		t.Errorf("kept are %s, want a and c", got)
	}
}
