package stories

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/handler/interruption"
)

// Story 1: a notice of the metadata service on a node with 12 pods of which 10 must
// stay ready. Karpenter launches the replacement in the fallback pool, all pods move
// there with all their grace and before the deadline, and the old NodeClaim goes.
func TestIMDSNoticeMovesAllPods(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true, Audit: true})
	s.pools(8 * time.Second)
	node := s.node("batch")
	s.service("web", 12, func(d *controlplane.DeploymentSpec) { d.BudgetMinAvailable = budget(10) })
	if on := len(s.podsOn(node.Name, "web")); on != 12 {
		t.Fatalf("%d pods on the node, want all 12", on)
	}
	imds := s.imds(node)
	d := s.runIMDS(imds, node)
	fewest := s.watchReady("web")

	deadline := time.Now().Add(120 * time.Second)
	imds.Interrupt("terminate", deadline)

	marked, err := s.cluster.WaitNode(s.ctx, node.Name, func(n *corev1.Node) bool { _, ok := record(n); return ok })
	s.must(err)
	if !marked.Spec.Unschedulable || !hasTaint(marked, interruption.TaintKey) ||
		marked.Labels[interruption.ExcludeFromLoadBalancers] != interruption.ExcludeFromLoadBalancersValue {
		t.Errorf("the record came without cordon, taint or label: %+v", marked.Spec)
	}

	drained := s.waitLine(d, "drained")
	s.waitGone(node.Name)
	if got := drained["graceful"]; got != 12.0 {
		t.Errorf("%v pods graceful, want 12: %v", got, drained)
	}
	if slack, _ := drained["slack_seconds"].(float64); slack < 10 {
		t.Errorf("drained with %v s to spare, want the margin of 10 s at least", slack)
	}
	if n := fewest(); n < 10 {
		t.Errorf("only %d pods were ready at some time, the budget asks for 10", n)
	}
	pods, err := s.cluster.WaitReady(s.ctx, "default", "web", 12)
	s.must(err)
	for _, p := range pods {
		on, err := s.cluster.WaitNode(s.ctx, p.Spec.NodeName, func(n *corev1.Node) bool { return n != nil })
		s.must(err)
		if pool := on.Labels["karpenter.sh/nodepool"]; pool != "batch-fallback" {
			t.Errorf("pod %s is on a node of pool %s, want batch-fallback", p.Name, pool)
		}
	}
	if claims := s.claims("batch-fallback", ""); len(claims) != 1 {
		t.Errorf("claims %v, want one", claims)
	}

	posted := s.requests(func(r request) bool { return r.Verb == "create" && r.ObjectRef.Resource == "nodeclaims" })
	evicted := s.requests(func(r request) bool { return r.ObjectRef.Subresource == "eviction" })
	if len(posted) != 1 || len(evicted) == 0 || evicted[0].RequestReceivedTimestamp.Before(posted[0].RequestReceivedTimestamp) {
		t.Errorf("%d claims posted, %d evictions: want one claim, before the first eviction", len(posted), len(evicted))
	}
	// The story that an operator reads, in the order in which it happened.
	for _, message := range []string{"interruption accepted, node cordoned", "replacement requested", "replacement ready", "draining", "drained", "node released"} {
		if n := len(d.Lines(message)); n != 1 {
			t.Errorf("log line %q %d times, want once", message, n)
		}
	}
	for _, reason := range []string{"SpotInterruption", "ReplacementRequested", "Drained"} {
		s.eventually("Event "+reason, func() bool { return len(s.events(reason, node.Name)) == 1 })
	}
	if code := d.Stop(); code != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
}

// As the chart installs it, imds mode marks on the node, and one process drains all nodes. Two
// of four are lost at once, and each has as many pods of a service as maxSurge allows in all:
// never is one fewer ready.
func TestNodesLostTogetherInIMDSMode(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true, Audit: true})
	s.pools(8 * time.Second)
	nodes, err := s.cluster.CreateNodes(s.ctx, "batch", 4)
	s.must(err)
	s.service("web", 12, func(d *controlplane.DeploymentSpec) {
		d.Spread, d.MaxSurge, d.BudgetMaxUnavailable = corev1.LabelHostname, budget(3), budget(1)
	})
	d := s.runDrain()
	fewest := s.watchReady("web")
	end := time.Now().Add(2 * time.Minute)
	for _, node := range nodes[:2] {
		imds := s.imds(node)
		marker := s.runIMDS(imds, node, "--drain=false")
		imds.Interrupt("terminate", end)
		s.waitLine(marker, "interruption accepted, node cordoned")
	}
	for _, node := range nodes[:2] {
		s.waitGone(node.Name)
		for _, reason := range []string{"SpotInterruption", "ReplacementRequested", "Drained"} {
			s.eventually("Event "+reason, func() bool { return len(s.events(reason, node.Name)) == 1 })
		}
	}
	if n := fewest(); n < 12 {
		t.Errorf("only %d pods were ready at some time, want never less than 12", n)
	}
	for _, line := range d.Lines("drained") {
		if line["left"] != 0.0 || line["truncated"] != 0.0 {
			t.Errorf("want all pods graceful: %v", line)
		}
	}
	// All that the pods on the nodes ask of the API server: their Node, and its mark.
	for _, r := range s.requests(func(r request) bool { return strings.HasSuffix(r.User.Username, ":"+markAccount) }) {
		if r.ObjectRef.Resource != "nodes" && r.ObjectRef.Resource != "selfsubjectaccessreviews" {
			t.Errorf("a pod of the DaemonSet asks for %s", r.RequestURI)
		}
	}
}
