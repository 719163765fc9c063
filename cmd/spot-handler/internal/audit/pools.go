package audit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/provisioner/karpenter"
)

// poolsWithoutFallback: nothing is asked for a replacement of this pool's nodes.
func poolsWithoutFallback(s Snapshot) (found []Finding) {
	for _, o := range s.Outlooks {
		if o.Missing == "" {
			continue
		}
		fix := name(o, o.Instead)
		if o.Instead == "" {
			fix = allowOnDemand(o.Pool, o.CapacityTypes)
		}
		found = append(found, s.ofPool(o, "gets no replacement: "+o.Missing, withoutReplacement, fix))
	}
	return found
}

// fallbacksOfNoUse: the pool that is named to replace this pool's nodes gives none.
func fallbacksOfNoUse(s Snapshot) (found []Finding) {
	for _, o := range s.Outlooks {
		if o.Refused == "" {
			continue
		}
		fix := name(o, o.Instead)
		if o.Instead == "" {
			fix = Owned{"", "nodepool/" + o.Named}.kubectl("describe")
		}
		found = append(found, s.ofPool(o, "gets no replacement: "+o.Refused, withoutReplacement, fix))
	}
	return found
}

// fallbacksOnSpot: what is lost on spot is replaced on spot.
func fallbacksOnSpot(s Snapshot) (found []Finding) {
	for _, o := range s.Outlooks {
		if o.SpotOnly {
			found = append(found, s.ofPool(o, fmt.Sprintf("is replaced by NodePool %s, which has no on-demand instances", o.Named),
				"when EC2 takes spot instances there are few to be had: there might be no replacement, or the next notice comes soon", allowOnDemand(o.Named, o.CapacityTypes)))
		}
	}
	return found
}

// fallbacksElsewhere: a pod that has to stay in its zone has no place in the fallback pool.
func fallbacksElsewhere(s Snapshot) (found []Finding) {
	for _, o := range s.Outlooks {
		if len(o.Barred) == 0 {
			continue
		}
		zones := strings.Join(o.Barred, ", ")
		f := s.ofPool(o, fmt.Sprintf("has nodes in %s, where NodePool %s has none", zones, strings.Join(o.Fallbacks, ", ")),
			"pods that cannot leave their zone, as with a volume there, have no place", "")
		f.Pods = s.count(func(p Pod) bool {
			return s.isOn(p, o.Pool) && slices.Contains(o.Barred, s.label(p, corev1.LabelTopologyZone))
		})
		f.Fix = allowZones(o)
		found = append(found, f)
	}
	return found
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
func fallbacksTooSmall(s Snapshot) (found []Finding) {
	for _, o := range s.Outlooks {
		if o.Unplaced == 0 {
			continue
		}
		f := s.ofPool(o, fmt.Sprintf("has %d nodes of %s in %s, of which %d get no replacement if all are lost at once: %s", o.Largest.Nodes, o.Largest.InstanceType, o.Largest.Zone, o.Unplaced, o.Full),
			withoutReplacement, "")
		f.Pods = s.count(func(p Pod) bool {
			return s.isOn(p, o.Pool) && s.label(p, corev1.LabelInstanceTypeStable) == o.Largest.InstanceType && s.label(p, corev1.LabelTopologyZone) == o.Largest.Zone
		})
		f.Fix = Owned{"", "nodepool/" + o.Fallbacks[0]}.kubectl("patch", "--type=merge", "-p", `{"spec":{"limits":`+asJSON(o.Raise)+"}}")
		found = append(found, f)
	}
	return found
}

const withoutReplacement = "its pods have no place until Karpenter makes one, on spot again where it can"

// ofPool is a finding about the pool and all pods on its spot nodes.
func (s Snapshot) ofPool(o karpenter.Outlook, what, why, fix string) Finding {
	return Finding{
		Object: "nodepool/" + o.Pool, What: what, Why: why, Fix: fix,
		Pods: s.count(func(p Pod) bool { return s.isOn(p, o.Pool) }),
	}
}

// isOn reports whether the pod runs on a node of the pool.
func (s Snapshot) isOn(p Pod, pool string) bool { return s.label(p, "karpenter.sh/nodepool") == pool }

// label is the value of the label on the pod's node.
func (s Snapshot) label(p Pod, key string) string {
	if n := s.node[p.Node]; n != nil {
		return n.Labels[key]
	}
	return ""
}

func (s Snapshot) count(of func(Pod) bool) (n int) {
	for _, p := range s.Pods {
		if of(p) {
			n++
		}
	}
	return n
}

// asJSON is a map of strings as a part of a patch.
func asJSON[K ~string](m map[K]string) string {
	text, _ := json.Marshal(m) // of strings: it does not fail
	return string(text)
}

// name makes another pool the fallback. The annotation overrides the daemon's flag.
func name(o karpenter.Outlook, fallback string) string {
	return Owned{"", "nodepool/" + o.Pool}.kubectl("annotate", "--overwrite", karpenter.FallbackAnnotation+"="+fallback)
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
	return Owned{"", "nodepool/" + pool}.kubectl("patch", "--type=json", "-p", "["+strings.Join(ops, ",")+"]")
}
