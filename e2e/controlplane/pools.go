package controlplane

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The resources of Karpenter, for Cluster.Dynamic.
var (
	NodePools   = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodepools"}
	NodeClaims  = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodeclaims"}
	NodeClasses = schema.GroupVersionResource{Group: "karpenter.kwok.sh", Version: "v1alpha1", Resource: "kwoknodeclasses"}
)

const (
	nodeClassGroup = "karpenter.kwok.sh"
	nodeClassKind  = "KWOKNodeClass"
	nodeClassLabel = "karpenter.kwok.sh/kwoknodeclass"
	nodePoolLabel  = "karpenter.sh/nodepool"
	capacityLabel  = "karpenter.sh/capacity-type"
)

// Capacity types of a pool.
const (
	Spot     = "spot"
	OnDemand = "on-demand"
)

// PoolSpec describes a Karpenter NodePool. Only the name is required.
type PoolSpec struct {
	Name string

	// Capacity is Spot, OnDemand, or a list of both; Spot by default.
	Capacity []string

	// Weight is the pool's preference: Karpenter takes the highest first. 0: none set.
	Weight int32

	// CPUs is the size of its instances, a power of two up to 256; 8 by default. They
	// have 4 GiB of memory for each. 100m of the processors are reserved.
	CPUs int

	// Boot is how long an instance takes from its launch until it registers as a Node, in
	// whole seconds; until the Node is Ready, where Karpenter's provider does not read it.
	Boot time.Duration

	// ConsolidateAfter is Karpenter's setting, "Never" by default. Karpenter's own
	// default is "0s": it deletes an empty node within seconds.
	ConsolidateAfter string

	// Limits apply to all nodes of the pool together, such as cpu: "64".
	Limits map[string]string

	// Labels and Taints go on its nodes.
	Labels map[string]string
	Taints []corev1.Taint

	// Annotations go on the NodePool itself.
	Annotations map[string]string

	// Zones of its nodes; by default any of test-zone-a to test-zone-d.
	Zones []string

	// Change may change the NodePool in any other way before it is created.
	Change func(nodePool *unstructured.Unstructured)
}

// CreatePools creates NodePools, each with a KWOKNodeClass of the same name, and waits
// until Karpenter considers them ready.
func (c *Cluster) CreatePools(ctx context.Context, specs ...PoolSpec) error {
	ctx, cancel := withWaitTimeout(ctx)
	defer cancel()
	reads, err := c.ReadsNodeClasses(ctx)
	if err != nil {
		return err
	}
	for _, spec := range specs {
		// CreateNode brings up a node of this pool at once, whatever its Boot.
		for name, boot := range map[string]time.Duration{spec.Name: spec.Boot, instantClass(spec.Name): 0} {
			if _, err := c.Dynamic.Resource(NodeClasses).Create(ctx, nodeClass(name, boot), metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("create node class %q: %w", name, err)
			}
		}
		pool, err := nodePool(spec)
		if err != nil {
			return err
		}
		if !reads {
			if err := unstructured.SetNestedField(pool.Object, strconv.Itoa(max(bootAtOnce, 1+int(spec.Boot.Round(time.Second).Seconds()))), bootPath...); err != nil {
				return fmt.Errorf("set the boot time of node pool %q: %w", spec.Name, err)
			}
		}
		if _, err := c.Dynamic.Resource(NodePools).Create(ctx, pool, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create node pool %q: %w", spec.Name, err)
		}
	}
	for _, spec := range specs {
		if _, err := c.waitObject(ctx, NodePools, spec.Name, func(pool *unstructured.Unstructured) bool {
			// The hash is what a NodeClaim of this pool has to repeat.
			return conditionTrue(pool, "Ready") && pool.GetAnnotations()["karpenter.sh/nodepool-hash"] != ""
		}); err != nil {
			return err
		}
	}
	return nil
}

// ReadsNodeClasses reports whether kwok's provider reads the node class of a NodeClaim, which the
// class's definition says. It then refuses a claim that has none, and registers a Node only when it
// has booted. That of Karpenter 1.0 launches every claim, and registers its Node at once.
func (c *Cluster) ReadsNodeClasses(ctx context.Context) (bool, error) {
	const name = "kwoknodeclasses.karpenter.kwok.sh"
	definition, err := c.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).
		Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("get the definition %s: %w", name, err)
	}
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	return slices.ContainsFunc(versions, func(version any) bool {
		_, ok, _ := unstructured.NestedMap(version.(map[string]any), "schema", "openAPIV3Schema", "properties", "spec", "properties", "nodeRegistrationDelay")
		return ok
	}), nil
}

