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
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/offerings"
)

// A service is spread strictly over four zones, one pod in each, and three of its nodes are
// interrupted. A replacement in any other zone than that of its node would be of no use to
// the pod, and Karpenter would make another: each is in its node's zone, and there is no other.
func TestReplacementIsInTheZoneOfItsPods(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
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

// EC2 takes spot nodes of four zones, one zone after the other, and the pool that replaces them is a
// spot pool in the same zones. No replacement is of an offering that was lost before, as long as
// there is another; the last one still gets a node. After the first loss the leader is killed, and
// after the second the next one is stopped: those that follow know of it, though the Nodes are gone.
//
// In the first zone three of four nodes go at once, which is too many for their pool: an Event says so,
// and when the fourth is recommended for rebalance, its own pool is not asked, by the third leader.
func TestReplacementIsNoOfferingThatWasLost(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	team := map[string]string{"team": "web"}
	zones := []string{"test-zone-a", "test-zone-b", "test-zone-c", "test-zone-d"}
	pools := []controlplane.PoolSpec{{Name: "backup", Labels: team, Zones: zones, Boot: time.Second}}
	for _, zone := range zones {
		pools = append(pools, controlplane.PoolSpec{
			Name: zone, Labels: team, Zones: []string{zone}, Weight: 50, Annotations: map[string]string{"spot-handler/fallback-nodepool": "backup"},
		})
	}
	s.must(s.cluster.CreatePools(s.ctx, pools...))
	first, err := s.cluster.CreateNodes(s.ctx, zones[0], 4)
	s.must(err)
	recommended := first[3]
	nodes := [][]*corev1.Node{first[:3]}
	for _, zone := range zones[1:] {
		nodes = append(nodes, []*corev1.Node{s.node(zone)})
	}
	const pods = 7 // one on a node
	s.service("web", pods, func(d *controlplane.DeploymentSpec) {
		quick(d)
		d.CPU, d.NodeSelector = "5", team
	})
	server, queue := s.sqs()
	leader := s.runReplica(server, queue, "--drain-strategy=hold")
	s.waitLine(leader, "leading")
	follower := s.runReplica(server, queue, "--drain-strategy=hold")
	var lost []string
	replaced := func(node *corev1.Node) {
		s.Helper()
		s.waitGone(node.Name)
		claims := s.claims("backup", controlplane.InstanceID(node.Name))
		if len(claims) != 1 {
			t.Fatalf("%s was replaced by %q, want one NodeClaim", node.Name, claims)
		}
		if got := s.claim(claims[0]).GetLabels()[corev1.LabelTopologyZone]; len(lost) < len(zones) && slices.Contains(lost, got) || got == lost[len(lost)-1] {
			t.Errorf("%s was replaced in %s, after losses in %v", node.Name, got, lost)
		}
	}
	var fixes []string
	for i, zone := range zones {
		lost = append(lost, zone)
		for _, node := range nodes[i] {
			queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-"+node.Name, controlplane.InstanceID(node.Name), time.Now()))
		}
		for _, node := range nodes[i] {
			replaced(node)
		}
		_, err := s.cluster.WaitReady(s.ctx, "default", "web", pods)
		s.must(err)
		if i >= 2 {
			continue
		}
		s.waitRemembered(`"zone":"` + zone + `"`)
		if i == 1 {
			follower.Stop()
			follower = s.runReplica(server, queue, "--drain-strategy=hold")
			s.waitLine(follower, "lost offerings are known")
			forecast := s.plan("--kind=rebalance-recommendation", recommended.Name).Nodes[0].Replacement
			if forecast.Pool != "backup" || !slices.Contains(forecast.Requirements, corev1.LabelTopologyZone+" NotIn "+strings.Join(lost, ",")) {
				t.Errorf("plan has %s replaced by %+v, want one of pool backup outside %v", recommended.Name, forecast, lost)
			}
			if !slices.Contains(forecast.Others, struct{ Name, Why string }{zones[0], "it comes after backup"}) { // by the command of SH209
				t.Errorf("plan leaves out %+v, want the node's own pool to have zones that were not lost", forecast.Others)
			}
			queue.Send(daemon.EventBridge(daemon.Rebalance, "event-"+recommended.Name, controlplane.InstanceID(recommended.Name), time.Now()))
			replaced(recommended)
			continue
		}
		s.eventually("figures of what was lost, for people", func() bool {
			var list statusList
			s.status(&list)
			var found []string
			found, fixes = s.auditOf("SH209")
			return len(list.Offerings) > 0 && list.Offerings[0].Zone == zone && list.Offerings[0].Pool == zone && list.Offerings[0].Lost == 3 &&
				slices.Equal(found, []string{"SH209 nodepool/" + zone})
		})
		s.fix(fixes)
		leader.Kill()
		s.waitLine(follower, "lost offerings are known")
	}
}

// EC2 takes all 40 nodes of an offering, and then nodes with pods in two other zones, whose pools have
// nothing but spot instances. With what the earlier leader has kept, the first are replaced where
// nothing was lost. Then nothing is kept: about two in three of the second are replaced where EC2 is
// still taking everything, and their pods move once more.
func TestMassInterruptionWithAndWithoutMemory(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	const count, pods = 40, 8 // one on a node
	zones := []string{"test-zone-a", "test-zone-b", "test-zone-c", "test-zone-d"}
	bare := func(pool, zone string, count int) {
		_, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: count, Prefix: pool, Labels: map[string]string{
			"team": pool, "karpenter.sh/nodepool": pool, "karpenter.sh/capacity-type": controlplane.Spot,
			corev1.LabelInstanceTypeStable: "s-8x-amd64-linux", corev1.LabelTopologyZone: zone,
		}})
		s.must(err)
	}
	bare("empty", zones[0], count)
	moves, in := map[string]*moving{}, map[string]string{"with": zones[1], "without": zones[3]}
	for pool, zone := range in {
		s.must(s.cluster.CreatePools(s.ctx, controlplane.PoolSpec{
			Name: pool, Labels: team(pool), Zones: zones, Annotations: map[string]string{"spot-handler/fallback-nodepool": pool},
		}))
		bare(pool, zone, pods)
		s.service(pool, pods, func(d *controlplane.DeploymentSpec) { quick(d); d.CPU, d.NodeSelector = "5", team(pool) })
		moves[pool] = s.watchMoves(pool, pods)
	}
	server, queue := s.sqs()
	d := s.runQueue(server, queue)
	if n := s.loseZone(queue, "empty", zones[0], 0); n != count {
		t.Errorf("%d nodes taken, want %d", n, count)
	}
	s.waitRemembered(`"zone":"` + zones[0] + `"`)
	for _, pool := range []string{"with", "without"} {
		if pool == "without" {
			s.must(s.cluster.Client.CoreV1().ConfigMaps(namespace).Delete(s.ctx, offerings.ConfigMap, metav1.DeleteOptions{}))
		}
		d.Kill()
		d = s.runQueue(server, queue, "--drain-strategy=hold")
		s.loseZone(queue, pool, in[pool], pods)
		again := s.loseZone(queue, pool, zones[0], pods) + s.loseZone(queue, pool, zones[1], pods)
		perPod, missing := moves[pool].sum()
		t.Logf("%s memory: %d replacements lost again; %.2f moves for each of %d pods, %.0f unavailable pod-seconds", pool, again, perPod, pods, missing)
		if again > 0 != (pool == "without") || perPod < 1+float64(again)/pods {
			t.Errorf("%s memory: %d replacements lost again and %.2f moves for each pod, want some lost again only without, and a move for each", pool, again, perPod)
		}
	}
}

