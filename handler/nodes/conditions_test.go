package nodes

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
)

// Of a Node's conditions only what is read is kept. Those of a Node with a record keep their places.
func TestLeanConditions(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
	long := strings.Repeat("x", 10_000)
	node.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure", Message: long},
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastTransitionTime: metav1.Now()},
		{Type: DrainInProgress, Status: corev1.ConditionTrue, Reason: "Kubectl", Message: long},
		{Type: interruption.ConditionType, Status: corev1.ConditionTrue, Reason: "SpotInterruption", Message: "soon"},
		{Type: MaintenancePlanned, Status: corev1.ConditionTrue, Reason: "SpotHandlerRebalanceRecommendation", Message: long},
	}
	kept := func() (lines []string) {
		for _, c := range leanConditions(node) {
			if len(c.Message) > 5_000 {
				t.Errorf("keeps %d bytes of %s", len(c.Message), c.Type)
			}
			lines = append(lines, fmt.Sprintf("%s %s %s %t %t", c.Type, c.Status, c.Reason, c.Message != "", c.LastTransitionTime.IsZero()))
		}
		return lines
	}
	ours := []string{
		"Ready True  false false",
		"DrainInProgress True  false true",
		"spot-handler/Interrupted True SpotInterruption true true",
		"MaintenancePlanned True SpotHandlerRebalanceRecommendation true true",
	}
	if diff := cmp.Diff(ours, kept()); diff != "" {
		t.Errorf("no record (-want +got):\n%s", diff)
	}
	node.Annotations = map[string]string{interruption.Annotation: "{}"}
	if diff := cmp.Diff(append([]string{"DiskPressure False  false true"}, ours...), kept()); diff != "" {
		t.Errorf("a record (-want +got):\n%s", diff)
	}
	for i := range conditionPlaces {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeConditionType(fmt.Sprint("c", i))})
	}
	if diff := cmp.Diff(ours, kept()); diff != "" {
		t.Errorf("more than is likely (-want +got):\n%s", diff)
	}
}

// A Node that still shows a condition of ours is looked after, and one that shows others' is not.
func TestConcernedByConditions(t *testing.T) {
	for reason, want := range map[string]bool{"SpotHandlerDrained": true, "Kubectl": false, "": false} {
		node := &corev1.Node{}
		node.Status.Conditions = []corev1.NodeCondition{{Type: Drained, Reason: reason}}
		if got := concerned(node); got != want {
			t.Errorf("Drained for the reason %q: %t, want %t", reason, got, want)
		}
	}
}
