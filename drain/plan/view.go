package plan

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// View is what is on a node now.
type View struct {
	Moving  []*corev1.Pod      // have to leave, some DaemonSet pods among them
	Surged  map[types.UID]bool // those of Moving whose replacement pods are made first
	Staying []*corev1.Pod      // would have to leave if the node's end were certain, see Decision.Stays
	Daemons []*corev1.Pod      // DaemonSet pods, whether they stay or leave
	Plan    []Decision         // one for every pod of the node
}

// ViewOf is a plan, by what becomes of the pods.
func ViewOf(plan []Decision) View {
	v := View{Plan: plan, Surged: map[types.UID]bool{}}
	for _, d := range plan {
		if IsDaemon(d.Pod) {
			v.Daemons = append(v.Daemons, d.Pod)
		}
		switch {
		case d.Moves():
			v.Moving = append(v.Moving, d.Pod)
			if d.Surge {
				v.Surged[d.Pod.UID] = true
			}
		case d.Stays:
			v.Staying = append(v.Staying, d.Pod)
		}
	}
	return v
}

// Homeless are those of Moving that need a place on another node, which DaemonSet pods don't.
func (v View) Homeless() []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(v.Moving), IsDaemon)
}
