package stories

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/offerings"
)

// A service is spread strictly over four zones, one pod in each, and three of its nodes are
// interrupted. A replacement in any other zone than that of its node would be of no use to
// the pod, and Karpenter would make another: each is in its node's zone, and there is no other.
func TestReplacementIsInTheZoneOfItsPods(t *testing.T) {
	s := tell(t, controlplane.Options{Karpenter: true})
	team := map[string]string{"team": "web"}
	pools := []controlplane.PoolSpec{{Name: "fallback", Labels: team, Capacity: []string{controlplane.OnDemand}, Boot: 2 * time.Second}}
	zones := []string{"test-zone-a", "test-zone-b", "test-zone-c", "test-zone-d"}
	for _, zone := range zones {
		pools = append(pools, controlplane.PoolSpec{
			Name: zone, Labels: team, Zones: []string{zone}, Weight: 50,
			Annotations: map[string]string{"spot-handler/fallback-nodepool": "fallback"},
		})
	}
	s.must(s.cluster.CreatePools(s.ctx, pools...))
	nodes := make([]*corev1.Node, len(zones))
	for i, zone := range zones {
		nodes[i] = s.node(zone)
	}
	s.service("web", len(zones), func(d *controlplane.DeploymentSpec) {
		quick(d)
		d.CPU, d.NodeSelector, d.Spread = "5", team, corev1.LabelTopologyZone
	})
	server, queue := s.sqs()
	s.runQueue(server, queue, "--drain-strategy=hold")
	for _, node := range nodes[1:] {
		queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-"+node.Name, controlplane.InstanceID(node.Name), time.Now()))
	}
	for _, node := range nodes[1:] {
		s.waitGone(node.Name)
	}
	_, err := s.cluster.WaitReady(s.ctx, "default", "web", len(zones))
	s.must(err)

	var list *unstructured.UnstructuredList
	s.eventually("end of the claims, after that of their nodes", func() bool {
		list, err = s.cluster.Dynamic.Resource(controlplane.NodeClaims).List(s.ctx, metav1.ListOptions{})
		s.must(err)
		return !slices.ContainsFunc(list.Items, func(c unstructured.Unstructured) bool { return c.GetDeletionTimestamp() != nil })
	})
	if n := len(list.Items); n != len(zones) {
		t.Errorf("%d NodeClaims, want one in each of %d zones", n, len(zones))
	}
	for _, claim := range list.Items {
		name, _, _ := unstructured.NestedString(claim.Object, "status", "nodeName")
		for i, node := range nodes {
			if !strings.HasSuffix(claim.GetName(), controlplane.InstanceID(node.Name)) {
				continue
			}
			if got := s.lastSeen(name).Labels[corev1.LabelTopologyZone]; got != zones[i] {
				t.Errorf("the node of %s was replaced in %s", zones[i], got)
			}
		}
	}
}

// EC2 takes the spot nodes of four zones, one after the other, and the pool that replaces them is a
// spot pool in the same zones. No replacement is of an offering that was lost before, as long as
// there is another; the last one still gets a node. After the first loss the leader is killed, and
// after the second the next one is stopped: those that follow know of it, though the Nodes are gone.
func TestReplacementIsNoOfferingThatWasLost(t *testing.T) {
	s := tell(t, controlplane.Options{Karpenter: true})
	team := map[string]string{"team": "web"}
	zones := []string{"test-zone-a", "test-zone-b", "test-zone-c", "test-zone-d"}
	pools := []controlplane.PoolSpec{{Name: "backup", Labels: team, Zones: zones, Boot: time.Second}}
	for _, zone := range zones {
		pools = append(pools, controlplane.PoolSpec{
			Name: zone, Labels: team, Zones: []string{zone}, Weight: 50, Annotations: map[string]string{"spot-handler/fallback-nodepool": "backup"},
		})
	}
	s.must(s.cluster.CreatePools(s.ctx, pools...))
	nodes := make([]*corev1.Node, len(zones))
	for i, zone := range zones {
		nodes[i] = s.node(zone)
	}
	s.service("web", len(zones), func(d *controlplane.DeploymentSpec) {
		quick(d)
		d.CPU, d.NodeSelector = "5", team
	})
	server, queue := s.sqs()
	leader := s.runReplica(server, queue, "--drain-strategy=hold")
	s.waitLine(leader, "leading")
	follower := s.runReplica(server, queue, "--drain-strategy=hold")
	var lost []string
	for i, node := range nodes {
		lost = append(lost, zones[i])
		queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-"+node.Name, controlplane.InstanceID(node.Name), time.Now()))
		s.waitGone(node.Name)
		_, err := s.cluster.WaitReady(s.ctx, "default", "web", len(zones))
		s.must(err)
		claims := s.claims("backup", controlplane.InstanceID(node.Name))
		if len(claims) != 1 {
			t.Fatalf("%s was replaced by %q, want one NodeClaim", node.Name, claims)
		}
		got := s.claim(claims[0]).GetLabels()[corev1.LabelTopologyZone]
		if got == zones[i] || i < len(zones)-1 && slices.Contains(lost, got) {
			t.Errorf("the node of %s was replaced in %s, after losses in %v", zones[i], got, lost)
		}
		if i >= 2 {
			continue
		}
		s.eventually("memory of "+zones[i], func() bool {
			cm, err := s.cluster.Client.CoreV1().ConfigMaps(namespace).Get(s.ctx, offerings.ConfigMap, metav1.GetOptions{})
			s.must(err)
			return strings.Contains(cm.Data["offerings.json"], `"zone":"`+zones[i]+`"`)
		})
		if i == 0 {
			leader.Kill()
		} else {
			follower.Stop()
			follower = s.runReplica(server, queue, "--drain-strategy=hold")
		}
		s.waitLine(follower, "lost offerings are known")
	}
}
