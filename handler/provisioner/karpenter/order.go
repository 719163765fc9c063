package karpenter

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
)

// maxRequirements is what the NodeClaim's schema allows.
const maxRequirements = 100

// kwokGroup is the node class group of Karpenter's kwok provider, which launches
// nothing without a list of instance types.
const kwokGroup = "karpenter.kwok.sh"

// claimOrder is everything that a replacement's NodeClaim is made from.
type claimOrder struct {
	candidate
	lost   replacedNode // that it replaces
	fit    fit
	ask    corev1.ResourceList // for the pods that fit
	size   corev1.ResourceList // what it might use of the pool's limits; at least ask
	until  time.Time           // the end of its protection from consolidation; zero means none
	free   bool                // any instance type of the pool will do
	remark string              // for people

	against string // why nothing comes of it; empty if something can

	// former is the UID of the claim that replaced the same instance in the same pool in an
	// earlier interruption and is in use since; empty if there is none.
	former string
}

// name is the same for the same pool and instance, so asking twice is asking once. An
// instance that came back and is interrupted again gets another name, as the first claim
// has other pods by now.
func (o claimOrder) name() string {
	name := o.pool.Name + "-" + o.lost.rec.Instance
	if o.capacity != "" {
		name += "-" + o.capacity
	}
	if o.former != "" {
		name = hashed(name, o.former)
	}
	return dnsLabel(name)
}

// build makes the NodeClaim as Karpenter would make it from the pool's template. Karpenter
// launches it like one of its own, and finds no drift in it.
func (o claimOrder) build() (*unstructured.Unstructured, error) {
	labels := labelsOf(o.pool, o.lost.node)
	labels[ReplacesLabel] = labelValue(o.lost.rec.Instance)

	annotations := map[string]string{}
	maps.Copy(annotations, o.pool.Spec.Template.Metadata.Annotations)
	for _, key := range []string{hashAnnotation, hashVersionAnnotation} {
		if v, ok := o.pool.Annotations[key]; ok {
			annotations[key] = v
		}
	}
	annotations[nodeAnnotation] = o.lost.node.Name
	annotations[podsAnnotation] = strconv.Itoa(len(o.fit.need.Moving))
	if !o.until.IsZero() && annotations[doNotDisrupt] == "" {
		annotations[doNotDisrupt] = "true"
		annotations[protectedAnnotation] = o.until.UTC().Format(time.RFC3339)
		if o.lost.isHeld(o.candidate) {
			annotations[StandsInAnnotation] = o.lost.pool
		}
	}
	if len(o.pool.Spec.Limits) > 0 && len(o.size) > 0 {
		if text, err := json.Marshal(o.size); err == nil {
			annotations[sizeAnnotation] = string(text)
		}
	}

	var asked claimSpec
	asked.Requirements, asked.Resources.Requests = o.requirements(), o.ask
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&asked)
	if err != nil {
		return nil, fmt.Errorf("build NodeClaim %q: %w", o.name(), err)
	}
	for _, field := range []string{"taints", "startupTaints", "nodeClassRef", "terminationGracePeriod", "expireAfter"} {
		if v, ok := o.pool.templateSpec[field]; ok {
			spec[field] = runtime.DeepCopyJSONValue(v)
		}
	}

	claim := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	claim.SetAPIVersion(karpenterGroup + "/v1")
	claim.SetKind("NodeClaim")
	claim.SetName(o.name())
	claim.SetLabels(labels)
	claim.SetAnnotations(annotations)
	claim.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: karpenterGroup + "/v1", Kind: "NodePool", Name: o.pool.Name, UID: o.pool.UID, BlockOwnerDeletion: new(true),
	}})
	return claim, nil
}

// requirements are the template's, and those that make the node fit the pods.
func (o claimOrder) requirements() []requirement {
	template := o.pool.Spec.Template.Spec.Requirements
	types := o.instanceTypes()
	list := []requirement{{Key: nodePoolLabel, Operator: "In", Values: []string{o.pool.Name}}}
	if len(types) > 0 {
		list = append(list, requirement{Key: corev1.LabelInstanceTypeStable, Operator: "In", Values: types})
	}
	// What the pods need comes early, as a list that is too long is cut at its end.
	for _, r := range slices.Concat(o.fit.needed, template) {
		replaced := r.Key == nodePoolLabel || (len(types) > 0 && r.Key == corev1.LabelInstanceTypeStable)
		if !replaced && !isForbidden(r.Key) {
			list = append(list, r)
		}
	}
	return list[:min(len(list), maxRequirements)]
}

