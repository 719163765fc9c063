package plan

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// A gang that loses one pod loses its work, so its pods on draining nodes stay to the last moment
// that is safe for all of them, and leave together. The others have nothing to wait for once one of
// them leaves. What a pod asks for itself overrides its gang, and its gang overrides its namespace.
//
// From a node that is only at risk they leave when one of them asks to, and for nothing else: an
// operator that removes an idle worker there has no use for the end of the others.

// Departure is when those pods of a gang leave that have to.
type Departure struct {
	// At is when the first of them has to; zero if the nodes of all of them are only at risk.
	At time.Time
	// Now: one of them leaves a node that ends, or asks to leave.
	Now bool
	// Asked: one of them asks to. That goes for nodes that are only at risk, too.
	Asked bool
}

// with is the departure of the pods of both.
func (d Departure) with(other Departure) Departure {
	d.At = interruption.Earlier(d.At, other.At)
	d.Now, d.Asked = d.Now || other.Now, d.Asked || other.Asked
	return d
}

// departures are those of the gangs that the node's pods belong to, as far as these pods decide
// them; nil if they belong to none.
func (s Situation) departures() map[Gang]Departure {
	var found map[Gang]Departure
	for _, pod := range s.Pods {
		gang := gangOf(pod)
		if gang == (Gang{}) || s.notOurs(pod) != "" {
			continue
		}
		if found == nil {
			found = map[Gang]Departure{}
		}
		asks, latest := s.ownPreference(pod) == WhenNow, evictionDeadline(pod, s.Deadline, s.Policy.Margin)
		found[gang] = found[gang].with(Departure{
			At: s.startOf(pod, latest, time.Time{}), Asked: asks, Now: asks || pod.DeletionTimestamp != nil && !s.Deadline.IsZero(),
		})
	}
	return found
}

// gangs keeps the departures of the gangs that have pods on draining nodes. A gang that has begun
// to leave goes on, even where the pod that was the reason has gone.
type gangs struct {
	of map[Gang]*leavingGang
	on map[string]map[Gang]struct{} // by node
}

type leavingGang struct {
	nodes     map[string]Departure // what the pods of each node decide
	Departure                      // Now and Asked stay set: it has begun
}

// newGangs returns gangs that are not known of yet.
func newGangs() *gangs {
	return &gangs{of: map[Gang]*leavingGang{}, on: map[string]map[Gang]struct{}{}}
}

// Report takes in what the pods of a node decide, and returns the other nodes that have to be
// planned again because of it, in order. With nil the node has no part any more.
func (g *gangs) Report(now time.Time, node string, own map[Gang]Departure) (others []string) {
	for gang, departure := range own {
		g.join(node, gang)
		g.of[gang].nodes[node] = departure
	}
	again := map[string]bool{}
	for gang := range g.on[node] {
		of := g.of[gang]
		if _, still := own[gang]; !still {
			g.leave(node, gang)
		}
		if of.renew(now) {
			for other := range of.nodes {
				again[other] = true
			}
		}
	}
	delete(again, node)
	return slices.Sorted(maps.Keys(again))
}

func (g *gangs) join(node string, gang Gang) {
	if g.of[gang] == nil {
		g.of[gang] = &leavingGang{nodes: map[string]Departure{}}
	}
	if g.on[node] == nil {
		g.on[node] = map[Gang]struct{}{}
	}
	g.on[node][gang] = struct{}{}
}

func (g *gangs) leave(node string, gang Gang) {
	delete(g.of[gang].nodes, node)
	if len(g.of[gang].nodes) == 0 {
		delete(g.of, gang)
	}
	delete(g.on[node], gang)
	if len(g.on[node]) == 0 {
		delete(g.on, node)
	}
}

// renew works out when the gang leaves, and reports whether that has changed.
func (l *leavingGang) renew(now time.Time) bool {
	all := Departure{Now: l.Now, Asked: l.Asked}
	for _, departure := range l.nodes {
		all = all.with(departure)
	}
	all.Now = all.Now || !all.At.IsZero() && !now.Before(all.At)
	changed := all != l.Departure
	l.Departure = all
	return changed
}

