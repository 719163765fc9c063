package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"spot-handler/drain/plan"
	"spot-handler/e2e/chaos/evidence"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner/karpenter"
)

// How long things may take after which the cluster has to be as if nothing had happened. The
// replicas have the shortest times that their flags take.
const (
	rebalanceTTL   = 45 * time.Second
	replacementTTL = 30 * time.Second

	// settleWithin counts from the last deadline: a node may wait in line for as long as
	// rebalanceTTL and then be replaced, and its replacement be returned after
	// replacementTTL; the rest is for Karpenter, and for a busy machine.
	settleWithin = rebalanceTTL + replacementTTL + 4*time.Minute
)

// settle waits until nothing is under way any more, and returns what still is when the limit
// has come.
func (s *stage) settle(ctx context.Context, limit time.Time) ([]string, error) {
	for {
		unsettled, err := s.unsettled(ctx)
		if err == nil && len(unsettled) == 0 {
			return nil, nil
		}
		if time.Now().After(limit) {
			return unsettled, err
		}
		if err := pause(ctx, time.Second); err != nil {
			return unsettled, err
		}
	}
}

// unsettled is what is not as it will be when all is over.
func (s *stage) unsettled(ctx context.Context) (what []string, err error) {
	core := s.cluster.Client.CoreV1()
	nodes, err := core.Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	pods, err := core.Pods(roundNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	claims, err := s.cluster.Dynamic.Resource(controlplane.NodeClaims).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list node claims: %w", err)
	}
	deployments, err := s.cluster.Client.AppsV1().Deployments(roundNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list deployments: %w", err)
	}
	for _, m := range s.queue.Messages() {
		if m.State != sqsemu.Deleted && !s.awaitsNode(m.ID) {
			what = append(what, fmt.Sprintf("message %s is %s: %s", m.ID, m.State, m.Body))
		}
	}
	for _, n := range nodes.Items {
		how, err := s.node(ctx, &n)
		if err != nil {
			return nil, err
		}
		what = append(what, how...)
	}
	what = append(what, workloadsUnsettled(deployments.Items, pods.Items)...)
	inUse := map[string]bool{}
	for _, p := range pods.Items {
		inUse[p.Spec.NodeName] = true
	}
	for _, c := range claims.Items {
		what = append(what, claimUnsettled(c, inUse)...)
	}
	return what, nil
}

// awaitsNode: the message is about a Node that had gone before one of the processes started, which
// cannot know that. It keeps the message for a quarter of an hour, as one whose Node is yet to come.
func (s *stage) awaitsNode(message string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.messages, func(m evidence.Message) bool { return m.ID == message })
	if i < 0 {
		return s.late[message] // of an earlier round
	}
	gone := s.observer.gone(s.messages[i].Node)
	s.late[message] = !gone.IsZero() && slices.ContainsFunc(s.replicas, func(r *replica) bool { return r.since().After(gone) })
	return s.late[message]
}

// workloadsUnsettled says which Deployments have other pods than they ask for, and which pods
// are on their own.
func workloadsUnsettled(deployments []appsv1.Deployment, pods []corev1.Pod) (what []string) {
	ready, there := map[string]int32{}, map[string]int32{}
	for _, p := range pods {
		service := p.Labels["app"]
		there[service]++
		if controlplane.Ready(&p) {
			ready[service]++
		}
		if p.Labels[plan.SurgedLabel] != "" || p.Annotations[plan.SurgedAnnotation] != "" {
			what = append(what, fmt.Sprintf("pod %s on %s is surged", p.Name, p.Spec.NodeName))
		}
		if metav1.GetControllerOf(&p) == nil {
			what = append(what, fmt.Sprintf("pod %s on %s has no owner", p.Name, p.Spec.NodeName))
		}
	}
	for _, d := range deployments {
		if want := *d.Spec.Replicas; ready[d.Name] != want || there[d.Name] != want {
			what = append(what, fmt.Sprintf("%s has %d pods, %d of them ready, want %d", d.Name, there[d.Name], ready[d.Name], want))
		}
		delete(there, d.Name)
	}
	for service, n := range there {
		what = append(what, fmt.Sprintf("%d pods of %s, which was deleted", n, service))
	}
	return what
}

// claimUnsettled says what is the matter with a NodeClaim: it is about to go, or is a
// replacement that nobody uses.
func claimUnsettled(c unstructured.Unstructured, inUse map[string]bool) []string {
	labels := c.GetLabels()
	switch {
	case c.GetDeletionTimestamp() != nil:
		return []string{fmt.Sprintf("node claim %s is being deleted", c.GetName())}
	case labels[karpenter.ReplacesLabel] != "" && !inUse[nodeOf(c)]:
		return []string{fmt.Sprintf("node claim %s, which replaces %s, is not used, and labelled %v", c.GetName(), labels[karpenter.ReplacesLabel], labels[karpenter.SettledLabel])}
	}
	return nil
}

// node says what an interruption has left on a Node, and has instances that EC2 has only
// stopped come back.
func (s *stage) node(ctx context.Context, n *corev1.Node) (what []string, err error) {
	s.mu.Lock()
	loss, comesBack, cordoned := s.losses[n.Name], s.comeBack[n.Name], s.cordoned[n.Name]
	s.mu.Unlock()

	text, recorded := n.Annotations[interruption.Annotation]
	if recorded {
		what = append(what, fmt.Sprintf("node %s has the record %s", n.Name, text))
		r, err := interruption.ParseRecord(text)
		if err == nil && comesBack && r.Phase.Over() && r.Boot != "" && r.Boot == n.Status.NodeInfo.BootID && time.Now().After(r.Deadline) {
			if i := slices.Index(s.nodes, n.Name); i >= 0 && i < len(s.metadata) {
				s.metadata[i].Clear()
			}
			return what, boots(ctx, s.cluster, n.Name)
		}
	}
	if n.Spec.Unschedulable != cordoned {
		what = append(what, fmt.Sprintf("node %s is cordoned: %t, and by an operator: %t", n.Name, n.Spec.Unschedulable, cordoned))
	}
	if slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == interruption.TaintKey }) {
		what = append(what, fmt.Sprintf("node %s is tainted", n.Name))
	}
	if n.Labels[interruption.ExcludeFromLoadBalancers] != "" {
		what = append(what, fmt.Sprintf("node %s is kept out of load balancers", n.Name))
	}
	if n.Annotations[interruption.CancelAnnotation] != "" && recorded {
		what = append(what, fmt.Sprintf("node %s is not cancelled yet", n.Name))
	}
	if loss != nil && !comesBack && loss.Canceled.IsZero() && slices.ContainsFunc(loss.Announced, certain) {
		what = append(what, fmt.Sprintf("node %s is still there, and its instance has ended", n.Name))
	}
	return what, nil
}
