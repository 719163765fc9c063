package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/provisioner/karpenter"
)

// Capacity is what the checks read about where pods run, and where they can go.
type Capacity struct {
	// Outlooks are those of Karpenter's pools; none without it, or where it is not asked.
	Outlooks []karpenter.Outlook
	// MaxShare is how many percent of a workload may be on one offering.
	MaxShare int

	node map[string]*corev1.Node // by name; index fills it
}

// workloadsInOneOffering: EC2 takes the instances of a type in a zone back together, and most of
// the workload with them.
func workloadsInOneOffering(s Snapshot) (found []Finding) {
	for of, theirs := range s.byOwner {
		on := map[karpenter.Offering]int{}
		for _, p := range theirs {
			if n := s.node[p.Node]; n != nil && n.Labels[corev1.LabelInstanceTypeStable] != "" {
				on[karpenter.Offering{InstanceType: n.Labels[corev1.LabelInstanceTypeStable], Zone: n.Labels[corev1.LabelTopologyZone]}]++
			}
		}
		all := s.Replicas[of]
		if len(on) == 0 || all < 2 || isJob(of) {
			continue
		}
		most := slices.MaxFunc(slices.Collect(maps.Keys(on)), func(a, b karpenter.Offering) int {
			return cmp.Or(cmp.Compare(on[a], on[b]), strings.Compare(b.InstanceType+b.Zone, a.InstanceType+a.Zone))
		})
		if on[most]*100 <= all*s.MaxShare {
			continue
		}
		found = append(found, Finding{
			Namespace: of.Namespace, Object: of.Object, Pods: on[most],
			What: fmt.Sprintf("has %d of its %s on %s in %s", on[most], pods(all), most.InstanceType, most.Zone),
			Why:  "EC2 takes the instances of a type in a zone back together, within minutes",
			Fix: patchPods(of, fmt.Sprintf(`{"spec":{"topologySpreadConstraints":[{"topologyKey":%q,"maxSkew":1,"whenUnsatisfiable":"ScheduleAnyway","labelSelector":{"matchLabels":%s}}]}}`,
				corev1.LabelTopologyZone, asJSON(commonLabels(theirs)))),
		})
	}
	return found
}

// workloadsAllOnSpot: if all of a workload's nodes are lost, pods that are not surged leave
// together, and nothing of it is left until other nodes have booted.
func workloadsAllOnSpot(s Snapshot) (found []Finding) {
	for of, theirs := range s.byOwner {
		if len(theirs) < 2 || len(theirs) < s.Replicas[of] || isJob(of) {
			continue
		}
		if slices.ContainsFunc(theirs, func(p *Pod) bool { return p.Surges || spotBy(s.node[p.Node]) == nil }) {
			continue
		}
		found = append(found, Finding{
			Namespace: of.Namespace, Object: of.Object, Pods: len(theirs),
			What: fmt.Sprintf("has all of its %s on spot nodes, and they are not surged", pods(len(theirs))),
			Why:  "if all of these nodes are lost at once, none is ready until others have booted",
			Fix:  patchPods(of, fmt.Sprintf(`{"spec":{"nodeSelector":{%q:%q}}}`, s.OnDemand.Key, s.OnDemand.Value)),
		})
	}
	return found
}

// daemonOnSpot: who drains is drained itself.
func daemonOnSpot(s Snapshot) (found []Finding) {
	on := map[Owned][]Daemon{}
	for _, d := range s.Daemons {
		if d.Fleet && d.Node != "" {
			of := Owned{d.Namespace, d.Owner}
			on[of] = append(on[of], d)
		}
	}
	for of, theirs := range on {
		if slices.ContainsFunc(theirs, func(d Daemon) bool { return spotBy(s.node[d.Node]) == nil }) {
			continue
		}
		var not, sets []string
		for _, l := range spotLabels {
			not = append(not, fmt.Sprintf(`{"key":%q,"operator":"NotIn","values":[%q]}`, l[0], l[1]))
		}
		for _, d := range theirs {
			if set := spotLabel(*spotBy(s.node[d.Node])); !slices.Contains(sets, set) {
				sets = append(sets, "--set-string", set)
			}
		}
		f := Finding{
			Namespace: of.Namespace, Object: of.Object, Pods: len(theirs),
			What: "drains all nodes, and runs on spot nodes only",
			Why:  "it loses its own nodes in the burst in which it is needed",
			Fix:  theirs[0].upgrade(append(sets, "--set", "controller.nodeSelector=null")...),
		}
		if theirs[0].Release == "" {
			f.Fix = patchPods(of, fmt.Sprintf(`{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[%s]}]}}}}}`,
				strings.Join(not, ",")))
		}
		found = append(found, f)
	}
	return found
}

// spotLabels are the labels that say of a Node that it is a spot instance: Karpenter's, that of
// EKS, and that of eksctl, as in the chart's values.
var spotLabels = [][2]string{{"karpenter.sh/capacity-type", "spot"}, {"eks.amazonaws.com/capacityType", "SPOT"}, {"node-lifecycle", "spot"}}

// spotBy is the label by which the node is a spot instance; nil if no label says so.
func spotBy(node *corev1.Node) *[2]string {
	if node == nil {
		return nil
	}
	for i := range spotLabels {
		if node.Labels[spotLabels[i][0]] == spotLabels[i][1] {
			return &spotLabels[i]
		}
	}
	return nil
}

// isJob: work of which a share can be lost is what spot is for.
func isJob(of Owned) bool { return strings.HasPrefix(of.Object, "job/") }

// commonLabels are those that all the pods have, without those that tell them apart.
func commonLabels(list []*Pod) map[string]string {
	common := maps.Clone(list[0].Labels)
	for _, p := range list[1:] {
		maps.DeleteFunc(common, func(key, value string) bool { return p.Labels[key] != value })
	}
	for _, key := range []string{
		hashLabel, "controller-revision-hash", "statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index",
		corev1.LabelTopologyZone, corev1.LabelTopologyRegion, // of the node, which the API server copies
	} {
		delete(common, key)
	}
	return common
}
