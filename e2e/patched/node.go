// Package patched is what an API server makes of a patch, for fakes of one.
package patched

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
)

// Node returns the Node as the patch changes it, and leaves the one that it is given alone.
func Node(node *corev1.Node, kind types.PatchType, patch []byte) (*corev1.Node, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	tracker := clienttesting.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder())
	if err := tracker.Add(node); err != nil {
		return nil, err
	}
	resource := corev1.SchemeGroupVersion.WithResource("nodes")
	_, after, err := clienttesting.ObjectReaction(tracker)(clienttesting.NewRootPatchAction(resource, node.Name, kind, patch))
	if err != nil {
		return nil, err
	}
	return after.(*corev1.Node), nil
}