// isForbidden reports whether the NodeClaim's schema refuses requirements on the key.
func isForbidden(key string) bool {
	domain, _, ok := strings.Cut(key, "/")
	allowed := !ok || !strings.HasSuffix(domain, karpenterGroup) || key == capacityTypeLabel || key == nodePoolLabel
	return key == corev1.LabelHostname || !allowed
}

// instanceTypes are those that Karpenter had found to fit the interrupted node's pods and
// that the pool allows too. There are none where it is safer to leave the choice to the
// pool: with a wrong list the claim is never launched.
func (o claimOrder) instanceTypes() []string {
	template := o.pool.Spec.Template.Spec
	provider := template.NodeClassRef.Group
	if o.lost.claim == nil || o.free && provider != kwokGroup {
		return nil
	}
	theirs := constraintOn(corev1.LabelInstanceTypeStable, o.lost.claim.Spec.Requirements)
	ours := constraintOn(corev1.LabelInstanceTypeStable, slices.Concat(template.Requirements, o.fit.needed))
	types := slices.DeleteFunc(slices.Clone(theirs.In), func(t string) bool { return !theirs.Allows(t) || !ours.Allows(t) })
	for _, r := range template.Requirements {
		// A shorter list could hold fewer types than the pool's minimum.
		if r.MinValues != nil {
			return nil
		}
		// We know only the name of a type. It surely has the shape that the pool wants if the
		// interrupted node's claim had to have it as well.
		shape := r.Key == corev1.LabelArchStable || r.Key == corev1.LabelOSStable || inDomain(r.Key, provider)
		if !shape || provider == kwokGroup {
			continue
		}
		if !constraintOn(r.Key, template.Requirements).Covers(constraintOn(r.Key, o.lost.claim.Spec.Requirements)) {
			return nil
		}
	}
	return types
}

// labelsOf are the labels that Karpenter gives the pool's nodes.
func labelsOf(pool *nodePool, node *corev1.Node) map[string]string {
	labels := ownLabels(pool, node)
	labels[nodePoolLabel] = pool.Name
	labels[pool.Spec.Template.Spec.NodeClassRef.label()] = pool.Spec.Template.Spec.NodeClassRef.Name
	return labels
}

// ownLabels are those of them that are the operator's own: the template's, and one for each of its
// requirements on the operator's own keys. Karpenter calls a claim without these drifted, and
// schedules no pod to it that selects by the key. The interrupted node's value is preferred, as the
// pods have selected it.
func ownLabels(pool *nodePool, node *corev1.Node) map[string]string {
	template := pool.Spec.Template
	labels := map[string]string{}
	maps.Copy(labels, template.Metadata.Labels)
	for _, r := range template.Spec.Requirements {
		if wellKnown(r.Key, template.Spec.NodeClassRef.Group) || isForbidden(r.Key) {
			continue
		}
		c := constraintOn(r.Key, template.Spec.Requirements)
		if v, ok := labels[r.Key]; ok && c.Allows(v) {
			continue
		}
		if v, ok := c.Pick(node.Labels[r.Key]); ok {
			labels[r.Key] = v
		}
	}
	return labels
}

// wellKnown reports whether the provider gives the label its value, once it has
// chosen an instance. A value of ours would win over that, and be wrong.
func wellKnown(key, provider string) bool {
	switch cmp.Or(aliases[key], key) {
	case corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelInstanceTypeStable, corev1.LabelArchStable, corev1.LabelOSStable,
		corev1.LabelWindowsBuild, capacityTypeLabel, nodePoolLabel:
		return true
	}
	// The AWS provider also owns labels outside its node class's domain.
	return inDomain(key, provider) || inDomain(key, "topology.k8s.aws")
}

// inDomain reports whether the label key is in the domain or below it.
func inDomain(key, domain string) bool {
	prefix, _, ok := strings.Cut(key, "/")
	return ok && (prefix == domain || strings.HasSuffix(prefix, "."+domain))
}

// dnsLabel is the text as a DNS label: itself if it is one, else what can be kept of it and
// a hash of the whole.
func dnsLabel(text string) string {
	if len(validation.IsDNS1123Label(text)) == 0 {
		return text
	}
	kept := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(text))
	return hashed(kept, text)
}

// labelValue is the text as the value of a label, in the same way.
func labelValue(text string) string {
	if len(validation.IsValidLabelValue(text)) == 0 {
		return text
	}
	return dnsLabel(text)
}

// hashed cuts kept to leave room for a hash of the text.
func hashed(kept, text string) string {
	sum := sha256.Sum256([]byte(text))
	suffix := hex.EncodeToString(sum[:4])
	kept = strings.Trim(kept[:min(len(kept), validation.DNS1123LabelMaxLength-len(suffix)-1)], "-")
	return strings.TrimPrefix(kept+"-"+suffix, "-")
}
