package drain

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

// The requests that a drain makes about a pod, one by one, for whoever wants to know what the API
// server would answer. Each is sent over a client of the core API whose requests change nothing.

// TrySurge is the patch with which a pod's surge begins.
func TrySurge(ctx context.Context, client rest.Interface, pod *corev1.Pod, now time.Time) error {
	return over(client).labelSurged(ctx, pod, now)
}

// TryEviction is the eviction that a decision asks for.
func TryEviction(ctx context.Context, client rest.Interface, d Decision) error {
	return postEviction(ctx, client, d)
}

// over is a Drainer that has nothing but a client, which is all that a single request needs.
func over(client rest.Interface) *Drainer { return &Drainer{opts: Options{Pods: client}} }