// Of are the departures of the gangs of a node that has reported, never nil.
func (g *gangs) Of(node string) map[Gang]Departure {
	all := make(map[Gang]Departure, len(g.on[node]))
	for gang := range g.on[node] {
		all[gang] = g.of[gang].Departure
	}
	return all
}

// GangLabel on a pod, or on its template, names the gang that it belongs to, whatever else it
// carries. An empty value says that it belongs to none.
const GangLabel = "spot-handler/gang"

// gangLabels are those by which the pods of others belong together, the nearest first. All of
// them are labels of the pods, with which the rest of a gang can be listed.
var gangLabels = []string{
	// A JobSet starts all of its Jobs again when one fails. TrainJobs of Kubeflow are JobSets.
	// https://github.com/kubernetes-sigs/jobset/blob/main/api/jobset/v1alpha2/jobset_types.go
	"jobset.sigs.k8s.io/jobset-name",
	// One replica of a LeaderWorkerSet, a leader with its workers.
	// https://github.com/kubernetes-sigs/lws/blob/main/api/leaderworkerset/v1/leaderworkerset_types.go
	"leaderworkerset.sigs.k8s.io/group-key",
	// PyTorchJobs, TFJobs, MPIJobs and the others of Kubeflow's training operator.
	// https://github.com/kubeflow/trainer/blob/release-1.9/pkg/apis/kubeflow.org/v1/common_types.go
	"training.kubeflow.org/job-name",
	// The head and the workers of a Ray cluster.
	// https://github.com/ray-project/kuberay/blob/master/ray-operator/controllers/ray/utils/constant.go
	"ray.io/cluster",
	// Volcano's own Jobs. Its annotation scheduling.k8s.io/group-name says nothing: every pod has
	// it that Volcano schedules, those of Deployments too.
	// https://github.com/volcano-sh/volcano/blob/master/pkg/controllers/job/job_controller_util.go
	"volcano.sh/job-name",
	// Kueue's groups of plain pods.
	// https://github.com/kubernetes-sigs/kueue/blob/main/pkg/controller/jobs/pod/constants/constants.go
	"kueue.x-k8s.io/pod-group-name",
}

// podGroup stands for the field of Kubernetes 1.36 that names a pod's PodGroup.
// https://kubernetes.io/docs/concepts/workloads/pods/scheduling-group/
const podGroup = "spec.schedulingGroup.podGroupName"

// Gang is a set of pods that live and die together; the zero value is none. A pod can claim to
// belong to any gang of its own namespace, and to no other's.
type Gang struct{ Namespace, By, Name string }

// gangOf is the gang that the pod belongs to, or none.
func gangOf(pod *corev1.Pod) Gang {
	if name, own := pod.Labels[GangLabel]; own {
		return newGang(pod, GangLabel, name)
	}
	for _, label := range gangLabels {
		if name := pod.Labels[label]; name != "" {
			return newGang(pod, label, name)
		}
	}
	if group := pod.Spec.SchedulingGroup; group != nil && group.PodGroupName != nil {
		return newGang(pod, podGroup, *group.PodGroupName)
	}
	return Gang{}
}

func newGang(pod *corev1.Pod, by, name string) Gang {
	if name == "" {
		return Gang{}
	}
	return Gang{Namespace: pod.Namespace, By: by, Name: name}
}

// preferenceOfGang is when the pod is to leave for the sake of its gang; empty if it has none.
func (p *planner) preferenceOfGang(pod *corev1.Pod) When {
	if len(p.Gangs) == 0 {
		return ""
	}
	departure, ok := p.Gangs[gangOf(pod)]
	switch {
	case !ok:
		return ""
	case departure.Asked, departure.Now && !p.Deadline.IsZero():
		return WhenNow
	}
	return WhenLast
}

// startWithGang is when a pod with that preference leaves with its gang at the latest; zero if it
// does not, or has no deadline.
func (p *planner) startWithGang(pod *corev1.Pod, its preference) time.Time {
	if p.Deadline.IsZero() || !its.gang {
		return time.Time{}
	}
	return p.Gangs[gangOf(pod)].At
}
