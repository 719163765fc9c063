package drain

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// A surged pod has no owner, and any controller of its namespace whose selector matches it adopts
// it. If that controller has enough pods already, it deletes one, perhaps this one. Selectors do
// overlap, as where a chart gives its DaemonSet and its Deployment the same labels, and nobody
// notices while every pod has an owner.
//
// These kinds adopt any pod that they select. A Deployment's ReplicaSets select by
// pod-template-hash, which the surge changes. A StatefulSet adopts by name, and a Job selects by a
// label of its own, unless somebody has written its selector by hand. ReplicationControllers do
// adopt, but are too rare for one more request of every drain.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/controller/controller_ref_manager.go
var adopting = map[schema.GroupVersionResource]metav1.ListOptions{
	replicaSetResource: {LabelSelector: "!" + hashLabel, ResourceVersion: "0"},
	{Group: "apps", Version: "v1", Resource: "daemonsets"}: {ResourceVersion: "0"},
}

// adopter is a controller that adopts pods without an owner.
type adopter struct {
	name     string // with its kind
	selector labels.Selector
}

// readAdopters reads the adopters in a namespace. Without the right to list a kind, none of that
// kind is known.
func readAdopters(client dynamic.Interface) func(context.Context, types.NamespacedName) ([]adopter, error) {
	return func(ctx context.Context, in types.NamespacedName) ([]adopter, error) {
		var found []adopter
		for resource, options := range adopting {
			list, err := client.Resource(resource).Namespace(in.Namespace).List(ctx, options)
			if apierrors.IsForbidden(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("list %s of namespace %q: %w", resource.Resource, in.Namespace, err)
			}
			for i := range list.Items {
				if a, ok := adopterOf(&list.Items[i]); ok {
					found = append(found, a)
				}
			}
		}
		return found, nil
	}
}

func adopterOf(u *unstructured.Unstructured) (adopter, bool) {
	var object struct {
		Spec struct {
			Selector *metav1.LabelSelector `json:"selector"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &object); err != nil {
		return adopter{}, false
	}
	selector, err := metav1.LabelSelectorAsSelector(object.Spec.Selector)
	return adopter{name: u.GetKind() + " " + u.GetName(), selector: selector}, err == nil && u.GetDeletionTimestamp() == nil
}
