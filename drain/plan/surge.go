package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
)

// A pod is surged in three steps. First its label pod-template-hash is changed: its
// ReplicaSet lets it go and makes a replacement pod, while Services and disruption budgets select
// by other labels and count it as before. Then the replacement pod becomes available. Then the
// pod is evicted. Until then, putting the label back undoes everything: the ReplicaSet takes
// the pod back and drops the replacement pod.

// SurgedLabel is the label of a pod that its ReplicaSet has been made to let go; its value
// is the pod's own pod-template-hash.
//
// The key begins like that label because network policy engines tell pods apart by their labels:
// a new key would make a new identity, which every agent of the cluster has to learn, and the
// pod would fall out of policies meanwhile. Cilium ignores keys that begin with
// pod-template-hash.
// https://github.com/cilium/cilium/blob/main/pkg/labelsfilter/filter.go
const SurgedLabel = "pod-template-hash.spot-handler/surged"

// SurgedAnnotation of such a pod tells the rest.
const SurgedAnnotation = "spot-handler/surged"

// HashLabel is how a Deployment's ReplicaSets tell their pods apart.
// https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#pod-template-hash-label
const HashLabel = "pod-template-hash"

// IsSurged reports whether the pod's surge has begun.
func IsSurged(pod *corev1.Pod) bool { return pod.Labels[SurgedLabel] != "" }

// isNoLongerNeeded: its owner does not ask for it any more. No budget was ever asked about that.
func isNoLongerNeeded(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	if !IsSurged(pod) {
		return "", ""
	}
	workload, known := p.Deployments[d.Deployment]
	switch {
	case known && workload.Selector == nil:
		return Return, "its Deployment is gone"
	case p.use(d, End, workload.Excess):
		return End, fmt.Sprintf("Deployment %s has enough pods without it", d.Deployment.Name)
	}
	return "", ""
}

// isNotToBeSurged: without a replacement pod it is better held.
func isNotToBeSurged(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	switch {
	case !IsSurged(pod):
		return "", ""
	case pod.Labels[HashLabel] == pod.Labels[SurgedLabel]:
		return Return, "somebody has restored its " + HashLabel
	case p.use(d, Return, p.Deployments[d.Deployment].Lacking):
		return Return, "its Deployment " + p.Deployments[d.Deployment].Refuses
	}
	return "", ""
}

// isSurged: its replacement pod has to be available first.
func isSurged(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	if !IsSurged(pod) {
		return "", ""
	}
	workload := p.Deployments[d.Deployment]
	switch {
	case p.use(d, Evict, workload.Evictable):
		return Evict, "its replacement pod is available"
	case p.Policy.Strategy == StrategyAtOnce:
		return "", ""
	}
	d.Waits = true
	if workload.Refuses != "" {
		return Hold, fmt.Sprintf("surged: waits for its replacement pod; Deployment %s %s", d.Deployment.Name, workload.Refuses)
	}
	return Hold, "surged: waits for its replacement pod"
}

// takenBackWithin is how long after its node's first plan a pod without an owner is left for its ReplicaSet to adopt.
const takenBackWithin = 2 * time.Second

// isTakenBack: a pod that was surged in an earlier drain of its node, and has just been put back, has no owner until
// its ReplicaSet adopts it. Then it can be surged again.
func isTakenBack(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	until := p.First.Add(takenBackWithin)
	never := metav1.GetControllerOf(pod) != nil || pod.Labels[HashLabel] == ""
	if never || p.Policy.Strategy != StrategySurge || p.First.IsZero() || !p.now.Before(until) {
		return "", ""
	}
	d.Until = until
	return Hold, "its ReplicaSet might be about to take it back"
}

// isToBeSurged: the owner's maxSurge bounds how many are surged at a time.
func isToBeSurged(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	switch {
	case !d.Surge:
		return "", ""
	case !p.surgeKnown(pod):
		return Hold, "its Deployment is being looked up"
	case !p.use(d, SurgeNow, p.Deployments[d.Deployment].Slots):
		d.Waits, d.Until = true, p.Review
		return Hold, "waits for a slot: maxSurge of Deployment " + d.Deployment.Name + " is in use"
	}
	return SurgeNow, "its replacement pod is made first"
}

