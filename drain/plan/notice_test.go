package plan

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Who asks is notified, even if it stays to the end; but nobody that is gone, that does not run
// as the API server has it, or whose namespace forbids it or is not known yet.
func TestNotice(t *testing.T) {
	asks := annotated(NoticeAnnotation, "8080/bye")
	known := map[string]Preferences{"shop": {}}
	for name, tt := range map[string]struct {
		pod        *corev1.Pod
		namespaces map[string]Preferences
		want       string
	}{
		"asks":               {pod("a", asks), known, "8080/bye"},
		"does not":           {pod("a"), known, ""},
		"stays":              {pod("a", asks, tolerating("spot-handler/interrupted")), known, "8080/bye"},
		"of a DaemonSet":     {pod("a", asks, ownedBy("DaemonSet")), known, "8080/bye"},
		"mirror pod":         {pod("a", asks, annotated(corev1.MirrorPodAnnotationKey, "x")), known, ""},
		"finished":           {pod("a", asks, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), known, ""},
		"terminating":        {pod("a", asks, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }), known, ""},
		"shut out":           {pod("a", asks), map[string]Preferences{"shop": {Silent: true}}, ""},
		"not known yet":      {pod("a", asks), nil, ""},
		"another's shut out": {pod("a", asks), map[string]Preferences{"shop": {}, "bank": {Silent: true}}, "8080/bye"},
	} {
		s := Situation{NodeState: NodeState{Taint: taint}, Policy: policy, Pods: []*corev1.Pod{tt.pod}, Namespaces: tt.namespaces}
		if got := Plan(now, s)[0].Notice; got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
