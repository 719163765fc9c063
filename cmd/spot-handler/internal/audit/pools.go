package audit

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/provisioner/karpenter"
)

// pool is a NodePool of Karpenter's with spot nodes.
type pool struct{ karpenter.Outlook }

func (p pool) object() Owned { return nodePool(p.Pool) }

func nodePool(name string) Owned { return Owned{"", "nodepool/" + name} }

// poolsWithoutFallback: nothing is asked for a replacement of this pool's nodes.
func poolsWithoutFallback(s Snapshot, p pool) []Finding {
	return s.withoutReplacement(p, p.Missing, allowOnDemand(p.Pool, p.CapacityTypes))
}

// fallbacksOfNoUse: the pool that is named to replace this pool's nodes gives none.
func fallbacksOfNoUse(s Snapshot, p pool) []Finding {
	return s.withoutReplacement(p, p.Refused, nodePool(p.Named).kubectl("describe"))
}

// withoutReplacement finds that a pool gets none, if there is a reason. Another fallback fixes
// that, if there is one.
func (s Snapshot) withoutReplacement(p pool, reason, otherwise string) []Finding {
	if reason == "" {
		return nil
	}
	fix := otherwise
	if p.Instead != "" { // the annotation overrides the daemon's flag
		fix = p.object().kubectl("annotate", "--overwrite", karpenter.FallbackAnnotation+"="+p.Instead)
	}
	return []Finding{{Pods: s.countOn(p), What: "gets no replacement: " + reason, Why: noPlace, Fix: fix}}
}

// fallbacksOnSpot: what is lost on spot is replaced on spot.
func fallbacksOnSpot(s Snapshot, p pool) []Finding {
	if !p.SpotOnly {
		return nil
	}
	return []Finding{{
		Pods: s.countOn(p),
		What: fmt.Sprintf("is replaced by NodePool %s, which has no on-demand instances", p.Named),
		Why:  "when EC2 reclaims spot instances, spot is scarce: there may be no replacement, or it's interrupted soon",
		Fix:  allowOnDemand(p.Named, p.CapacityTypes),
	}}
}

// fallbacksElsewhere: a pod that has to stay in its zone has no place in the fallback pool.
func fallbacksElsewhere(s Snapshot, p pool) []Finding {
	if len(p.Barred) == 0 {
		return nil
	}
	return []Finding{{
		Pods: s.count(func(pod *Pod) bool {
			return s.isOn(pod, p.Pool) && slices.Contains(p.Barred, s.nodeLabel(pod, corev1.LabelTopologyZone))
		}),
		What: fmt.Sprintf("has nodes in %s, where NodePool %s has none", strings.Join(p.Barred, ", "), strings.Join(p.Fallbacks, ", ")),
		Why:  "pods that can't leave their zone, such as those with a volume there, stay Pending",
		Fix:  allowZones(p.Outlook),
	}}
}

// allowZones lets the first fallback have nodes in all zones of the pool's.
func allowZones(o karpenter.Outlook) string {
	if o.ZoneValues == "" {
		return fmt.Sprintf("in the manifest of NodePool %s: allow %s", o.Fallbacks[0], strings.Join(o.Barred, ", "))
	}
	return addValues(o.Fallbacks[0], o.ZoneValues, o.Barred...)
}

// fallbacksTooSmall: EC2 takes an instance type in a zone back as a whole, and the limits of the
// fallback pools do not hold that many nodes.
func fallbacksTooSmall(s Snapshot, p pool) []Finding {
	if p.Unplaced == 0 {
		return nil
	}
	of := p.Largest
	return []Finding{{
		Pods: s.count(func(pod *Pod) bool {
			return s.isOn(pod, p.Pool) &&
				s.nodeLabel(pod, corev1.LabelInstanceTypeStable) == of.Type &&
				s.nodeLabel(pod, corev1.LabelTopologyZone) == of.Zone
		}),
		What: fmt.Sprintf("has %d nodes of %s in %s, of which %d get no replacement if all are lost at once: %s",
			p.Sharing, of.Type, of.Zone, p.Unplaced, p.Full),
		Why: noPlace,
		Fix: nodePool(p.Fallbacks[0]).kubectl("patch", "--type=merge", "-p", `{"spec":{"limits":`+asJSON(p.Raise)+"}}"),
	}}
}

// poolsThatLoseNodes: what replaces a node in such a pool would likely be lost next.
func poolsThatLoseNodes(s Snapshot, p pool) []Finding {
	l, tooMany := s.TooMany[p.Pool]
	if !tooMany {
		return nil
	}
	fix := fmt.Sprintf("in the manifest of NodePool %s: allow more instance types and zones", p.Pool)
	if p.OwnZones != "" && len(p.Elsewhere) > 0 {
		fix = addValues(p.Pool, p.OwnZones, p.Elsewhere...)
	}
	return []Finding{{
		Pods: s.countOn(p), What: "has " + l.String(),
		Why: "EC2 is reclaiming what this pool uses: its other nodes may be next, and on a recommendation the fallback is asked first",
		Fix: fix,
	}}
}

const noPlace = "its pods stay Pending until Karpenter launches a node, on spot again if it can"

// isOn reports whether the pod runs on a node of the pool.
func (s Snapshot) isOn(p *Pod, pool string) bool {
	return s.nodeLabel(p, "karpenter.sh/nodepool") == pool
}

// countOn is how many pods run on spot nodes of the pool.
func (s Snapshot) countOn(p pool) int {
	return s.count(func(pod *Pod) bool { return s.isOn(pod, p.Pool) })
}

// allowOnDemand lets a pool have on-demand instances: then it can replace spot nodes, its own
// included.
func allowOnDemand(pool, path string) string {
	if path == "" {
		return fmt.Sprintf("in the manifest of NodePool %s: allow on-demand as karpenter.sh/capacity-type", pool)
	}
	return addValues(pool, path, "on-demand")
}

func addValues(pool, path string, values ...string) string {
	var ops []string
	for _, value := range values {
		ops = append(ops, fmt.Sprintf(`{"op":"add","path":%q,"value":%q}`, path, value))
	}
	return nodePool(pool).kubectl("patch", "--type=json", "-p", "["+strings.Join(ops, ",")+"]")
}
