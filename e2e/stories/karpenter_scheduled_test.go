package stories

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"spot-handler/e2e/controlplane"
	"spot-handler/handler/interruption"
)

// Karpenter 1.12 and later polls EC2 for scheduled events, and deletes the NodeClaim as soon as one is
// announced, long before --scheduled-lead. Until then the node is Karpenter's alone: spot-handler evicts
// nothing and requests nothing. When the lead has come, it requests room for what Karpenter has left
// behind, here a pod that asks not to be disrupted, and drains that.
// https://github.com/aws/karpenter-provider-aws/blob/v1.12.0/pkg/controllers/interruption/instancestatus_controller.go
func TestKarpenterDrainsForAScheduledEvent(t *testing.T) {
	s := newStory(long(t), controlplane.Options{Karpenter: true, Audit: true})
	s.pools(2 * time.Second)
	node := s.node("batch")
	s.service("movable", 3, quick)
	s.service("pinned", 1, func(d *controlplane.DeploymentSpec) {
		quick(d)
		d.Change = func(d *appsv1.Deployment) {
			d.Spec.Template.Annotations["karpenter.sh/do-not-disrupt"] = "true"
		}
	})
	server, queue := s.sqs()
	s.runQueue(server, queue, "--scheduled-lead=1h", "--drain-strategy=hold")

	queue.Send(healthEvent("days-ahead", "INSTANCE_RETIREMENT_SCHEDULED", "upcoming", time.Now().Add(6*time.Hour), node.Name))
	s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Waiting })
	claim := node.OwnerReferences[0].Name
	s.must(s.cluster.Dynamic.Resource(controlplane.NodeClaims).Delete(s.ctx, claim, metav1.DeleteOptions{}))
	s.eventually("only the pinned pod on the node", func() bool { return len(s.podsOn(node.Name, "movable")) == 0 })
	_, err := s.cluster.WaitReady(s.ctx, "default", "movable", 3)
	s.must(err)
	if n := len(s.evictions()); n != 0 {
		t.Errorf("spot-handler evicted %d pods of a node that Karpenter drains, hours before its window", n)
	}
	if ours := s.claims("batch-fallback", ""); len(ours) != 0 {
		t.Errorf("claims %q before the lead", ours)
	}

	// Of two events the earliest counts, which is quicker than to wait for the lead of the first.
	queue.Send(healthEvent("near", "INSTANCE_RETIREMENT_SCHEDULED", "upcoming", time.Now().Add(40*time.Second), node.Name))
	s.eventually("a claim for what is left behind", func() bool { return len(s.claims("batch-fallback", "")) == 1 })
	ours := s.claim(s.claims("batch-fallback", "")[0])
	if cpu, _, _ := unstructured.NestedString(ours.Object, "spec", "resources", "requests", "cpu"); cpu != "500m" {
		t.Errorf("the claim asks for %s of cpu, want that of the pinned pod, 500m", cpu)
	}
	s.waitGone(node.Name)
	_, err = s.cluster.WaitReady(s.ctx, "default", "pinned", 1)
	s.must(err)
}
