package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
)

// CreateNode brings up one node of a pool through Karpenter, and returns it when it is
// Ready. It does not take the pool's Boot but a second or two, so a test spends its time
// on what follows.
//
// The node carries the label spot-handler/instance-id with InstanceID of its name: the
// provider id of kwok's nodes names no instance.
func (c *Cluster) CreateNode(ctx context.Context, pool string) (*corev1.Node, error) {
	nodes, err := c.CreateNodes(ctx, pool, 1)
	if err != nil {
		return nil, err
	}
	return nodes[0], nil
}

// CreateNodes is CreateNode for several at once.
func (c *Cluster) CreateNodes(ctx context.Context, pool string, count int) ([]*corev1.Node, error) {
	ctx, cancel := withWaitTimeout(ctx)
	defer cancel()
	nodePool, err := c.Dynamic.Resource(NodePools).Get(ctx, pool, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get node pool %q: %w", pool, err)
	}
	nodes := make([]*corev1.Node, count)
	err = inParallel(count, func(i int) error {
		claim, err := c.Dynamic.Resource(NodeClaims).Create(ctx, nodeClaim(nodePool), metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create a node claim of pool %q: %w", pool, err)
		}
		claim, err = c.waitObject(ctx, NodeClaims, claim.GetName(), func(claim *unstructured.Unstructured) bool {
			return conditionTrue(claim, "Initialized")
		})
		if err != nil {
			return err
		}
		name, _, _ := unstructured.NestedString(claim.Object, "status", "nodeName")
		if _, err := c.WaitNode(ctx, name, NodeReady); err != nil {
			return err
		}
		nodes[i], err = c.LabelInstance(ctx, name)
		return err
	})
	return nodes, err
}

// Launch makes a NodeClaim of the pool, whose instance boots for as long as the pool's Boot says,
// and returns the claim's name when it is launched. The Node will carry the label
// spot-handler/instance-id with InstanceID of that name.
func (c *Cluster) Launch(ctx context.Context, pool string) (claim string, err error) {
	ctx, cancel := withWaitTimeout(ctx)
	defer cancel()
	nodePool, err := c.Dynamic.Resource(NodePools).Get(ctx, pool, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("get node pool %q: %w", pool, err)
	}
	launch := nodeClaim(nodePool)
	name := pool + "-early"
	launch.SetName(name)
	labels := launch.GetLabels()
	labels[nodeClassLabel], labels[interruption.InstanceIDLabel] = pool, InstanceID(name)
	launch.SetLabels(labels)
	if boot, ok, _ := unstructured.NestedString(nodePool.Object, bootPath...); ok {
		annotations := launch.GetAnnotations()
		annotations[bootAnnotation] = boot
		launch.SetAnnotations(annotations)
	}
	if err := unstructured.SetNestedField(launch.Object, pool, "spec", "nodeClassRef", "name"); err != nil {
		return "", fmt.Errorf("set the node class of pool %q: %w", pool, err)
	}
	if _, err := c.Dynamic.Resource(NodeClaims).Create(ctx, launch, metav1.CreateOptions{}); err != nil {
		return "", fmt.Errorf("create a node claim of pool %q: %w", pool, err)
	}
	_, err = c.waitObject(ctx, NodeClaims, name, func(claim *unstructured.Unstructured) bool { return conditionTrue(claim, "Launched") })
	return name, err
}

// LabelInstance gives a node that Karpenter has made by itself the label that CreateNode
// sets, and returns the node.
func (c *Cluster) LabelInstance(ctx context.Context, node string) (*corev1.Node, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"labels": map[string]string{interruption.InstanceIDLabel: InstanceID(node)},
	}})
	if err != nil {
		return nil, fmt.Errorf("marshal the label of node %q: %w", node, err)
	}
	labeled, err := c.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return nil, fmt.Errorf("label node %q: %w", node, err)
	}
	return labeled, nil
}

// nodeClaim is what Karpenter itself would create for a node of the pool, except for a
// node class that boots at once.
func nodeClaim(pool *unstructured.Unstructured) *unstructured.Unstructured {
	labels, _, _ := unstructured.NestedStringMap(pool.Object, "spec", "template", "metadata", "labels")
	template, _, _ := unstructured.NestedMap(pool.Object, "spec", "template", "spec")
	class := instantClass(pool.GetName())
	template["nodeClassRef"] = map[string]any{"group": nodeClassGroup, "kind": nodeClassKind, "name": class}
	requirements, _ := template["requirements"].([]any)
	template["requirements"] = append(requirements, requirement(nodePoolLabel, pool.GetName()))

	claim := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "karpenter.sh/v1",
		"kind":       "NodeClaim",
		"spec":       template,
	}}
	claim.SetGenerateName(pool.GetName() + "-")
	if labels == nil {
		labels = map[string]string{}
	}
	labels[nodePoolLabel] = pool.GetName()
	labels[nodeClassLabel] = class
	claim.SetLabels(labels)
	annotations := map[string]string{}
	for _, key := range []string{"karpenter.sh/nodepool-hash", "karpenter.sh/nodepool-hash-version"} {
		// Without them, or with others, the claim counts as drifted.
		annotations[key] = pool.GetAnnotations()[key]
	}
	if _, ok, _ := unstructured.NestedString(pool.Object, bootPath...); ok {
		annotations[bootAnnotation] = strconv.Itoa(bootAtOnce)
	}
	claim.SetAnnotations(annotations)
	yes := true
	claim.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: "karpenter.sh/v1", Kind: "NodePool", Name: pool.GetName(), UID: pool.GetUID(), BlockOwnerDeletion: &yes,
	}})
	return claim
}

// waitObject watches one cluster-scoped object until done returns true for it.
func (c *Cluster) waitObject(ctx context.Context, kind schema.GroupVersionResource, name string, done func(*unstructured.Unstructured) bool) (*unstructured.Unstructured, error) {
	from := c.Dynamic.Resource(kind)
	object, err := until(ctx, named(name, from.List, from.Watch), nil, func(object *unstructured.Unstructured) bool {
		return object != nil && done(object)
	})
	if err != nil {
		return object, fmt.Errorf("wait for %s %q, last seen with %s: %w", kind.Resource, name, conditions(object), err)
	}
	return object, nil
}

func conditions(object *unstructured.Unstructured) string {
	if object == nil {
		return "nothing"
	}
	list, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	text, _ := json.Marshal(list)
	return string(text)
}
