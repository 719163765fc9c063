package karpenter

import (
	"cmp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"spot-handler/drain/plan"
	"spot-handler/handler/provisioner"
)

// Karpenter's names.
// https://karpenter.sh/docs/concepts/
const (
	karpenterGroup = "karpenter.sh"

	nodePoolLabel         = "karpenter.sh/nodepool"
	capacityTypeLabel     = "karpenter.sh/capacity-type"
	disruptedTaint        = "karpenter.sh/disrupted"
	doNotDisrupt          = plan.DoNotDisrupt
	hashAnnotation        = "karpenter.sh/nodepool-hash"
	hashVersionAnnotation = "karpenter.sh/nodepool-hash-version"
	unregisteredTaint     = "karpenter.sh/unregistered"
	terminationTimestamp  = "karpenter.sh/nodeclaim-termination-timestamp"
)

// Our names on Karpenter's objects.
const (
	// FallbackAnnotation on a NodePool names the NodePool that replaces its nodes.
	FallbackAnnotation = "spot-handler/fallback-nodepool"

	// ReplacesLabel on a NodeClaim says that we asked for it, and names the instance
	// that it replaces.
	ReplacesLabel = "spot-handler/replaces"

	// nodeAnnotation on a NodeClaim of ours names the interrupted node.
	nodeAnnotation = "spot-handler/interrupted-node"

	// SettledLabel on a NodeClaim of ours says that it no longer needs us: pods run there, or
	// Karpenter itself will remove it.
	SettledLabel = "spot-handler/settled"

	// protectedAnnotation on a NodeClaim of ours says that we protect it from Karpenter's
	// consolidation, and when that ends at the latest (RFC 3339).
	protectedAnnotation = "spot-handler/protected-until"

	// StandsInAnnotation on a NodeClaim of ours names the NodePool of the spot node that it replaces,
	// if the claim is held until its pods can go back there.
	StandsInAnnotation = "spot-handler/stands-in-for"

	// HeldAnnotation on the Node of a claim that is held says for people until when, and why, as JSON; see
	// [Held].
	HeldAnnotation = "spot-handler/held"

	// podsAnnotation on a NodeClaim of ours is the number of pods that it was made for.
	podsAnnotation = "spot-handler/pods"

	// sizeAnnotation on a NodeClaim of ours is what it counts for in its pool's limits
	// until it is launched, as JSON.
	sizeAnnotation = "spot-handler/size"
)

// Capacity types.
const (
	onDemand = "on-demand"
	spot     = "spot"
)

var (
	nodePoolResource  = schema.GroupVersionResource{Group: karpenterGroup, Version: "v1", Resource: "nodepools"}
	nodeClaimResource = schema.GroupVersionResource{Group: karpenterGroup, Version: "v1", Resource: "nodeclaims"}
)

// nodePool is a NodePool as it was read at some time.
type nodePool struct {
	poolObject
	templateSpec map[string]any // spec.template.spec, to be copied
	broken       string         // why it could not be decoded; then all but its name and annotations is empty
}

// poolObject is the part of a NodePool that a replacement depends on.
type poolObject struct {
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Template struct {
			Metadata struct {
				Labels      map[string]string `json:"labels"`
				Annotations map[string]string `json:"annotations"`
			} `json:"metadata"`
			Spec struct {
				NodeClassRef nodeClassRef   `json:"nodeClassRef"`
				Requirements []requirement  `json:"requirements"`
				Taints       []corev1.Taint `json:"taints"`
			} `json:"spec"`
		} `json:"template"`
		Disruption struct {
			ConsolidateAfter    string `json:"consolidateAfter"`
			ConsolidationPolicy string `json:"consolidationPolicy"`
		} `json:"disruption"`
		Limits   corev1.ResourceList `json:"limits"`
		Replicas *int64              `json:"replicas"`
		Weight   int64               `json:"weight"`
	} `json:"spec"`

	Status struct {
		Resources  corev1.ResourceList `json:"resources"`
		Conditions []metav1.Condition  `json:"conditions"`
	} `json:"status"`
}

// Claim is the part of a NodeClaim that is read, whether it is ours or not.
type Claim struct {
	metav1.ObjectMeta `json:"metadata"`

	Spec claimSpec `json:"spec"`

	Status struct {
		NodeName    string              `json:"nodeName"`
		ProviderID  string              `json:"providerID"`
		Capacity    corev1.ResourceList `json:"capacity"`
		Allocatable corev1.ResourceList `json:"allocatable"`
		Conditions  []metav1.Condition  `json:"conditions"`
	} `json:"status"`
}

