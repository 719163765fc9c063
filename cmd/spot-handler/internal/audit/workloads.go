package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner/room"
)

// gracesThatDoNotFit: a pod asks for more time to end than a spot notice leaves in all.
func gracesThatDoNotFit(s Snapshot, w workload) []Finding {
	longest := slices.MaxFunc(w.pods, func(a, b *Pod) int { return cmp.Compare(a.grace(), b.grace()) }).grace()
	if longest <= s.Grace {
		return nil
	}
	return []Finding{{
		Pods: len(w.pods),
		What: fmt.Sprintf("asks for %.0f s to end, and a spot notice leaves %.0f s at most", longest.Seconds(), s.Grace.Seconds()),
		Why:  "its pods are evicted at once, and killed before they finish",
		Fix:  w.setGrace(s.Grace),
	}}
}

// deploymentsWithoutSurge: a Deployment does not allow that replacement pods are made before its
// pods leave, so it is short of them until those are ready elsewhere.
func deploymentsWithoutSurge(_ Snapshot, w workload) []Finding {
	if w.deployment == nil || w.deployment.Refuses == "" {
		return nil
	}
	return []Finding{{
		Pods: len(w.pods),
		What: w.deployment.Refuses, Why: dip(w.deployment.Replicas),
		Fix: w.kubectl("patch", "-p", `{"spec":{"paused":false,"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":"25%"}}}}`),
	}}
}

// podsThatCannotBeSurged: a workload's only pod, or one of a Deployment that allows surge, leaves
// before its replacement pod is ready all the same.
func podsThatCannotBeSurged(s Snapshot, w workload) []Finding {
	if w.deployment == nil && w.replicas > 1 || w.deployment != nil && w.deployment.Refuses != "" {
		return nil
	}
	i := slices.IndexFunc(w.pods, func(p *Pod) bool { return p.noSurge(s.At) != "" })
	if i < 0 {
		return nil
	}
	why := dip(w.replicas)
	if w.kind() == "pod" {
		why = "once it has left, it is gone for good"
	}
	return []Finding{{
		Pods: len(w.pods),
		What: "cannot be surged: " + w.pods[i].NoSurge, Why: why,
		Fix: w.patchPods(fmt.Sprintf(`{"spec":{"nodeSelector":{%q:%q}}}`, s.OnDemand.Key, s.OnDemand.Value)),
	}}
}

// dip is what becomes of a workload whose pods leave before their replacement pods are ready.
func dip(replicas int) string {
	if replicas == 1 {
		return "its only pod leaves before the replacement pod is ready, so it's down while a node boots"
	}
	return "its pods leave before their replacement pods are ready, so it's short of pods while a node boots"
}

// sleepsAsLongAsTheGrace: the grace period runs during preStop too, so nothing of it remains for
// the process to end by itself.
// https://kubernetes.io/docs/concepts/containers/container-lifecycle-hooks/#hook-handler-execution
func sleepsAsLongAsTheGrace(s Snapshot, w workload) []Finding {
	for _, p := range w.pods {
		sleep := p.sleep()
		if sleep == 0 || sleep < p.grace() {
			continue
		}
		fix := w.setGrace(sleep + toEnd)
		if sleep+toEnd > s.Grace {
			fix = fmt.Sprintf("in the manifest of %s: a preStop sleep of %.0f s at most", w.Object, (s.Grace - toEnd).Seconds())
		}
		return []Finding{{
			Pods: len(w.pods),
			What: fmt.Sprintf("sleeps %.0f s in preStop, of a grace period of %.0f s", sleep.Seconds(), p.grace().Seconds()),
			Why:  "its containers are killed as soon as they get SIGTERM", Fix: fix,
		}}
	}
	return nil
}

// toEnd is the grace period that Kubernetes gives to pods that ask for none.
const toEnd = 30 * time.Second

