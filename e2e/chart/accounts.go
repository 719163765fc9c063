package chart

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// Around are the kinds of the chart's objects that daemons live by, which run as processes of
// their own: their permissions, what they write to, and what else holds and helps them in the API
// server.
var Around = []string{
	"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ConfigMap",
	"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "FlowSchema", "PriorityLevelConfiguration",
}

// Create creates those of the release's objects that are of the kinds, in a cluster where the
// release's namespace exists, and returns all that the release renders.
func Create(ctx context.Context, client dynamic.Interface, r Release, kinds []string, progress io.Writer) ([]unstructured.Unstructured, error) {
	helms, err := Helms(ctx, progress)
	if err != nil {
		return nil, err
	}
	objects, err := helms[len(helms)-1].Render(ctx, r)
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		if !slices.Contains(kinds, o.GetKind()) {
			continue
		}
		resource, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
		if _, err := client.Resource(resource).Namespace(o.GetNamespace()).Create(ctx, &o, metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("create %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return objects, nil
}

// WaitAllowed waits until the API server grants the account what the roles say: a process that
// lacks a permission at its start ends. One that leads has a Lease in its namespace.
func WaitAllowed(ctx context.Context, client kubernetes.Interface, namespace, account string, leads bool) error {
	needs := []authorizationv1.ResourceAttributes{{Verb: "patch", Resource: "nodes"}}
	if leads {
		needs = append(needs, authorizationv1.ResourceAttributes{Verb: "update", Group: "coordination.k8s.io", Resource: "leases", Namespace: namespace})
	}
	for _, need := range needs {
		err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			answer, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{User: "system:serviceaccount:" + namespace + ":" + account, ResourceAttributes: &need},
			}, metav1.CreateOptions{})
			return err == nil && answer.Status.Allowed, err
		})
		if err != nil {
			return fmt.Errorf("wait until %s can %s %s: %w", account, need.Verb, need.Resource, err)
		}
	}
	return nil
}