// claimSpec is the part of a claim's spec that is not copied from the NodePool, and the taints.
type claimSpec struct {
	Requirements []requirement `json:"requirements"`
	Resources    struct {
		Requests corev1.ResourceList `json:"requests"`
	} `json:"resources"`
	Taints []corev1.Taint `json:"taints,omitempty"`
}

// Choices are the values that all requirements on a label allow by name; none if no requirement
// names any.
func (c *Claim) Choices(key string) []string { return constraintOn(key, c.Spec.Requirements).Named() }

type nodeClassRef struct {
	Group string `json:"group"`
	Kind  string `json:"kind"`
	Name  string `json:"name"`
}

// label is the label that Karpenter sets on what is made of the node class.
func (r nodeClassRef) label() string { return r.Group + "/" + strings.ToLower(r.Kind) }

type requirement struct {
	Key       string   `json:"key"`
	Operator  string   `json:"operator"`
	Values    []string `json:"values,omitempty"`
	MinValues *int64   `json:"minValues,omitempty"`
}

// normalize gives labels that have several names the one that Karpenter uses.
func normalize(requirements []requirement) {
	for i, r := range requirements {
		requirements[i].Key = cmp.Or(aliases[r.Key], r.Key)
	}
}

// constraintOn joins the requirements on the key.
func constraintOn(key string, requirements []requirement) (c provisioner.Constraint) {
	for _, r := range requirements {
		if r.Key == key {
			c.Require(r.Operator, r.Values)
		}
	}
	return c
}

// state is how far a claim of ours has come. Initialized is the last of Karpenter's
// conditions: the node is Ready, its resources are there, and its startup taints are gone.
func (c *Claim) state() string {
	switch {
	case meta.IsStatusConditionTrue(c.Status.Conditions, "Initialized"):
		return provisioner.StateReady
	case meta.IsStatusConditionTrue(c.Status.Conditions, "Launched"):
		return provisioner.StateLaunched
	default:
		return provisioner.StateRequested
	}
}

// reboots reports whether Karpenter, from 1.15, is rebooting the claim's node in place, to repair it. Its pods have
// left and it isn't initialized meanwhile, but it comes back.
// https://github.com/kubernetes-sigs/karpenter/blob/v1.15.0/pkg/apis/v1/nodeclaim_status.go
func (c *Claim) reboots() bool { return meta.IsStatusConditionTrue(c.Status.Conditions, "Rebooting") }

// since is when the claim reached the condition; zero if it has not.
func (c *Claim) since(kind string) time.Time {
	if cond := meta.FindStatusCondition(c.Status.Conditions, kind); cond != nil && cond.Status == metav1.ConditionTrue {
		return cond.LastTransitionTime.Time
	}
	return time.Time{}
}

// consolidates is the time after which Karpenter removes an empty node of the pool; false if
// it does not. Both of its policies remove empty nodes.
func (p *nodePool) consolidates() (time.Duration, bool) {
	text := p.Spec.Disruption.ConsolidateAfter
	if text == "Never" {
		return 0, false
	}
	after, err := time.ParseDuration(text)
	if err != nil {
		return 0, true // none given: Karpenter's default is 0s
	}
	return after, true
}

// decodePool never fails: if something is wrong with the pool that is an objection to it, and
// not an error to retry.
func decodePool(u *unstructured.Unstructured) *nodePool {
	pool := &nodePool{}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &pool.poolObject)
	if err == nil {
		pool.templateSpec, _, err = unstructured.NestedMap(u.Object, "spec", "template", "spec")
	}
	if err != nil {
		pool = &nodePool{broken: err.Error()}
		pool.Name, pool.Annotations = u.GetName(), u.GetAnnotations()
	}
	pool.ManagedFields = nil
	normalize(pool.Spec.Template.Spec.Requirements)
	return pool
}

// decodeClaim never fails either: a claim that cannot be read counts as not launched.
func decodeClaim(u *unstructured.Unstructured) *Claim {
	claim := &Claim{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, claim); err != nil {
		claim = &Claim{}
		claim.Name, claim.UID, claim.ResourceVersion = u.GetName(), u.GetUID(), u.GetResourceVersion()
		claim.CreationTimestamp, claim.DeletionTimestamp = u.GetCreationTimestamp(), u.GetDeletionTimestamp()
		claim.Labels, claim.Annotations = u.GetLabels(), u.GetAnnotations()
	}
	claim.ManagedFields = nil
	normalize(claim.Spec.Requirements)
	return claim
}
