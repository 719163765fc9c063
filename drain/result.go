package drain

import corev1 "k8s.io/api/core/v1"

// Result says what became of the pods that had to leave a node, each counted once.
type Result struct {
	Total     int
	Graceful  int // had the whole grace period that it asked for
	Truncated int // had less, as there was not enough time
	Forced    int // was deleted past its disruption budget
	Left      int // was still there at the end, and had not been evicted

	// Refusal is why one of the pods that were left could not be evicted, in the API server's
	// words.
	Refusal string
	// Remaining are the pods that were left.
	Remaining []Remaining

	// Staying are the pods that are on the node after its drain was called off, but for those
	// that are about to go.
	Staying []*corev1.Pod
}

// Remaining is a pod that was left on its node.
type Remaining struct {
	Pod     *corev1.Pod
	Refusal string // why, in the API server's words; empty if its eviction was never tried
}
