package stories

import (
	"strings"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
)

// Story 6: a budget that allows nothing. Its pods stay to the end, are reported in the
// API server's own words and counted as left; the others go.
func TestBlockedPodsAreLeftAndReported(t *testing.T) {
	s := newStory(long(t), controlplane.Options{Karpenter: true, Audit: true})
	s.pools(2 * time.Second)
	node := s.node("batch")
	short := func(d *controlplane.DeploymentSpec) { d.Grace = 5 * time.Second }
	s.service("web", 4, short)
	guarded := s.service("db", 2, func(d *controlplane.DeploymentSpec) { short(d); d.MaxSurge, d.BudgetMinAvailable = never, budget(2) })
	twice := s.service("cache", 1, func(d *controlplane.DeploymentSpec) { short(d); d.MaxSurge, d.BudgetMinAvailable = never, budget(0) })
	_, err := s.cluster.Client.PolicyV1().PodDisruptionBudgets("default").Create(s.ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "second"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: budget(0), Selector: &metav1.LabelSelector{MatchLabels: twice[0].Labels}},
	}, metav1.CreateOptions{})
	s.must(err)
	server, queue := s.sqs()
	d := s.runQueue(server, queue)

	// 80 s ago: 40 s are left, so that the story ends soon.
	at := time.Now().Add(-80 * time.Second).Truncate(time.Second)
	queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-1", controlplane.InstanceID(node.Name), at))

	s.eventually("Event on a blocked pod", func() bool { return len(s.events("EvictionBlocked", guarded[0].Name)) == 1 })
	const words = "The disruption budget db needs 2 healthy pods and has 2 currently"
	if event := s.events("EvictionBlocked", guarded[0].Name)[0]; !strings.Contains(event.Message, words) {
		t.Errorf("the Event says %q, want the API server's %q", event.Message, words)
	}
	s.eventually("Event on the pod with two budgets", func() bool { return len(s.events("EvictionBlocked", twice[0].Name)) == 1 })
	if event := s.events("EvictionBlocked", twice[0].Name)[0]; !strings.Contains(event.Message, "more than one PodDisruptionBudget") {
		t.Errorf("the Event says %q, want that there are two budgets", event.Message)
	}
	if n := s.metric(d, "spot_handler_blocked_pods"); n != 3 {
		t.Errorf("%v pods blocked, want 3", n)
	}
	line := s.waitLine(d, "deadline reached")
	if line["graceful"] != 4.0 || line["left"] != 3.0 || line["reason"] == nil {
		t.Errorf("want 4 graceful, 3 left, and why: %v", line)
	}
	if n := s.metric(d, `spot_handler_pods_total{kind="spot-interruption",outcome="left"}`); n != 3 {
		t.Errorf("%v pods counted as left, want 3", n)
	}
	if n := s.metric(d, `spot_handler_drains_total{kind="spot-interruption",result="deadline"}`); n != 1 {
		t.Errorf("%v drains ended by the deadline, want 1", n)
	}
	if rec, ok := record(s.lastSeen(node.Name)); ok && rec.Phase.Over() && (rec.Pods == nil || rec.Pods.Left != 3) {
		t.Errorf("record %s, want 3 left", rec)
	}
	evictions := s.evictions()
	for _, p := range guarded {
		if evictions[string(p.UID)] != 0 {
			t.Errorf("pod %s was evicted past its budget", p.Name)
		}
	}
	if len(evictions) != 4 {
		t.Errorf("%d pods evicted, want the other 4", len(evictions))
	}

	// Karpenter does as the NodeClaim is marked: it waits for these pods no longer than until the deadline.
	s.waitGone(node.Name)
	if late := time.Since(at.Add(interruption.SpotNotice)); late > 30*time.Second {
		t.Errorf("the node went %s after its deadline", late)
	}
}

// Story 8: no provisioner in the cluster. The node is drained all the same, that there
// is no replacement is said once, and nothing is tried over and over.
func TestWithoutProvisionerNodesAreDrained(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	nodes, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 3})
	s.must(err)
	s.service("web", 12, nil)
	server, queue := s.sqs()
	d := s.runQueue(server, queue)

	for i, node := range nodes[:2] {
		queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-"+node.Name, controlplane.InstanceID(node.Name), time.Now()))
		rec := s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Released })
		if rec.Pods == nil || rec.Pods.Left != 0 || rec.Pods.Graceful != rec.Pods.Total || rec.Pods.Total == 0 {
			t.Errorf("record %s, want all pods graceful", rec)
		}
		if on := s.podsOn(node.Name, "web"); len(on) != 0 {
			t.Errorf("node %d still has %d pods", i, len(on))
		}
	}
	_, err = s.cluster.WaitReady(s.ctx, "default", "web", 12)
	s.must(err)
	said := 0
	for _, line := range d.Lines("") {
		if line["component"] == "provisioner" {
			said++
		}
		// client-go says so of its own requests that are broken off, as watches are.
		if level := line["level"]; (level == "warn" || level == "error") && line["component"] != "client-go" {
			t.Errorf("logged a problem: %v", line)
		}
	}
	if said != 1 {
		t.Errorf("the provisioner had %d things to say, want one for both nodes", said)
	}
	if asked := s.requests(func(r request) bool { return strings.Contains(r.RequestURI, "karpenter.sh") }); len(asked) > 2 {
		t.Errorf("%d requests for Karpenter's objects, want two at the start, for what an earlier process has left behind", len(asked))
	}
}

// A dry run says what would be done and does nothing, neither in the cluster nor in
// the queue.
func TestDryRunChangesNothing(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true, Audit: true})
	s.pools(2 * time.Second)
	node := s.node("batch")
	s.service("web", 3, nil)
	server, queue := s.sqs()
	d := s.runQueue(server, queue, "--dry-run")

	id := queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-1", controlplane.InstanceID(node.Name), time.Now()))
	s.eventually("plan for 3 pods", func() bool { return len(d.Lines("dry run: pod")) >= 3 })
	if line := s.waitLine(d, "dry run: would request replacement"); line["pool"] != "batch-fallback" {
		t.Errorf("want a replacement in batch-fallback: %v", line)
	}
	if len(d.Lines("dry run: would cordon")) != 1 {
		t.Error("want one Event about the cordon")
	}
	if code := d.Stop(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if queue.Deleted(id) {
		t.Error("the message was deleted")
	}
	wrote := s.requests(func(r request) bool {
		switch r.Verb {
		case "get", "list", "watch":
			return false
		}
		return !strings.HasPrefix(r.ObjectRef.Resource, "selfsubject")
	})
	if len(wrote) != 0 {
		t.Errorf("%d requests that write: %+v", len(wrote), wrote)
	}
	if n := server.Requests("ChangeMessageVisibilityBatch"); n != 0 {
		t.Errorf("%d changes of visibility", n)
	}
}
