package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"

	drainplan "spot-handler/drain/plan"
	"spot-handler/e2e/chaos/plan"
	"spot-handler/e2e/controlplane"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner/karpenter"
)

const (
	pool         = "batch"
	fallbackPool = "batch-fallback"
	poolLabel    = "karpenter.sh/nodepool"

	// nodeCPUs hold seven pods: of five nodes that are lost, not all find room on the sixth.
	nodeCPUs = 8
	podCPU   = "1"

	// roundNamespace is of the workloads. It is emptied after each round.
	roundNamespace = "workloads"
)

// pools are those of the manual. Karpenter takes back fallback nodes that have been empty for
// a while, and leaves spot nodes alone: which of them go is the round's matter.
func pools(ctx context.Context, cluster *controlplane.Cluster, boot time.Duration) error {
	return cluster.CreatePools(ctx,
		controlplane.PoolSpec{
			Name: pool, Weight: 100, CPUs: nodeCPUs, Boot: time.Second,
			Annotations: map[string]string{"spot-handler/fallback-nodepool": fallbackPool},
		},
		controlplane.PoolSpec{
			Name: fallbackPool, Weight: 10, CPUs: nodeCPUs, Boot: boot, Capacity: []string{controlplane.OnDemand},
			ConsolidateAfter: "10s",
			Change: func(nodePool *unstructured.Unstructured) {
				_ = unstructured.SetNestedField(nodePool.Object, "WhenEmpty", "spec", "disruption", "consolidationPolicy")
			},
		})
}

// nodesFor has as many spot nodes as a round needs, which nothing was ever announced about, and
// no other nodes, and returns them by name. There must be no workloads.
func nodesFor(ctx context.Context, cluster *controlplane.Cluster) ([]string, error) {
	nodes, err := cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	claims, err := cluster.Dynamic.Resource(controlplane.NodeClaims).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list node claims: %w", err)
	}
	replacements := map[string]bool{}
	for _, c := range claims.Items {
		if c.GetLabels()[karpenter.ReplacesLabel] != "" {
			replacements[nodeOf(c)] = true
		}
	}
	var kept []string
	for _, n := range nodes.Items {
		// What was cancelled in an earlier round counts for ten minutes.
		_, past := n.Annotations[interruption.PastAnnotation]
		if n.Labels[poolLabel] == pool && !past && !replacements[n.Name] && !n.Spec.Unschedulable &&
			n.DeletionTimestamp == nil && controlplane.NodeReady(&n) && len(kept) < plan.Nodes {
			kept = append(kept, n.Name)
		}
	}
	for _, c := range claims.Items {
		if slices.Contains(kept, nodeOf(c)) {
			continue
		}
		err := cluster.Dynamic.Resource(controlplane.NodeClaims).Delete(ctx, c.GetName(), metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("delete node claim %s: %w", c.GetName(), err)
		}
	}
	created, err := cluster.CreateNodes(ctx, pool, plan.Nodes-len(kept))
	if err != nil {
		return nil, err
	}
	for _, n := range created {
		kept = append(kept, n.Name)
	}
	for _, n := range kept {
		if _, err := cluster.LabelInstance(ctx, n); err != nil { // Karpenter makes some by itself
			return nil, err
		}
		if err := boots(ctx, cluster, n); err != nil {
			return nil, err
		}
	}
	err = poll(ctx, 2*time.Minute, func(ctx context.Context) (bool, error) {
		nodes, err := cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err == nil && len(nodes.Items) == plan.Nodes, err
	})
	if err != nil {
		return nil, fmt.Errorf("wait for the end of the last round's nodes: %w", err)
	}
	slices.Sort(kept)
	return kept, nil
}

// nodeOf is the name of a NodeClaim's Node, empty until it has one.
func nodeOf(claim unstructured.Unstructured) string {
	name, _, _ := unstructured.NestedString(claim.Object, "status", "nodeName")
	return name
}

// boots gives the node another run of its machine.
func boots(ctx context.Context, cluster *controlplane.Cluster, node string) error {
	patch := fmt.Sprintf(`{"status":{"nodeInfo":{"bootID":%q}}}`, time.Now().Format(time.RFC3339Nano))
	if _, err := cluster.Client.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("boot node %s: %w", node, err)
	}
	return nil
}

// services runs those of the round, and waits until they are ready.
func services(ctx context.Context, cluster *controlplane.Cluster, round plan.Round, all *receivers) error {
	number := func(n int) *intstr.IntOrString { v := intstr.FromInt32(int32(n)); return &v }
	for _, s := range round.Services {
		spec := controlplane.DeploymentSpec{
			Namespace: roundNamespace, Name: s.Name, Replicas: s.Replicas, CPU: podCPU, Grace: s.Grace,
			Behaviour: controlplane.Behaviour{ReadyAfter: &s.Ready, StopAfter: &s.Stop},
			MaxSurge:  number(s.MaxSurge), MaxUnavailable: number(1),
		}
		if s.Unavailable >= 0 {
			spec.BudgetMaxUnavailable = number(s.Unavailable)
		}
		spec.Annotations = map[string]string{}
		if s.Stays {
			spec.Annotations[drainplan.DoNotDisrupt] = "true"
		}
		if s.When != "" {
			spec.Annotations[drainplan.WhenAnnotation] = s.When
		}
		if s.Notices != "" {
			maps.Copy(spec.Annotations, all.annotations(s.Notices))
		}
		if s.Gang {
			spec.Labels = map[string]string{drainplan.GangLabel: s.Name}
		}
		if s.Tolerates {
			spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		}
		if _, err := cluster.RunDeployment(ctx, spec); err != nil {
			return err
		}
	}
	for _, s := range round.Services {
		if _, err := cluster.WaitReady(ctx, roundNamespace, s.Name, s.Replicas); err != nil {
			return err
		}
	}
	return nil
}

// clear deletes the workloads and waits until they are gone.
func clear(ctx context.Context, cluster *controlplane.Cluster) error {
	background := metav1.DeletePropagationBackground
	options := metav1.DeleteOptions{PropagationPolicy: &background}
	if err := cluster.Client.PolicyV1().PodDisruptionBudgets(roundNamespace).DeleteCollection(ctx, options, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("delete budgets: %w", err)
	}
	if err := cluster.Client.AppsV1().Deployments(roundNamespace).DeleteCollection(ctx, options, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("delete deployments: %w", err)
	}
	_, err := cluster.WaitPods(ctx, roundNamespace, "", func(pods []*corev1.Pod) bool { return len(pods) == 0 })
	return err
}

func poll(ctx context.Context, limit time.Duration, done func(context.Context) (bool, error)) error {
	return wait.PollUntilContextTimeout(ctx, 250*time.Millisecond, limit, true, done)
}

// flagValue is that of a flag among arguments, "" if it is not there.
func flagValue(args []string, name string) string {
	for _, arg := range args {
		if value, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
			return value
		}
	}
	return ""
}