// blanketTolerations: the toleration of every taint is one of the cordon too.
func blanketTolerations(_ Snapshot, w workload) []Finding {
	i := slices.IndexFunc(w.pods, func(p *Pod) bool { return p.blanket() >= 0 })
	if i < 0 {
		return nil
	}
	f := Finding{
		Pods: len(w.pods), What: "tolerates every taint",
		Why: "the scheduler might put its replacement pods on the interrupted node, so its pods are not surged",
		Fix: fmt.Sprintf("in the manifest of %s: no toleration with operator Exists and without a key", w.Object),
	}
	if w.rolls() {
		at := fmt.Sprintf("/spec/template/spec/tolerations/%d", w.pods[i].blanket())
		patch := fmt.Sprintf(`[{"op":"test","path":"%s/operator","value":"Exists"},{"op":"remove","path":"%s"}]`, at, at)
		f.Fix = w.kubectl("patch", "--type=json", "-p", patch)
	}
	return []Finding{f}
}

// replacementsTrustedAtOnce: a surge ends a pod when its replacement pod is ready, which without a
// probe it is as soon as it runs.
func replacementsTrustedAtOnce(_ Snapshot, w workload) []Finding {
	d := w.deployment
	if d == nil || d.MinReady > 0 || d.Refuses != "" || !slices.ContainsFunc(w.pods, func(p *Pod) bool { return p.Surges && !p.probed() }) {
		return nil
	}
	return []Finding{{
		Pods: len(w.pods), What: "has no readiness probe",
		Why: "its replacement pods count as ready as soon as they run, so the old ones leave before the new ones can serve",
		Fix: w.kubectl("patch", "-p", `{"spec":{"minReadySeconds":10}}`),
	}}
}

// podsNeverToBeDisrupted: what protects pods from being moved for no good reason also keeps them
// on a node that is about to be lost.
func podsNeverToBeDisrupted(s Snapshot, w workload) []Finding {
	for _, p := range w.pods {
		if asks := p.stays(s.At); asks != "" {
			return []Finding{{
				Pods: len(w.pods), What: fmt.Sprintf("has the annotation %s, which never lapses", asks),
				Why: "its pods are not surged, leave as late as possible, and stay on a rebalance recommendation",
				Fix: w.patchPods(fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, asks)),
			}}
		}
	}
	return nil
}

// volumesElsewhere: a volume cannot leave its zone, and the fallback pools have no nodes there.
func volumesElsewhere(s Snapshot, w workload) (found []Finding) {
	for _, o := range s.Outlooks {
		stuck := slices.DeleteFunc(slices.Clone(w.pods), func(p *Pod) bool {
			return p.Zone == "" || !slices.Contains(o.Barred, p.Zone) || !s.isOn(p, o.Pool)
		})
		if len(stuck) == 0 {
			continue
		}
		found = append(found, Finding{
			Pods: len(stuck),
			What: fmt.Sprintf("has a volume in %s, where NodePool %s, the fallback of %s, has no nodes",
				stuck[0].Zone, strings.Join(o.Fallbacks, ", "), o.Pool),
			Why: "its pods can't run in another zone: when they lose their node, they wait for a spot instance in this one",
			Fix: allowZones(o),
		})
	}
	return found
}

// replacementsWithoutPlace: pods that keep off each other's nodes leave no node to their
// replacement pods. A strict spread over nodes counts the cordoned node too: once that is empty,
// the others take no more than maxSkew each.
// https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/#spread-constraint-definition
func replacementsWithoutPlace(s Snapshot, w workload) []Finding {
	p := w.pods[0]
	skew, apart := p.apart()
	if !apart || w.replicas < 2 {
		return nil
	}
	nodes, more := s.homes(p, w.replicas+1)
	places := max(0, nodes-1) // without that which is lost
	if more {
		places++
	}
	kind, need, fits := "keep off each other's nodes", w.replicas, places
	fix := w.kubectl("scale", fmt.Sprintf("--replicas=%d", max(1, places)))
	if skew > 0 {
		kind, fits = "are spread strictly over nodes", skew*places
		fix = w.patchPods(`{"spec":{"topologySpreadConstraints":[{"topologyKey":"kubernetes.io/hostname","nodeTaintsPolicy":"Honor"}]}}`)
		if p.Surges && nodes > 0 { // those of one node find places beside the rest
			need = (w.replicas + nodes - 1) / nodes
		}
	}
	if need <= fits {
		return nil
	}
	return []Finding{{
		Pods: len(w.pods),
		What: fmt.Sprintf("its %s %s, and there are %d that take them", console.Count(w.replicas, "pod"), kind, nodes),
		Why:  "when a node is lost, its replacement pods stay Pending until another node comes or the lost Node is deleted", Fix: fix,
	}}
}

