package nodes

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// The standard conditions of a Node that we write. Kubernetes has names for them since 1.37, and leaves
// it to "the admin" to set and clear them. An API server of any version stores them.
// https://github.com/kubernetes/kubernetes/blob/v1.37.2/staging/src/k8s.io/api/core/v1/types.go
const (
	// DrainInProgress: "this Node is actively being drained, according to the admin's definition of drain".
	DrainInProgress corev1.NodeConditionType = "DrainInProgress"
	// Drained: "this Node has reached the drain criteria selected by the admin".
	Drained corev1.NodeConditionType = "Drained"
	// MaintenancePlanned: "this Node is expected to undergo a change in the future".
	MaintenancePlanned corev1.NodeConditionType = "MaintenancePlanned"
)

// ConditionReasonPrefix begins the reason of each standard condition that we write. Anybody may set them,
// so one with another reason is somebody else's.
const ConditionReasonPrefix = "SpotHandler"

// ConditionTypes lists the conditions that we write: our own first, and the standard ones.
func ConditionTypes() []corev1.NodeConditionType {
	return []corev1.NodeConditionType{interruption.ConditionType, DrainInProgress, Drained, MaintenancePlanned}
}

// OurCondition reports whether we have written the condition.
func OurCondition(c corev1.NodeCondition) bool {
	return c.Type == interruption.ConditionType ||
		slices.Contains(ConditionTypes(), c.Type) && strings.HasPrefix(c.Reason, ConditionReasonPrefix)
}

// conditionPlaces is more conditions than Nodes have: kubelets, cloud controllers and problem detectors set
// a dozen or two.
const conditionPlaces = 64

// leanConditions keeps of the condition Ready what is read, and all that the conditions that we write say.
// On a Node with a record the others leave their types, so that each stays where it is in the list: a
// patch names a condition by its place. With more of them than is likely, places are not kept, and such
// a patch fails.
func leanConditions(node *corev1.Node) []corev1.NodeCondition {
	places := hasRecord(node) && len(node.Status.Conditions) <= conditionPlaces
	var kept []corev1.NodeCondition
	for _, c := range node.Status.Conditions {
		slim := corev1.NodeCondition{Type: c.Type, Status: c.Status}
		switch {
		case c.Type == corev1.NodeReady:
			slim.LastTransitionTime = c.LastTransitionTime
		case OurCondition(c):
			slim.Reason, slim.Message = interruption.Clip(c.Reason), interruption.Clip(c.Message)
		case !places && !slices.Contains(ConditionTypes(), c.Type):
			continue
		}
		kept = append(kept, slim)
	}
	return kept
}
