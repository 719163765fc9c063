package drain

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"spot-handler/drain/narrow"
)

// adopter is a controller that adopts pods without an owner.
//
// A surged pod has none, and every controller of its namespace adopts such pods that its
// selector matches. One that has enough pods then deletes one, perhaps this one. Selectors
// overlap more often than one would think, as where a chart gives its DaemonSet and its
// Deployment the same labels, and nobody notices while all pods have owners.
//
// Only DaemonSets and bare ReplicaSets adopt any pod: a Deployment's ReplicaSets select by
// pod-template-hash, which the surge changes; a StatefulSet adopts by name; a Job's selector is
// its own, unless somebody has written it by hand; and ReplicationControllers are not worth a
// request of every drain.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/controller/controller_ref_manager.go
type adopter struct {
	name     string // with its kind
	selector labels.Selector
}

func addAdopter(to *Surroundings, u *unstructured.Unstructured) {
	var object struct {
		Spec struct {
			Selector *metav1.LabelSelector `json:"selector"`
		} `json:"spec"`
	}
	if u.Object[narrow.CutKey] != nil {
		to.tooLarge = u.GetKind() + " " + u.GetName() + " is larger than what is read of one"
		return
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &object); err == nil {
		to.AddAdopter(u.GetKind(), u.GetName(), object.Spec.Selector, u.GetDeletionTimestamp() != nil)
	}
}

// AddAdopter adds a DaemonSet, or a bare ReplicaSet.
func (s *Surroundings) AddAdopter(kind, name string, by *metav1.LabelSelector, deleted bool) {
	if selector, err := metav1.LabelSelectorAsSelector(by); err == nil && !deleted {
		s.adopters = append(s.adopters, adopter{kind + " " + name, selector})
	}
}
