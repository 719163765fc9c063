package karpenter

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"spot-handler/drain/plan"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/room"
)

// shape is what is known about a node that a pool would give: fixed labels, and, for labels
// whose values the provider chooses, what the pool and the pods so far require. A pod that
// fits narrows it.
//
// It answers as Karpenter's own scheduler would, as far as that looks at nodes only. About
// affinity and spread among pods it knows that the interrupted node's zone satisfies them.
type shape struct {
	provider string            // the node class's group
	labels   map[string]string // certain
	given    []requirement     // of the pool
	needed   []requirement     // of the pods, beyond what the pool gives anyway
	taints   []corev1.Taint

	// inherited are labels of the interrupted node that its pool does not declare: somebody
	// else puts them on nodes, and will do so on the next one.
	inherited map[string]string
	zone      string // of the interrupted node, where the volumes of its pods are
}

// newShape is the shape of the pool's nodes in the interrupted node's place. The
// source pool may be nil.
func newShape(pool, source *nodePool, node *corev1.Node) *shape {
	template := pool.Spec.Template
	s := &shape{
		provider:  template.Spec.NodeClassRef.Group,
		labels:    labelsOf(pool, node),
		given:     template.Spec.Requirements,
		inherited: map[string]string{},
		zone:      node.Labels[corev1.LabelTopologyZone],
	}
	if region := node.Labels[corev1.LabelTopologyRegion]; region != "" {
		s.labels[corev1.LabelTopologyRegion] = region // one cluster, one region
	}
	for _, t := range template.Spec.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule {
			s.taints = append(s.taints, t)
		}
	}
	for key, value := range node.Labels {
		if source == nil || !declares(source, key) {
			s.inherited[key] = value
		}
	}
	return s
}

// preferOnDemand leaves out spot instances if the pool has on-demand ones: the replacement of a spot
// instance has to be there in two minutes, and to stay. Reserved instances stay, too, and are paid for
// anyway: Karpenter takes them first if a NodeClaim allows them.
func (s *shape) preferOnDemand() {
	if constraintOn(capacityTypeLabel, s.given).Allows(onDemand) {
		s.need(requirement{Key: capacityTypeLabel, Operator: "NotIn", Values: []string{spot}})
	}
}

// declares reports whether the pool says anything about the label.
func declares(pool *nodePool, key string) bool {
	_, labeled := pool.Spec.Template.Metadata.Labels[key]
	return labeled || key == nodePoolLabel || key == pool.Spec.Template.Spec.NodeClassRef.label() ||
		slices.ContainsFunc(pool.Spec.Template.Spec.Requirements, func(r requirement) bool { return r.Key == key })
}

// admit narrows the shape to where the pod can run, or says why the pod cannot run there.
func (s *shape) admit(pod *corev1.Pod) string {
	needed, reason := s.needsOf(pod)
	if reason != "" {
		return reason
	}
	s.needed = needed
	return ""
}

// needsOf says what the node has to satisfy for the pod, including what is already required,
// or why the pod cannot run there.
func (s *shape) needsOf(pod *corev1.Pod) (needed []requirement, reason string) {
	if taint, ok := corev1helpers.FindMatchingUntoleratedTaint(klog.Logger{}, s.taints, pod.Spec.Tolerations, nil, false); ok {
		return nil, "does not tolerate " + taint.ToString()
	}
	trial := *s
	trial.needed = slices.Clone(s.needed)
	for _, key := range slices.Sorted(maps.Keys(pod.Spec.NodeSelector)) {
		if reason := trial.require(requirement{Key: key, Operator: "In", Values: []string{pod.Spec.NodeSelector[key]}}); reason != "" {
			return nil, reason
		}
	}
	// Only the PersistentVolume says whether it can be attached elsewhere, so each counts as bound to
	// the node's zone.
	claimed := slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil })
	if s.zone != "" && (claimed || isTied(pod)) {
		reason := trial.require(requirement{Key: corev1.LabelTopologyZone, Operator: "In", Values: []string{s.zone}})
		if claimed && reason != "" {
			return nil, "has volumes and " + reason
		}
	}
	return trial.requireAnyTerm(pod)
}

// isTied reports whether other pods decide in which zones this one can run. They allow the
// zone where it ran; only Karpenter knows about others. In a pool without that zone we let
// Karpenter decide.
func isTied(pod *corev1.Pod) bool {
	spread := func(c corev1.TopologySpreadConstraint) bool {
		return isZone(c.TopologyKey) && c.WhenUnsatisfiable == corev1.DoNotSchedule
	}
	if slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, spread) {
		return true
	}
	terms := slices.Concat(room.NearTerms(pod), room.AntiTerms(pod))
	return slices.ContainsFunc(terms, func(t room.Term) bool { return isZone(t.Key) })
}

func isZone(key string) bool { return cmp.Or(aliases[key], key) == corev1.LabelTopologyZone }

// requireAnyTerm takes the first of the pod's required node affinity terms that fits.
func (s *shape) requireAnyTerm(pod *corev1.Pod) (needed []requirement, reason string) {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return s.needed, ""
	}
	terms := joined(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms)
	for _, term := range terms {
		trial := *s
		trial.needed = slices.Clone(s.needed)
		if len(term.MatchFields) > 0 && !plan.IsDaemon(pod) { // of a DaemonSet they name its pod's node
			reason = cmp.Or(reason, "needs one certain node")
			continue
		}
		termReason := trial.requireTerm(term)
		if termReason == "" {
			return trial.needed, ""
		}
		reason = cmp.Or(reason, termReason)
	}
	return nil, cmp.Or(reason, "has a node affinity that nothing satisfies")
}

