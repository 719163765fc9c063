package placeholder

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	resourcehelper "k8s.io/component-helpers/resource"

	"spot-handler/handler/provisioner"
)

// Namespace is where placeholders are made; the chart creates it. There the process may make
// pods, and nowhere else.
const Namespace = "spot-handler-placeholders"

// Our names on placeholders and their PodTemplates.
const (
	// Label names the instance whose pods the placeholder stands for.
	Label = "spot-handler/placeholder"

	// nodeLabel names its Node, cut to what a label can hold.
	nodeLabel = "spot-handler/placeholder-node"

	nodeAnnotation    = "spot-handler/interrupted-node" // the Node's whole name
	podAnnotation     = "spot-handler/holds-for"        // namespace/name of the pod, for people
	podUIDAnnotation  = "spot-handler/holds-for-uid"
	expiresAnnotation = "spot-handler/expires" // RFC 3339
)

// priorityClass is the priority class of all placeholders; deploy/ ships it. Its value has to
// be lower than those of all pods that take the placeholders' room, and not lower than -10:
// Cluster Autoscaler makes no nodes for pods below its --expendable-pods-priority-cutoff.
// https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md#how-does-cluster-autoscaler-work-with-pod-priority-and-preemption
const priorityClass = "spot-handler-placeholder"

// Annotations that keep autoscalers from removing the node on which room is being held. That
// takes minutes at most.
var keep = map[string]string{
	"cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
	"karpenter.sh/do-not-disrupt":                    "true",
}

const namePrefix = "placeholder-"

// nameOf names the PodTemplate of an instance's placeholders. What follows the prefix is their [Label].
func nameOf(instance string) string { return namePrefix + label(instance) }

// podName is the same for the same instance and pod, so making a placeholder twice is making
// it once.
func podName(instance string, pod types.UID) string {
	return nameOf(instance) + "-" + hash(string(pod))
}

// label makes a text into what can be a label's value and part of a name.
func label(text string) string {
	const longest = 40 // leaves room in a name of 63
	if len(text) <= longest && len(validation.IsDNS1123Label(text)) == 0 {
		return text
	}
	return "x" + hash(text)
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:5])
}

// selectorOf selects the placeholders of one node, or of all if it is empty.
func selectorOf(node string) string {
	if node == "" {
		return Label
	}
	return nodeLabel + "=" + label(node)
}

// meta is what the PodTemplate and the placeholders have in common.
func (o order) meta(name string, owner metav1.OwnerReference) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name,
		Labels: map[string]string{
			"app.kubernetes.io/name":       "spot-handler-placeholder",
			"app.kubernetes.io/managed-by": "spot-handler",
			Label:                          label(o.instance),
			nodeLabel:                      label(o.node.Name),
		},
		Annotations: map[string]string{
			nodeAnnotation:    o.node.Name,
			expiresAnnotation: o.expires.UTC().Format(time.RFC3339),
		},
		OwnerReferences: []metav1.OwnerReference{owner},
	}
}

// template is the PodTemplate that owns the placeholders.
func (b *Backend) template(o order) *corev1.PodTemplate {
	node := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: o.node.Name, UID: o.node.UID}
	t := &corev1.PodTemplate{ObjectMeta: o.meta(nameOf(o.instance), node)}
	t.Template.ObjectMeta.Labels = t.Labels
	t.Template.Spec = b.spec(o, nil)
	return t
}

// placeholder is the pod that holds room for a pod's replacement pod.
func (b *Backend) placeholder(o order, owner *corev1.PodTemplate, pod *corev1.Pod) *corev1.Pod {
	ref := metav1.OwnerReference{APIVersion: "v1", Kind: "PodTemplate", Name: owner.Name, UID: owner.UID}
	p := &corev1.Pod{ObjectMeta: o.meta(podName(o.instance, pod.UID), ref)}
	p.Annotations[podAnnotation] = pod.Namespace + "/" + pod.Name
	p.Annotations[podUIDAnnotation] = string(pod.UID)
	maps.Copy(p.Annotations, keep)
	p.Spec = b.spec(o, pod)
	return p
}

// spec fits the Pod Security Standard "restricted".
// https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
func (b *Backend) spec(o order, pod *corev1.Pod) corev1.PodSpec {
	const nobody = int64(65535) // the user of the usual image
	spec := corev1.PodSpec{
		PriorityClassName:             priorityClass,
		TerminationGracePeriodSeconds: new(int64(0)), // the scheduler waits until a preempted pod has ended
		ActiveDeadlineSeconds:         new(max(1, int64(time.Until(o.expires)/time.Second))),
		RestartPolicy:                 corev1.RestartPolicyNever,
		AutomountServiceAccountToken:  new(false),
		EnableServiceLinks:            new(false),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(nobody), RunAsGroup: new(nobody),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name:            "placeholder",
			Image:           b.opts.Image,
			ImagePullPolicy: corev1.PullIfNotPresent,
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}},
	}
	if pod != nil {
		spec.Containers[0].Resources = resourcesOf(pod)
		spec.NodeSelector, spec.Tolerations = pod.Spec.NodeSelector, pod.Spec.Tolerations
		spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: o.terms[pod.UID]},
		}}
	}
	return spec
}

