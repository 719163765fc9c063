package karpenter

import (
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"spot-handler/drain/rewatch"
	"spot-handler/handler/provisioner"
)

// Which version of objects is read.
const (
	cached   = "0" // what is in the API server's watch cache, which might be behind
	asStored = ""  // what is in its store: a quorum read
)

// readClaim is the NodeClaim, or nil if there is none.
func (b *Backend) readClaim(ctx context.Context, name, version string) (*Claim, error) {
	u, err := b.opts.Dynamic.Resource(nodeClaimResource).Get(ctx, name, metav1.GetOptions{ResourceVersion: version})
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get NodeClaim %q: %w", name, err)
	}
	return decodeClaim(u), nil
}

// deleteClaim deletes exactly this claim, which may be gone by then. If it has not been launched
// it must not have changed either: its next version might be.
func (b *Backend) deleteClaim(ctx context.Context, claim *Claim) error {
	preconditions := &metav1.Preconditions{UID: &claim.UID}
	if claim.state() == provisioner.StateRequested {
		preconditions.ResourceVersion = &claim.ResourceVersion
	}
	err := b.opts.Dynamic.Resource(nodeClaimResource).Delete(ctx, claim.Name, metav1.DeleteOptions{Preconditions: preconditions})
	if err != nil {
		return fmt.Errorf("delete NodeClaim %q: %w", claim.Name, err)
	}
	return nil
}

// How many of Karpenter's objects, and how many DaemonSets, are in memory at a time: they are large,
// and there can be thousands.
const pageLimit, daemonsPerPage = 200, 50

// eachPage reads all objects that the label selector selects, a page at a time.
func eachPage(
	ctx context.Context, client dynamic.Interface, resource schema.GroupVersionResource, selector string,
	use func(*unstructured.Unstructured),
) error {
	o := metav1.ListOptions{LabelSelector: selector, Limit: pageLimit}
	if resource == daemonSetResource {
		o.Limit = daemonsPerPage
	}
	err := rewatch.Pages(ctx, client.Resource(resource).List, o, func(page *unstructured.UnstructuredList) {
		for i := range page.Items {
			use(&page.Items[i])
		}
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", resource.Resource, err)
	}
	return nil
}

// Launched returns the instances of NodeClaims that have no Node yet. It reads all NodeClaims,
// page by page. Without Karpenter there are none.
func Launched(ctx context.Context, client dynamic.Interface) (map[string]bool, error) {
	launched := map[string]bool{}
	err := eachPage(ctx, client, nodeClaimResource, "", func(u *unstructured.Unstructured) {
		provider, _, _ := unstructured.NestedString(u.Object, "status", "providerID")
		node, _, _ := unstructured.NestedString(u.Object, "status", "nodeName")
		if provider != "" && node == "" {
			launched[provider[strings.LastIndexByte(provider, '/')+1:]] = true
		}
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	return launched, nil
}

// bootSample is how many NodeClaims of a pool tell how long its nodes take: they are large.
const bootSample = 200

// BootTimes are how long the nodes of a pool took from the request until they were Ready, as some
// of its NodeClaims say.
func BootTimes(ctx context.Context, client dynamic.Interface, pool string) ([]time.Duration, error) {
	list, err := client.Resource(nodeClaimResource).List(ctx, metav1.ListOptions{LabelSelector: nodePoolLabel + "=" + pool, Limit: bootSample})
	if err != nil {
		return nil, fmt.Errorf("list NodeClaims of pool %q: %w", pool, err)
	}
	var took []time.Duration
	for i := range list.Items {
		claim := decodeClaim(&list.Items[i])
		if ready := claim.since("Initialized"); !ready.IsZero() {
			took = append(took, max(0, ready.Sub(claim.CreationTimestamp.Time)))
		}
	}
	return took, nil
}
