package nodes

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// holder is which of several Nodes of one instance is that instance; nil if there is none. A
// kubelet that registers again under another name leaves its old Node behind, which is soon not
// Ready. Somebody who makes a Node with the provider id of another comes later than that, and
// cannot keep it from being Ready. So it is the oldest that is Ready, or else the youngest. A label
// is no such claim: a kubelet can set it at any age, so it counts only if no provider id names the
// instance.
func holder(found []any) *corev1.Node {
	named := slices.ContainsFunc(found, provided)
	var oldestReady, youngest *corev1.Node
	for _, obj := range found {
		node, ok := obj.(*corev1.Node)
		if !ok || named && !provided(obj) {
			continue
		}
		if Ready(node) && (oldestReady == nil || node.CreationTimestamp.Before(&oldestReady.CreationTimestamp)) {
			oldestReady = node
		}
		if youngest == nil || youngest.CreationTimestamp.Before(&node.CreationTimestamp) {
			youngest = node
		}
	}
	if oldestReady != nil {
		return oldestReady
	}
	return youngest
}

// provided reports whether it is a Node's provider id that names its instance.
func provided(obj any) bool {
	node, ok := obj.(*corev1.Node)
	return ok && IsInstanceID(lastSegment(node))
}

// Holds returns an error if another Node is the instance that this one says it is: then nothing
// that this one says must be done to the instance.
func (x *Index) Holds(node *corev1.Node) error {
	id := InstanceID(node)
	if !IsInstanceID(id) {
		return nil
	}
	found, err := x.store.ByIndex(byInstance, id)
	if err != nil {
		return nil // an index that does not exist: cannot happen
	}
	if other := holder(found); other != nil && other.Name != node.Name {
		return fmt.Errorf("instance %s is node %s", id, other.Name)
	}
	return nil
}
