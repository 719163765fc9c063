package stories

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/asgemu"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// A group with Capacity Rebalancing, such as that of an EKS managed spot node group, has launched the replacement on the
// rebalance recommendation: when the instance leaves, it launches nothing. That instance is the replacement, whether
// it still boots or is there already.
func TestGroupThatRebalancesItsCapacity(t *testing.T) {
	s := newStory(t, controlplane.Options{}).scale(6*time.Second, false)
	node := s.group("workers", 1, false)[0]
	instance := controlplane.InstanceID(node.Name)
	s.cloud.RebalanceCapacity("workers")
	s.workers("workers", 3)
	server, queue := s.sqs()
	d := s.run(s.options(server, queue))

	s.cloud.Recommend(instance)
	queue.Send(daemon.EventBridge(daemon.Rebalance, "event-1", instance, time.Now()))
	s.waitGone(node.Name)
	if drained := s.waitLine(d, "drained"); drained["graceful"] != 3.0 {
		t.Errorf("want 3 graceful: %v", drained)
	}
	if i, _ := s.cloud.Instance(instance); i.State != asgemu.Terminated {
		t.Errorf("instance is %s", i)
	}
	if n := s.cloud.Launched("workers"); n != 1 {
		t.Errorf("%d launched, want the replacement", n)
	}
	pods, err := s.cluster.WaitReady(s.ctx, "default", "workers", 3)
	s.must(err)

	// The next is there before the notice.
	second := pods[0].Spec.NodeName
	members := s.cloud.Members("workers")
	if len(members) != 1 {
		t.Fatalf("members %v, want one", members)
	}
	s.cloud.Suspend("workers", "Terminate") // or the group would end the instance then
	s.cloud.Recommend(members[0].ID)
	s.eventually("replacement", func() bool {
		now := s.cloud.Members("workers")
		return len(now) == 2 && now[1].Lifecycle == asgemu.InService && s.hasNode(now[1].ID)
	})
	launched := s.cloud.Members("workers")[1].ID
	queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-2", members[0].ID, time.Now()))
	done := s.waitRecord(second, func(r interruption.Record) bool { return r.Phase.Over() })
	if got := replacement(done); got.State != provisioner.StateReady || got.Name != launched {
		t.Errorf("replacement %+v, want %s", got, launched)
	}
	if n := s.cloud.Launched("workers"); n != 2 {
		t.Errorf("%d launched, want the two replacements", n)
	}
}

// hasNode reports whether the instance has joined.
func (s *scaled) hasNode(instance string) bool {
	return slices.ContainsFunc(s.nodes(), func(n corev1.Node) bool { return strings.HasSuffix(n.Spec.ProviderID, "/"+instance) })
}
