package drain

import corev1 "k8s.io/api/core/v1"

// Result says what became of the pods that had to leave a node, each counted once.
type Result struct {
	Total     int
	Graceful  int // had all the grace that it asked for
	Truncated int // had less, as there was no more time
	Forced    int // was deleted past its disruption budget
	Left      int // was still there at the end, and had not been evicted

	// Refusal is why one of those left could not be evicted, in the API server's words.
	Refusal string
	// Remaining are those left.
	Remaining []Remaining
}

// Remaining is a pod that was left on its node.
type Remaining struct {
	Pod     *corev1.Pod
	Refusal string // why, in the API server's words; empty where it was never tried
}
