package drain

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// A pod is surged in three steps. Its label pod-template-hash is changed, so that its
// ReplicaSet lets it go and makes a successor; Services and disruption budgets select by
// other labels and count it as before. The successor becomes available. The pod is
// evicted. Until then, putting the label back undoes it all: the ReplicaSet takes the pod
// back and drops the successor.

// SurgedLabel is the label of a pod that its ReplicaSet has been made to let go; its value
// is the pod's own pod-template-hash. The annotation of the same name tells the rest.
const SurgedLabel = "spot-handler/surged"

// hashLabel is how a Deployment's ReplicaSets tell their pods apart.
// https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#pod-template-hash-label
const hashLabel = "pod-template-hash"

// surgedHash is the pod-template-hash of a surged pod: no ReplicaSet's.
func surgedHash(hash string) string { return "surged-" + hash }

func surged(pod *corev1.Pod) bool { return pod.Labels[SurgedLabel] != "" }

// Workload is what a plan knows of a Deployment.
type Workload struct {
	// Selector is the Deployment's; nil where there is no Deployment of that name.
	Selector labels.Selector
	// Refuses says why the Deployment's pods cannot be surged now, or nothing.
	Refuses string
	// Slots is how many more pods may be surged at this moment.
	Slots int
	// Spare is how many surged pods can go without there being fewer available pods
	// than the Deployment asks for.
	Spare int
}

// DeploymentOf names the Deployment of a pod that it owns by a ReplicaSet, also of a
// surged one; empty where there is none. A ReplicaSet's name is the Deployment's and the
// pod-template-hash; whether that Deployment is there, and the pod's, has to be looked up.
func DeploymentOf(pod *corev1.Pod) types.NamespacedName {
	set, hash := "", pod.Labels[hashLabel]
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "ReplicaSet" {
		set = owner.Name
	}
	if surged(pod) {
		set, hash = surgeNoteOf(pod).ReplicaSet, pod.Labels[SurgedLabel]
	}
	name, ok := strings.CutSuffix(set, "-"+hash)
	if hash == "" || !ok || name == "" {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: pod.Namespace, Name: name}
}

// noSurge says why a pod's successor cannot be made before it leaves, or nothing.
func (p *planner) noSurge(pod *corev1.Pod) string {
	if surged(pod) {
		return ""
	}
	if reason := noSurgeByItself(pod); reason != "" {
		return reason
	}
	if p.isSelf(pod) {
		return "spot-handler's own pod"
	}
	if why := p.Fixed[pod.UID]; why != "" {
		return "it cannot be surged: " + why
	}
	name := DeploymentOf(pod)
	workload, known := p.Workloads[name]
	switch {
	case !known:
		return "" // it may be
	case workload.Selector == nil:
		return "its ReplicaSet is no Deployment's"
	case !workload.Selector.Matches(labels.Set(pod.Labels)):
		return fmt.Sprintf("Deployment %s does not select it", name.Name)
	case workload.Refuses != "":
		return fmt.Sprintf("Deployment %s %s", name.Name, workload.Refuses)
	}
	for _, claim := range claimsOf(pod) {
		if shared, known := p.Shared[claim]; known && !shared {
			return "its volume " + claim.Name + " cannot be shared"
		}
	}
	for _, budget := range p.Budgets {
		if reason := losesBudget(pod, budget.Namespace, budget.Spec.Selector); reason != "" {
			return reason + budget.Name
		}
	}
	return ""
}

// noSurgeByItself is noSurge as far as the pod alone tells.
func noSurgeByItself(pod *corev1.Pod) string {
	owner := metav1.GetControllerOf(pod)
	if reason := pinned(pod); reason != "" {
		return reason
	}
	switch _, isReady := ready(pod); {
	case owner == nil:
		return "no controller would make a successor"
	case owner.Kind != "ReplicaSet":
		return "its controller is a " + owner.Kind
	case pod.Labels[hashLabel] == "" || DeploymentOf(pod).Name == "":
		return "its ReplicaSet is no Deployment's"
	case !isReady:
		return "it is not Ready: nothing is kept up by it"
	case slices.ContainsFunc(pod.Spec.Volumes, isDisk):
		return "its volume cannot be shared"
	}
	return ""
}