// homes counts the nodes, up to so many, that take a pod, and says whether Karpenter makes more.
func (s Snapshot) homes(p *Pod, enough int) (n int, more bool) {
	suits := room.Suits(p.Pod)
	for _, node := range s.Nodes {
		if node.Spec.Unschedulable || !suits(node) {
			continue
		}
		n, more = n+1, more || node.Labels["karpenter.sh/nodepool"] != ""
		if n == enough {
			break
		}
	}
	return n, more
}

// workloadsInOneOffering: EC2 takes the instances of a type in a zone back together, and most of
// the workload with them.
func workloadsInOneOffering(s Snapshot, w workload) []Finding {
	on := map[offerings.Offering]int{}
	for _, p := range w.pods {
		if kind := s.nodeLabel(p, corev1.LabelInstanceTypeStable); kind != "" {
			on[offerings.Offering{Type: kind, Zone: s.nodeLabel(p, corev1.LabelTopologyZone)}]++
		}
	}
	if len(on) == 0 || w.replicas < 2 || w.isJob() {
		return nil
	}
	most := slices.MaxFunc(slices.Collect(maps.Keys(on)), func(a, b offerings.Offering) int {
		return cmp.Or(cmp.Compare(on[a], on[b]), strings.Compare(b.Type+b.Zone, a.Type+a.Zone))
	})
	if on[most]*100 <= w.replicas*s.MaxShare {
		return nil
	}
	return []Finding{{
		Pods: on[most],
		What: fmt.Sprintf("has %d of its %s on %s in %s", on[most], console.Count(w.replicas, "pod"), most.Type, most.Zone),
		Why:  "EC2 reclaims instances of one type in one zone together, within minutes",
		Fix: w.patchPods(fmt.Sprintf(`{"spec":{"topologySpreadConstraints":[{"topologyKey":%q,"maxSkew":1,`+
			`"whenUnsatisfiable":"ScheduleAnyway","labelSelector":{"matchLabels":%s}}]}}`,
			corev1.LabelTopologyZone, asJSON(commonLabels(w.pods)))),
	}}
}

// workloadsAllOnSpot: if all of a workload's nodes are lost, pods that are not surged leave
// together, and nothing of it is left until other nodes have booted.
func workloadsAllOnSpot(s Snapshot, w workload) []Finding {
	if len(w.pods) < 2 || len(w.pods) < w.replicas || w.isJob() {
		return nil
	}
	if slices.ContainsFunc(w.pods, func(p *Pod) bool { return p.Surges || !isSpot(s.node[p.Spec.NodeName]) }) {
		return nil
	}
	return []Finding{{
		Pods: len(w.pods),
		What: fmt.Sprintf("has all of its %s on spot nodes, and they are not surged", console.Count(len(w.pods), "pod")),
		Why:  "if all of these nodes are lost at once, no pod is ready until others have booted",
		Fix:  w.patchPods(fmt.Sprintf(`{"spec":{"nodeSelector":{%q:%q}}}`, s.OnDemand.Key, s.OnDemand.Value)),
	}}
}

// isJob: work of which a share can be lost is what spot is for.
func (of Owned) isJob() bool { return of.kind() == "job" }

// commonLabels are those that all the pods have, without those by which they differ.
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
