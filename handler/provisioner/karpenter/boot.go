package karpenter

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
)

// bootSample is how many NodeClaims of a pool tell how long its nodes take: they are large.
const bootSample = 200

// BootTimes are how long the nodes of a pool took from the request until they were Ready, as some
// of its NodeClaims say.
func BootTimes(ctx context.Context, client dynamic.Interface, pool string) ([]time.Duration, error) {
	list, err := client.Resource(nodeClaimResource).List(ctx, metav1.ListOptions{LabelSelector: nodePoolLabel + "=" + pool, Limit: bootSample})
	if err != nil {
		return nil, asUnavailable("list NodeClaims", fmt.Errorf("list NodeClaims of pool %q: %w", pool, err))
	}
	var took []time.Duration
	for i := range list.Items {
		claim, err := decodeClaim(&list.Items[i])
		if err == nil && !claim.since("Initialized").IsZero() {
			took = append(took, claim.readyAfter())
		}
	}
	return took, nil
}
