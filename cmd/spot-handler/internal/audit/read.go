package audit

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/cmd/spot-handler/internal/cluster"
	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
	"spot-handler/handler/nodes"
)

// Options say what is judged, and by which settings.
type Options struct {
	// Margin is kept free before the deadline by whoever drains.
	Margin time.Duration
	// MaxShare is how many percent of a workload may be on one offering.
	MaxShare int
	// AtRisk reports whether EC2 might take the node at two minutes' notice; nil takes those that
	// are not on demand.
	AtRisk func(*corev1.Node) bool
}

// notice is what EC2 leaves after a spot interruption notice.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
const notice = 2 * time.Minute

// arrival is how long the notice itself and the first eviction are taken to need.
const arrival = 10 * time.Second

// Take takes what the checks of workloads need from a cluster that was read.
func Take(c cluster.Cluster, o Options) Snapshot {
	s := Snapshot{Nodes: c.Nodes, Budgets: c.Budgets, Idle: c.Idle, Grace: notice - arrival - o.Margin, OnDemand: nodes.OnDemandLabels[0]}
	s.MaxShare = o.MaxShare
	safe := map[string]bool{}
	for _, n := range c.Nodes {
		label, onDemand := nodes.OnDemand(n)
		if onDemand {
			s.OnDemand = label
		}
		safe[n.Name] = onDemand
		if o.AtRisk != nil {
			safe[n.Name] = !o.AtRisk(n)
		}
	}
	around := drain.Situation{
		Interruption: drain.Interruption{Taint: marks.Taint(interruption.Record{Kind: interruption.SpotInterruption}), Deadline: c.At.Add(notice - arrival)}, // without a deadline, some would stay
		Policy:       drain.Policy{Strategy: drain.Surge, Margin: o.Margin},
		Shared:       c.Shared, Surroundings: c.Surroundings, Workloads: map[types.NamespacedName]drain.Workload{},
	}
	if c.Deployments != nil {
		s.Deployments = map[string]Deployment{}
	}
	for name, d := range c.Deployments {
		if w, err := d.Specified(); err == nil {
			around.Workloads[name] = w
			s.Deployments[name.String()] = Deployment{Replicas: d.Replicas(), MinReady: int(d.Spec.MinReadySeconds), Refuses: w.Refuses}
		}
	}
	s.Replicas = map[Owned]int{}
	theirs := map[string][]*corev1.Pod{} // by node
	for _, pod := range c.Pods {
		if pod.DeletionTimestamp != nil {
			continue
		}
		s.Replicas[ownerOf(pod)]++
		if pod.Spec.NodeName == "" || safe[pod.Spec.NodeName] {
			continue
		}
		theirs[pod.Spec.NodeName] = append(theirs[pod.Spec.NodeName], pod)
		if name := drain.DeploymentOf(pod); s.Deployments != nil && around.Workloads[name].Selector == nil {
			around.Workloads[name] = drain.Workload{} // there is none of that name
		}
	}
	for _, node := range slices.Sorted(maps.Keys(theirs)) {
		around.Pods = theirs[node]
		for _, d := range drain.Plan(c.At, around) {
			if d.Moves() {
				p := lean(d, c.At)
				p.Zone = zoneOf(d.Pod, c.Zones)
				s.Pods = append(s.Pods, p)
			}
		}
	}
	return s
}

// zoneOf is the zone that the pod's volumes are bound to, or empty.
func zoneOf(pod *corev1.Pod, zones map[types.NamespacedName]string) string {
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		if zone := zones[types.NamespacedName{Namespace: pod.Namespace, Name: v.PersistentVolumeClaim.ClaimName}]; zone != "" {
			return zone
		}
	}
	return ""
}