// losesBudget: a budget that selects by the hash would not count the surged pod.
func losesBudget(pod *corev1.Pod, namespace string, by *metav1.LabelSelector) string {
	if namespace != pod.Namespace {
		return ""
	}
	selector, err := metav1.LabelSelectorAsSelector(by)
	if err != nil {
		return ""
	}
	if before, after := labels.Set(pod.Labels), surgedLabels(pod); selector.Matches(before) != selector.Matches(after) {
		return "by its pod-template-hash it is covered by disruption budget "
	}
	return ""
}

func surgedLabels(pod *corev1.Pod) labels.Set {
	changed := labels.Set{}
	for k, v := range pod.Labels {
		changed[k] = v
	}
	changed[hashLabel] = surgedHash(pod.Labels[hashLabel])
	changed[SurgedLabel] = pod.Labels[hashLabel]
	return changed
}

// claimsOf names the PersistentVolumeClaims of a pod that other pods could use too. A
// generic ephemeral volume is the pod's own: its successor gets another.
func claimsOf(pod *corev1.Pod) []types.NamespacedName {
	var names []types.NamespacedName
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			names = append(names, types.NamespacedName{Namespace: pod.Namespace, Name: v.PersistentVolumeClaim.ClaimName})
		}
	}
	return names
}

// known reports whether all is known that decides whether the pod can be surged.
func (p *planner) known(pod *corev1.Pod) bool {
	if _, ok := p.Workloads[DeploymentOf(pod)]; !ok {
		return false
	}
	return !slices.ContainsFunc(claimsOf(pod), func(claim types.NamespacedName) bool {
		_, ok := p.Shared[claim]
		return !ok
	})
}

// isSurged: its successor has to be available first.
func isSurged(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	if !surged(pod) {
		return "", ""
	}
	workload, known := p.Workloads[d.workload]
	switch {
	case known && workload.Selector == nil:
		return Evict, "its Deployment is gone: there will be no successor"
	case known && p.take(p.evicting, d.workload, workload.Spare):
		d.takes = true
		return Evict, "its successor is available"
	case p.Policy.Strategy == AtOnce:
		return "", ""
	}
	d.waits = true
	if workload.Refuses != "" {
		return Later, fmt.Sprintf("surged: waits for its successor; Deployment %s %s", d.workload.Name, workload.Refuses)
	}
	return Later, "surged: waits for its successor"
}

// isToBeSurged: the owner's maxSurge bounds how many at a time.
func isToBeSurged(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	switch {
	case !d.Surge:
		return "", ""
	case !p.known(pod):
		return Later, "its Deployment is being looked up"
	case !p.take(p.surging, d.workload, p.Workloads[d.workload].Slots):
		d.waits = true
		return Later, "waits for its turn: maxSurge of Deployment " + d.workload.Name + " is in use"
	}
	d.takes = true
	return SurgeNow, "its successor is made first"
}

// surgingPods are the pods whose successors are under way or can be at once. Where a
// Deployment is not known yet, its pods are taken for such for the moment that it takes
// to look it up.
func (p *planner) surgingPods() map[types.UID]bool {
	if p.Policy.Strategy != Surge {
		return nil
	}
	surging := map[types.UID]bool{}
	slots := map[types.NamespacedName]int{}
	for _, pod := range p.inOrder() {
		switch name := DeploymentOf(pod); {
		case surged(pod), p.noSurge(pod) == "" && !p.known(pod):
			surging[pod.UID] = true
		case p.noSurge(pod) == "" && slots[name] < p.Workloads[name].Slots:
			slots[name]++
			surging[pod.UID] = true
		}
	}
	return surging
}

// take gives one of the n that a Deployment has to give.
func (p *planner) take(taken map[types.NamespacedName]int, name types.NamespacedName, n int) bool {
	if taken[name] >= n {
		return false
	}
	taken[name]++
	return true
}
