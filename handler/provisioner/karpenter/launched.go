package karpenter

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
)

// claimsPerPage bounds how many whole NodeClaims are in memory at a time.
const claimsPerPage = 100

// Launched returns the instances of NodeClaims that have no Node yet. It reads all NodeClaims,
// page by page. Without Karpenter there are none.
func Launched(ctx context.Context, client dynamic.Interface) (map[string]bool, error) {
	launched := map[string]bool{}
	for o := (metav1.ListOptions{Limit: claimsPerPage}); ; {
		page, err := client.Resource(nodeClaimResource).List(ctx, o)
		if isMissing(err) {
			return launched, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list NodeClaims: %w", err)
		}
		for _, claim := range page.Items {
			provider, _, _ := unstructured.NestedString(claim.Object, "status", "providerID")
			node, _, _ := unstructured.NestedString(claim.Object, "status", "nodeName")
			if provider != "" && node == "" {
				launched[provider[strings.LastIndexByte(provider, '/')+1:]] = true
			}
		}
		if o.Continue = page.GetContinue(); o.Continue == "" {
			return launched, nil
		}
	}
}
