package rehearse

import (
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/nodes"
)

// Share is how many nodes would be interrupted at once, those that are already among them, and how
// many of all that percentage allows: one at least.
func Share(all, chosen []*corev1.Node, percent int) (n, most int) {
	n = len(chosen)
	for _, node := range all {
		if rec, has, err := nodes.Record(node); has && (err != nil || !rec.Phase.Over()) {
			n++
		}
	}
	return n, max(1, len(all)*percent/100)
}