// resourcesOf is what the pod requests, as the scheduler counts it: with init containers, sidecars
// and overhead. Limits are set only where the API demands that they equal the requests: for huge pages
// and for extended resources, such as GPUs. Others would make the placeholder Guaranteed, and a
// kubelet with a static CPU policy would reserve processors for it. Requests for CPU and memory are always
// set, if only to none: a ResourceQuota for them admits no pod that does not say.
func resourcesOf(pod *corev1.Pod) corev1.ResourceRequirements {
	r := corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.Quantity{}, corev1.ResourceMemory: resource.Quantity{}},
		Limits:   corev1.ResourceList{},
	}
	for name, q := range resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}) {
		if q.Sign() <= 0 {
			continue
		}
		r.Requests[name] = q
		if strings.Contains(string(name), "/") || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			r.Limits[name] = q
		}
	}
	return r
}

// expired reports whether the placeholder's time is over. One whose annotation cannot be read
// ends at its own active deadline.
func expired(pod *corev1.Pod, now time.Time) bool {
	t, err := time.Parse(time.RFC3339, pod.Annotations[expiresAnnotation])
	return err == nil && !now.Before(t)
}

// Selector selects the nodes that placeholders can run on. The zero value selects none.
type Selector struct {
	text         string
	requirements []corev1.NodeSelectorRequirement
}

// ParseSelector reads a label selector in kubectl's syntax, such as
// "node-lifecycle=on-demand" or "pool in (a, b),!spot". An empty text is the zero Selector.
// https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
func ParseSelector(text string) (Selector, error) {
	parsed, err := labels.Parse(text)
	if err != nil {
		return Selector{}, fmt.Errorf("parse label selector %q: %w", text, err)
	}
	s := Selector{text: parsed.String()}
	requirements, _ := parsed.Requirements()
	for _, r := range requirements {
		s.requirements = append(s.requirements, corev1.NodeSelectorRequirement{
			Key: r.Key(), Operator: operators[r.Operator()], Values: slices.Sorted(slices.Values(r.ValuesUnsorted())),
		})
	}
	return s, nil
}

// operators are all that a label selector can have.
var operators = map[selection.Operator]corev1.NodeSelectorOperator{
	selection.Equals:       corev1.NodeSelectorOpIn,
	selection.DoubleEquals: corev1.NodeSelectorOpIn,
	selection.In:           corev1.NodeSelectorOpIn,
	selection.NotEquals:    corev1.NodeSelectorOpNotIn,
	selection.NotIn:        corev1.NodeSelectorOpNotIn,
	selection.Exists:       corev1.NodeSelectorOpExists,
	selection.DoesNotExist: corev1.NodeSelectorOpDoesNotExist,
	selection.GreaterThan:  corev1.NodeSelectorOpGt,
	selection.LessThan:     corev1.NodeSelectorOpLt,
}

// Empty reports whether it is the zero Selector.
func (s Selector) Empty() bool { return len(s.requirements) == 0 }

func (s Selector) String() string { return s.text }

// terms join the pod's required node affinity with the selector, and with the zone if there
// is one. They leave out what no fallback node can satisfy, as far as the labels that both
// name show: there are no terms if the pod cannot run on fallback nodes at all. A placeholder
// for it would never find a node, and would hold up the others.
func (s Selector) terms(pod *corev1.Pod, zone string) []corev1.NodeSelectorTerm {
	extra := slices.Clone(s.requirements)
	if zone != "" {
		extra = append(extra, corev1.NodeSelectorRequirement{
			Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{zone},
		})
	}
	for key, value := range pod.Spec.NodeSelector {
		if key == corev1.LabelHostname || !constraintOn(key, extra).Allows(value) { // the node that ends, or none of these
			return nil
		}
	}
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return []corev1.NodeSelectorTerm{{MatchExpressions: extra}}
	}
	var terms []corev1.NodeSelectorTerm
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		if len(term.MatchFields) > 0 || len(term.MatchExpressions) == 0 {
			continue // a single node, by its name; the scheduler treats an empty term as impossible
		}
		all := slices.Concat(term.MatchExpressions, extra)
		if !slices.ContainsFunc(term.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool {
			return e.Key == corev1.LabelHostname && e.Operator == corev1.NodeSelectorOpIn || !constraintOn(e.Key, all).Possible()
		}) {
			terms = append(terms, corev1.NodeSelectorTerm{MatchExpressions: all})
		}
	}
	return terms
}

// constraintOn joins the requirements on the key.
func constraintOn(key string, requirements []corev1.NodeSelectorRequirement) (c provisioner.Constraint) {
	for _, r := range requirements {
		if r.Key == key {
			c.Require(string(r.Operator), r.Values)
		}
	}
	return c
}

// zoneOf is the zone that the pod's replacement pod is bound to by its volumes, or "". Only the
// PersistentVolume says whether it can be attached elsewhere, so any claim counts as bound to
// the zone in which the pod runs.
func zoneOf(node *corev1.Node, pod *corev1.Pod) string {
	if slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil }) {
		return node.Labels[corev1.LabelTopologyZone]
	}
	return ""
}