// bootAnnotation is how many seconds after its registration kwok, in the role of the kubelet, has a Node
// Ready, and bootPath where a NodePool's template has it, if Karpenter's provider knows no such time.
// The API drops the fraction of a second, so it is longer by one.
const bootAnnotation = "e2e.spot-handler/boot"

var bootPath = []string{"spec", "template", "metadata", "annotations", bootAnnotation}

// bootAtOnce is one that is no boot at all. Karpenter 1.0 can miss that a Node has registered in the very
// moment of its launch, and learns of it when the Node changes next, which is when it is Ready.
const bootAtOnce = 2

func instantClass(pool string) string { return pool + "-boots-at-once" }

func nodeClass(name string, boot time.Duration) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": nodeClassGroup + "/v1alpha1",
		"kind":       nodeClassKind,
		"metadata":   map[string]any{"name": name},
		"spec": map[string]any{
			// The CRD admits no fractions.
			"nodeRegistrationDelay": fmt.Sprintf("%ds", int(boot.Round(time.Second).Seconds())),
		},
	}}
}

func nodePool(spec PoolSpec) (*unstructured.Unstructured, error) {
	capacity := spec.Capacity
	if len(capacity) == 0 {
		capacity = []string{Spot}
	}
	requirements := []any{
		requirement(capacityLabel, capacity...),
		// "s" is the family with 4 GiB for each processor.
		requirement(corev1.LabelInstanceTypeStable, fmt.Sprintf("s-%dx-amd64-linux", cmp.Or(spec.CPUs, 8))),
	}
	if len(spec.Zones) > 0 {
		requirements = append(requirements, requirement(corev1.LabelTopologyZone, spec.Zones...))
	}
	template := map[string]any{
		"nodeClassRef": map[string]any{"group": nodeClassGroup, "kind": nodeClassKind, "name": spec.Name},
		"requirements": requirements,
		"expireAfter":  "Never",
	}
	if len(spec.Taints) > 0 {
		var taints []any
		for _, taint := range spec.Taints {
			object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&taint)
			if err != nil {
				return nil, fmt.Errorf("convert a taint of node pool %q: %w", spec.Name, err)
			}
			taints = append(taints, object)
		}
		template["taints"] = taints
	}
	poolSpec := map[string]any{
		"template": map[string]any{
			"metadata": map[string]any{"labels": anyMap(spec.Labels)},
			"spec":     template,
		},
		"disruption": map[string]any{
			"consolidationPolicy": "WhenEmptyOrUnderutilized",
			"consolidateAfter":    cmp.Or(spec.ConsolidateAfter, "Never"),
			// Karpenter's own default of 10% lets no node of a small pool go.
			"budgets": []any{map[string]any{"nodes": "100%"}},
		},
	}
	if spec.Weight > 0 {
		poolSpec["weight"] = int64(spec.Weight)
	}
	if len(spec.Limits) > 0 {
		poolSpec["limits"] = anyMap(spec.Limits)
	}
	pool := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "karpenter.sh/v1",
		"kind":       "NodePool",
		"metadata":   map[string]any{"name": spec.Name, "annotations": anyMap(spec.Annotations)},
		"spec":       poolSpec,
	}}
	if spec.Change != nil {
		spec.Change(pool)
	}
	return pool, nil
}

func requirement(key string, values ...string) map[string]any {
	list := make([]any, len(values))
	for i, value := range values {
		list[i] = value
	}
	return map[string]any{"key": key, "operator": "In", "values": list}
}

func anyMap(from map[string]string) map[string]any {
	to := map[string]any{}
	for key, value := range from {
		to[key] = value
	}
	return to
}

// conditionTrue reports whether the object's status has this condition set to True.
func conditionTrue(object *unstructured.Unstructured, kind string) bool {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, entry := range conditions {
		if condition, ok := entry.(map[string]any); ok && condition["type"] == kind {
			return condition["status"] == "True"
		}
	}
	return false
}