// waitRemembered waits until the text is in what a leader keeps of lost offerings.
func (s *story) waitRemembered(text string) {
	s.Helper()
	s.eventually("memory of "+text, func() bool {
		cm, err := s.cluster.Client.CoreV1().ConfigMaps(namespace).Get(s.ctx, offerings.ConfigMap, metav1.GetOptions{})
		s.must(err)
		return strings.Contains(cm.Data["offerings.json"], text)
	})
}

// loseZone has EC2 take all nodes of the pool in the zone, and returns how many. It waits until all
// pods of the service are ready elsewhere.
func (s *story) loseZone(queue *sqsemu.Queue, pool, zone string, pods int) int {
	s.Helper()
	list, err := s.cluster.Client.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{LabelSelector: "karpenter.sh/nodepool=" + pool + "," + corev1.LabelTopologyZone + "=" + zone})
	s.must(err)
	lost := map[string]bool{}
	for _, n := range list.Items {
		if lost[n.Name] = isBare(&n); !lost[n.Name] {
			_, err := s.cluster.LabelInstance(s.ctx, n.Name)
			s.must(err)
		}
		interrupt(queue, n.Name, 2*time.Minute)
	}
	s.eventually("pods elsewhere", func() bool {
		return len(slices.DeleteFunc(s.podsOf(pool), func(p corev1.Pod) bool {
			_, there := lost[p.Spec.NodeName]
			return there || !controlplane.Ready(&p)
		})) == pods
	})
	for node, bare := range lost {
		if bare { // nobody else deletes it
			s.must(s.cluster.Client.CoreV1().Nodes().Delete(s.ctx, node, metav1.DeleteOptions{}))
		}
		s.waitGone(node)
	}
	return len(lost)
}

// isBare reports whether Karpenter has not made the node.
func isBare(n *corev1.Node) bool { return strings.HasPrefix(n.Spec.ProviderID, "aws:") }
