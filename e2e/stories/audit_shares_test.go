package stories

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/sqsemu"
)

// Two workloads are on instances of one type in one zone, and EC2 takes these: nothing of either is
// left for a while. Then one is spread and the other is moved off spot, by the commands that `audit`
// prints, and the next loss takes a part of the first and nothing of the second.
func TestAuditOfShares(t *testing.T) {
	s := newStory(t, controlplane.Options{})
	first := []*corev1.Node{s.offered("first", "eu-west-1a", controlplane.Spot), s.offered("first", "eu-west-1a", controlplane.Spot)}
	for name, replicas := range map[string]int{"herd": 4, "pair": 2} {
		ready, stop := 3*time.Second, time.Second
		_, err := s.cluster.RunStatefulSet(s.ctx, controlplane.DeploymentSpec{
			Name: name, Replicas: replicas, Grace: 5 * time.Second, Behaviour: controlplane.Behaviour{ReadyAfter: &ready, StopAfter: &stop},
		})
		s.must(err)
		_, err = s.cluster.WaitReady(s.ctx, "default", name, replicas)
		s.must(err)
	}
	found, fixes := s.auditOf("SH206", "SH207")
	if want := []string{"SH206 statefulset/herd", "SH206 statefulset/pair", "SH207 statefulset/herd", "SH207 statefulset/pair"}; !slices.Equal(found, want) {
		t.Fatalf("audit finds %q, want %q", found, want)
	}

	for range 2 {
		s.offered("safe", "eu-west-1b", controlplane.OnDemand)
	}
	_, queue := s.drill()
	herd, pair := s.watchReady("herd"), s.watchReady("pair")
	s.lose(queue, first...)
	if herd() > 0 || pair() > 0 {
		t.Errorf("at the fewest %d of herd and %d of pair were ready, want none as audit says", herd(), pair())
	}

	second := s.offered("second", "eu-west-1a", controlplane.Spot)
	s.offered("third", "eu-west-1c", controlplane.Spot)
	s.fix([]string{fixes[0], fixes[3]})
	s.eventually("all pods as they are now wanted", func() bool {
		found, _ = s.auditOf("SH206", "SH207")
		return len(found) == 0 && s.rolledOut()
	})
	herd, pair = s.watchReady("herd"), s.watchReady("pair")
	s.lose(queue, second)
	if herd() < 2 || pair() < 2 {
		t.Errorf("at the fewest %d of herd and %d of pair were ready, want 2 of each now", herd(), pair())
	}
}

// offered is a node of an instance type, as a provisioner labels it.
func (s *story) offered(prefix, zone, capacity string) *corev1.Node {
	s.Helper()
	nodes, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 1, Prefix: prefix, Labels: map[string]string{
		corev1.LabelInstanceTypeStable: "m5.large", corev1.LabelTopologyZone: zone, "karpenter.sh/capacity-type": capacity,
	}})
	s.must(err)
	return nodes[0]
}

// lose interrupts nodes at once, and deletes them when they are drained.
func (s *story) lose(queue *sqsemu.Queue, nodes ...*corev1.Node) {
	s.Helper()
	for _, n := range nodes {
		interrupt(queue, n.Name, 40*time.Second)
	}
	for _, n := range nodes {
		for _, service := range []string{"herd", "pair"} {
			s.eventually("an empty node", func() bool { return len(s.podsOn(n.Name, service)) == 0 })
		}
		s.must(s.cluster.Client.CoreV1().Nodes().Delete(s.ctx, n.Name, metav1.DeleteOptions{}))
	}
	for service, n := range map[string]int{"herd": 4, "pair": 2} {
		_, err := s.cluster.WaitReady(s.ctx, "default", service, n)
		s.must(err)
	}
}
