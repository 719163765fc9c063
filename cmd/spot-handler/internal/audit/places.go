package audit

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
)

// successorsWithoutPlace: pods that keep off each other's nodes leave no node to their
// successors. A strict spread over nodes counts the cordoned node too: once that is empty, the
// others take no more than maxSkew each.
// https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/#spread-constraint-definition
func successorsWithoutPlace(s Snapshot) (found []Finding) {
	for of, theirs := range s.byOwner {
		p, replicas := theirs[0], s.Replicas[of]
		if p.Apart == nil || replicas < 2 {
			continue
		}
		nodes, more := s.homes(p.Apart, replicas+1)
		places := max(0, nodes-1) // without that which is lost
		if more {
			places++
		}
		kind, need, fits := "keep off each other's nodes", replicas, places
		if p.Apart.Skew > 0 {
			kind, fits = "are spread strictly over nodes", p.Apart.Skew*places
			if p.Surges && nodes > 0 { // those of one node find places beside the rest
				need = (replicas + nodes - 1) / nodes
			}
		}
		if need <= fits {
			continue
		}
		f := Finding{
			Namespace: of.Namespace, Object: of.Object, Pods: len(theirs),
			What: fmt.Sprintf("its %s %s, and there are %d that take them", pods(replicas), kind, nodes),
			Why:  "once a node is lost, successors find no place until another has come or the lost Node is gone",
		}
		if p.Apart.Skew > 0 {
			f.Fix = patchPods(of, `{"spec":{"topologySpreadConstraints":[{"topologyKey":"kubernetes.io/hostname","nodeTaintsPolicy":"Honor"}]}}`)
		} else {
			f.Fix = of.kubectl("scale", fmt.Sprintf("--replicas=%d", max(1, places)))
		}
		found = append(found, f)
	}
	return found
}

// homes counts the nodes, up to so many, that take a pod, and says whether Karpenter makes more.
func (s Snapshot) homes(a *Apart, enough int) (n int, more bool) {
	for _, node := range s.Nodes {
		_, kept := corev1helpers.FindMatchingUntoleratedTaint(klog.Logger{}, node.Spec.Taints, a.tolerations, keepsAway, false)
		if fits, err := a.affinity.Match(node); err != nil || !fits || kept || node.Spec.Unschedulable {
			continue
		}
		n, more = n+1, more || node.Labels["karpenter.sh/nodepool"] != ""
		if n == enough {
			break
		}
	}
	return n, more
}

func keepsAway(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }
