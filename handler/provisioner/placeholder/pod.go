package placeholder

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Our names on placeholders and their PodTemplates.
const (
	// Label names the instance whose pods the placeholder stands for.
	Label = "spot-handler/placeholder"

	// NodeLabel names its Node, cut to what a label can hold.
	NodeLabel = "spot-handler/placeholder-node"

	nodeAnnotation    = "spot-handler/interrupted-node" // the Node's whole name
	podAnnotation     = "spot-handler/holds-for"        // namespace/name of the pod, for people
	podUIDAnnotation  = "spot-handler/holds-for-uid"
	expiresAnnotation = "spot-handler/expires" // RFC 3339
)

// PriorityClass is the priority class of all placeholders; deploy/ ships it. Its value has to
// be lower than those of all pods that take the placeholders' room, and not lower than -10:
// Cluster Autoscaler makes no nodes for pods below its --expendable-pods-priority-cutoff.
// https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md#how-does-cluster-autoscaler-work-with-pod-priority-and-preemption
const PriorityClass = "spot-handler-placeholder"

// Annotations that keep autoscalers from removing the node on which room is being held. That
// takes minutes at most.
var keep = map[string]string{
	"cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
	"karpenter.sh/do-not-disrupt":                    "true",
}

// nameOf names the PodTemplate of an instance's placeholders.
func nameOf(instance string) string { return "placeholder-" + label(instance) }

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
	return NodeLabel + "=" + label(node)
}

// meta is what the PodTemplate and the placeholders have in common.
func (o order) meta(name string, owner metav1.OwnerReference) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name,
		Labels: map[string]string{
			"app.kubernetes.io/name":       "spot-handler-placeholder",
			"app.kubernetes.io/managed-by": "spot-handler",
			Label:                          label(o.instance),
			NodeLabel:                      label(o.node.Name),
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
	t.Template.Spec = b.spec(o, nil, nil, nil)
	return t
}

// placeholder is the pod that holds room for a pod's successor.
func (b *Backend) placeholder(o order, owner *corev1.PodTemplate, pod *corev1.Pod) *corev1.Pod {
	ref := metav1.OwnerReference{APIVersion: "v1", Kind: "PodTemplate", Name: owner.Name, UID: owner.UID}
	p := &corev1.Pod{ObjectMeta: o.meta(podName(o.instance, pod.UID), ref)}
	p.Annotations[podAnnotation] = pod.Namespace + "/" + pod.Name
	p.Annotations[podUIDAnnotation] = string(pod.UID)
	for key, value := range keep {
		p.Annotations[key] = value
	}
	// As the scheduler counts it: with init containers, sidecars and overhead.
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	p.Spec = b.spec(o, pod, requests, o.terms[pod.UID])
	return p
}

// spec fits the Pod Security Standard "restricted".
// https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
func (b *Backend) spec(o order, pod *corev1.Pod, requests corev1.ResourceList, terms []corev1.NodeSelectorTerm) corev1.PodSpec {
	no, yes := false, true
	nobody := int64(65535) // the user of the usual image
	noGrace := int64(0)    // the scheduler waits until a preempted pod has ended
	lifetime := max(1, int64(time.Until(o.expires)/time.Second))
	spec := corev1.PodSpec{
		PriorityClassName:             PriorityClass,
		TerminationGracePeriodSeconds: &noGrace,
		ActiveDeadlineSeconds:         &lifetime,
		RestartPolicy:                 corev1.RestartPolicyNever,
		AutomountServiceAccountToken:  &no,
		EnableServiceLinks:            &no,
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: &yes, RunAsUser: &nobody, RunAsGroup: &nobody,
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name:            "placeholder",
			Image:           b.opts.Image,
			ImagePullPolicy: corev1.PullIfNotPresent,
			Resources:       corev1.ResourceRequirements{Requests: positive(requests), Limits: limits(requests)},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}},
	}
	if pod != nil {
		spec.NodeSelector, spec.Tolerations = pod.Spec.NodeSelector, pod.Spec.Tolerations
		spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
		}}
	}
	return spec
}

// positive leaves out resources of which none is requested.
func positive(requests corev1.ResourceList) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, q := range requests {
		if q.Sign() > 0 {
			list[name] = q
		}
	}
	return list
}

// limits are set only where the API demands that they equal the requests: for huge pages and
// for extended resources, such as GPUs. Others would make the placeholder Guaranteed, and a
// kubelet with a static CPU policy would reserve processors for it.
func limits(requests corev1.ResourceList) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, q := range positive(requests) {
		native := !strings.Contains(string(name), "/") && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
		if !native {
			list[name] = q
		}
	}
	return list
}

// expired reports whether the placeholder's time is over. One whose annotation cannot be read
// ends at its own active deadline.
func expired(pod *corev1.Pod, now time.Time) bool {
	t, err := time.Parse(time.RFC3339, pod.Annotations[expiresAnnotation])
	return err == nil && !now.Before(t)
}