// use has the decision use one of the n that its Deployment has to give for the action, or
// reports that none remains.
func (p *planner) use(d *Decision, action Action, n int) bool {
	of := share{d.Deployment, action}
	if p.taken[of] >= n {
		return false
	}
	p.taken[of]++
	d.Takes = true
	return true
}

// A replacement pod can fail to find a place for as long as the surged pod runs: where both must not
// be in one zone, the pod keeps its replacement pod off the replacement. Then the pod is better held,
// as it goes when the replacement is Ready. Whatever else keeps a replacement pod from running, such
// as a lack of room or an image that cannot be pulled, would keep it from running after an
// eviction, too, so there the surged pod is the better one to have.

// placeFor is how long replacement pods have to find a place once all replacements are Ready. The
// scheduler tries a pod again after 10 s at most when nodes have changed.
// https://kubernetes.io/docs/reference/scheduling/config/#scheduling-plugins (podMaxBackoffSeconds)
const placeFor = 15 * time.Second

// findsNoPlace: its replacement pod would have one if it were gone.
func findsNoPlace(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	if !IsSurged(pod) || p.Capacity != ReadyCapacity || !keepsOthersAway(pod) {
		return "", ""
	}
	since := p.AllReady[d.Deployment]
	if since.IsZero() {
		since = p.now // look again later
	}
	since = interruption.Later(since, surgeNoteOf(pod).At)
	if by := since.Add(placeFor); p.now.Before(by) {
		d.Until = by
		return "", ""
	}
	if !p.use(d, Return, p.Deployments[d.Deployment].Unplaced) {
		return "", ""
	}
	return Return, "its replacement pod finds no place while it runs"
}

// keepsOthersAway reports whether the pod's own affinity or spread is about itself, over
// more than single nodes: its own node takes no pods in any case.
func keepsOthersAway(pod *corev1.Pod) bool {
	own := func(selector *metav1.LabelSelector, key string) bool {
		matches, err := metav1.LabelSelectorAsSelector(selector)
		return err == nil && key != corev1.LabelHostname && matches.Matches(labels.Set(pod.Labels))
	}
	if a := pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		for _, term := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			if (len(term.Namespaces) == 0 || slices.Contains(term.Namespaces, pod.Namespace)) && own(term.LabelSelector, term.TopologyKey) {
				return true
			}
		}
	}
	return slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool {
		return c.WhenUnsatisfiable == corev1.DoNotSchedule && own(c.LabelSelector, c.TopologyKey)
	})
}

// noSurge says why the replacement pod of a Deployment's pod cannot be made before it leaves, or is empty.
func (p *planner) noSurge(pod *corev1.Pod, of types.NamespacedName, its preference) string {
	if IsSurged(pod) {
		return ""
	}
	if reason := noSurgeByItself(pod, p.now); reason != "" {
		return reason
	}
	if its.When != "" {
		return its.reason()
	}
	if p.isSelf(pod) {
		return "spot-handler's own pod"
	}
	if why := p.Fixed[pod.UID]; why != "" {
		return "it cannot be surged: " + why
	}
	workload, known := p.Deployments[of]
	switch {
	case !known:
		return "" // perhaps it can
	case workload.Selector == nil:
		return "its ReplicaSet belongs to no Deployment"
	case !workload.Selector.Matches(labels.Set(pod.Labels)):
		return fmt.Sprintf("Deployment %s does not select it", of.Name)
	case workload.Refuses != "":
		return fmt.Sprintf("Deployment %s %s", of.Name, workload.Refuses)
	}
	for _, claim := range ClaimsOf(pod) {
		if shared, known := p.Shared[claim]; known && !shared {
			return "its volume " + claim.Name + " cannot be shared"
		}
	}
	for _, budget := range p.Budgets {
		if budget.Namespace == pod.Namespace && LosesSurged(budget, pod.Labels) {
			return "its pod-template-hash puts it under PDB " + budget.Name
		}
	}
	around := p.Constraints[pod.Namespace]
	if around.TooLarge != "" {
		return around.TooLarge
	}
	for _, other := range around.adopters {
		if other.selector.Matches(labelsOnceSurged(pod.Labels)) {
			return other.name + " would adopt it"
		}
	}
	for _, q := range around.quotas {
		if short := q.lacks(pod); short != "" {
			return "ResourceQuota " + q.name + " has no room for a replacement pod: " + short
		}
	}
	return ""
}