func (s *shape) requireTerm(term corev1.NodeSelectorTerm) string {
	if len(term.MatchFields)+len(term.MatchExpressions) == 0 {
		return "has an empty node affinity"
	}
	for _, e := range term.MatchExpressions {
		if reason := s.require(requirement{Key: e.Key, Operator: string(e.Operator), Values: e.Values}); reason != "" {
			return reason
		}
	}
	return ""
}

// joined makes one term out of several that each name values of the same label, which leaves
// the choice among them to Karpenter.
func joined(terms []corev1.NodeSelectorTerm) []corev1.NodeSelectorTerm {
	if len(terms) < 2 {
		return terms
	}
	var all []string
	for _, t := range terms {
		if len(t.MatchFields) > 0 || len(t.MatchExpressions) != 1 || t.MatchExpressions[0].Operator != corev1.NodeSelectorOpIn ||
			t.MatchExpressions[0].Key != terms[0].MatchExpressions[0].Key {
			return terms
		}
		all = append(all, t.MatchExpressions[0].Values...)
	}
	return []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: terms[0].MatchExpressions[0].Key, Operator: corev1.NodeSelectorOpIn, Values: distinct(all)},
	}}}
}

// require adds one requirement of a pod, or says that it cannot be met.
func (s *shape) require(r requirement) string {
	r.Key = cmp.Or(aliases[r.Key], r.Key)
	if value, ok := s.labels[r.Key]; ok {
		return unmet(r, satisfied(r, value, true))
	}
	switch {
	case r.Key == corev1.LabelHostname:
		return unmet(r, r.Operator == "NotIn" || r.Operator == "Exists") // the name is not known beforehand
	case isForbidden(r.Key):
		return "" // Karpenter sets these on every node
	case wellKnown(r.Key, s.provider):
		return s.need(r)
	}
	value, present := s.inherited[r.Key]
	return unmet(r, satisfied(r, value, present))
}

// need requires a label whose value the provider chooses, unless it is certain anyway.
func (s *shape) need(r requirement) string {
	have := append(slices.Clone(s.given), s.needed...)
	if constraintOn(r.Key, []requirement{r}).Covers(constraintOn(r.Key, have)) && constraintOn(r.Key, have).Possible() {
		return ""
	}
	if !constraintOn(r.Key, append(have, r)).Possible() {
		return unmet(r, false)
	}
	s.needed = append(s.needed, r)
	return ""
}

// satisfied reports whether a label satisfies a requirement.
// https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#operators
func satisfied(r requirement, value string, present bool) bool {
	c := constraintOn(r.Key, []requirement{r})
	if !present {
		return !c.Exists
	}
	return c.Allows(value)
}

func unmet(r requirement, met bool) string {
	if met {
		return ""
	}
	if r.Operator == "In" && len(r.Values) == 1 {
		return "needs " + r.Key + "=" + r.Values[0]
	}
	return strings.TrimSpace(fmt.Sprintf("needs %s %s %s", r.Key, r.Operator, strings.Join(r.Values, ",")))
}

// aliases are other names of well-known labels, which Karpenter and its AWS provider read as these.
// https://github.com/kubernetes-sigs/karpenter/blob/v1.14.1/pkg/apis/v1/labels.go
// https://github.com/aws/karpenter-provider-aws/blob/v1.14.1/pkg/operator/operator.go
var aliases = map[string]string{
	corev1.LabelFailureDomainBetaZone:   corev1.LabelTopologyZone,
	"topology.ebs.csi.aws.com/zone":     corev1.LabelTopologyZone,
	corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion,
	corev1.LabelInstanceType:            corev1.LabelInstanceTypeStable,
	"beta.kubernetes.io/arch":           corev1.LabelArchStable,
	"beta.kubernetes.io/os":             corev1.LabelOSStable,
}

// fit is the part of a need that a pool can take.
type fit struct {
	need   provisioner.Need // what fits
	out    []Misfit         // by their reasons
	needed []requirement    // what the node has to satisfy for it

	inherited map[string]string // as of its shape
}

// fitTo sorts out which pods fit the shape, in the order of the list.
func fitTo(s *shape, need provisioner.Need) fit {
	f := fit{inherited: s.inherited}
	out := map[string][]string{}
	for _, pod := range need.Moving {
		if reason := s.admit(pod); reason != "" {
			out[reason] = append(out[reason], pod.Namespace+"/"+pod.Name)
			continue
		}
		f.need.Moving = append(f.need.Moving, pod)
	}
	for _, reason := range slices.Sorted(maps.Keys(out)) {
		f.out = append(f.out, Misfit{reason, out[reason]})
	}
	for _, pod := range need.Daemons {
		if _, reason := s.needsOf(pod); reason == "" {
			f.need.Daemons = append(f.need.Daemons, pod)
		}
	}
	f.need.Surged, f.needed = need.Surged, s.needed
	return f
}

// remark says which pods do not fit and why, or is empty.
func (f fit) remark() string {
	const most = 3 // of reasons, and of pods for each: it is kept on the Node
	var parts []string
	for _, m := range f.out {
		names := strings.Join(m.Pods[:min(len(m.Pods), most)], ", ")
		if more := len(m.Pods) - most; more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
		parts = append(parts, fmt.Sprintf("%s %s", names, m.Reason))
	}
	if more := len(parts) - most; more > 0 {
		parts = append(parts[:most], fmt.Sprintf("%d more reasons", more))
	}
	return strings.Join(parts, "; ")
}

func distinct(values []string) []string {
	slices.Sort(values)
	return slices.Compact(values)
}
