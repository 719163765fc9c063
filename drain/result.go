package drain

// Result says what became of the pods that had to leave a node, each counted once.
type Result struct {
	Total     int
	Graceful  int // had all the grace that it asked for
	Truncated int // had less, as there was no more time
	Forced    int // was deleted past its disruption budget
	Left      int // was not evicted by the deadline

	// Refusal is why a pod was left, in the API server's words; empty if none was.
	Refusal string
}