// noSurgeByItself is noSurge as far as the pod alone can tell.
func noSurgeByItself(pod *corev1.Pod, now time.Time) string {
	owner := metav1.GetControllerOf(pod)
	if reason, _ := pinned(pod, now); reason != "" {
		return reason
	}
	if ToleratesAll(pod, corev1.Taint{Effect: corev1.TaintEffectNoSchedule}) {
		return everyTaint
	}
	switch _, isReady := Ready(pod); {
	case owner == nil:
		return "no controller would make a replacement pod"
	case owner.Kind != "ReplicaSet":
		return "its controller is a " + owner.Kind
	case pod.Labels[HashLabel] == "" || DeploymentOf(pod).Name == "":
		return "its ReplicaSet belongs to no Deployment"
	case !isReady:
		return "it is not Ready, so there is nothing to keep up"
	case slices.ContainsFunc(pod.Spec.Volumes, isDisk):
		return "its volume cannot be shared"
	}
	return ""
}

// surgeKnown reports whether everything is known that decides whether the pod can be surged.
func (s *Situation) surgeKnown(pod *corev1.Pod) bool {
	if _, ok := s.Deployments[DeploymentOf(pod)]; !ok {
		return false
	}
	if _, ok := s.Constraints[pod.Namespace]; !ok {
		return false
	}
	return !slices.ContainsFunc(ClaimsOf(pod), func(claim types.NamespacedName) bool {
		_, ok := s.Shared[claim]
		return !ok
	})
}

// surgeNote is what the annotation of a surged pod says: enough for any process to finish
// the surge or to undo it.
type surgeNote struct {
	ReplicaSet string    `json:"replicaSet"`
	UID        types.UID `json:"uid"` // the ReplicaSet's
	At         time.Time `json:"at"`
}

// surgeNoteOf reads the annotation; what cannot be read is zero.
func surgeNoteOf(pod *corev1.Pod) surgeNote {
	var r surgeNote
	if err := json.Unmarshal([]byte(pod.Annotations[SurgedAnnotation]), &r); err != nil {
		return surgeNote{}
	}
	return r
}

// labelsOnceSurged are the labels of a pod once it is surged.
func labelsOnceSurged(pod labels.Set) labels.Set {
	changed := maps.Clone(pod)
	changed[HashLabel] = "surged-" + pod[HashLabel] // no ReplicaSet has it
	changed[SurgedLabel] = pod[HashLabel]
	return changed
}

// AsSurged is the pod once its surge has begun: without an owner, and out of its ReplicaSet's sight.
func AsSurged(pod *corev1.Pod, now time.Time) *corev1.Pod {
	owner := metav1.GetControllerOf(pod)
	if owner == nil { // only pods of a ReplicaSet are surged
		owner = &metav1.OwnerReference{}
	}
	note, _ := json.Marshal(surgeNote{ReplicaSet: owner.Name, UID: owner.UID, At: now.UTC().Truncate(time.Second)}) // texts and our own time
	c := *pod
	c.Labels, c.OwnerReferences = labelsOnceSurged(pod.Labels), nil
	c.Annotations = maps.Clone(pod.Annotations)
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, SurgedAnnotation, string(note))
	return &c
}

// AsReturned is a surged pod once its surge is undone, and its ReplicaSet has taken it back.
func AsReturned(pod *corev1.Pod) *corev1.Pod {
	note, yes := surgeNoteOf(pod), true
	c := *pod
	c.Labels, c.Annotations = maps.Clone(pod.Labels), maps.Clone(pod.Annotations)
	c.Labels[HashLabel] = pod.Labels[SurgedLabel]
	delete(c.Labels, SurgedLabel)
	delete(c.Annotations, SurgedAnnotation)
	c.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "apps/v1",
		Kind:       "ReplicaSet",
		Name:       note.ReplicaSet,
		UID:        note.UID,
		Controller: &yes,
	}}
	return &c
}
