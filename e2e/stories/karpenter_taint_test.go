package stories

import (
	"testing"

	"spot-handler/e2e/controlplane"
)

// Why spot-handler does not taint the other nodes of a lost offering: ExistingNode.CanAdd in Karpenter's
// pkg/controllers/provisioning/scheduling takes a node with a PreferNoSchedule taint for full. Each team
// has a node with a pod, and one with room for it. Without the taint Karpenter deletes the first, and
// the pod moves to the second. With the taint Karpenter launches an on-demand node for the pod, and
// deletes that node only when the taint is gone.
func TestKarpenterTakesTaintedNodesForFull(t *testing.T) {
	s := newStory(long(t), controlplane.Options{Karpenter: true})
	teams := []string{"plain", "tainted"}
	left, room := map[string]string{}, map[string]string{} // Nodes of the team: with its pod, and with room for it
	moves := map[string]*moving{}
	for _, name := range teams {
		s.must(s.cluster.CreatePools(s.ctx,
			controlplane.PoolSpec{Name: name, CPUs: 8, Labels: team(name)},
			controlplane.PoolSpec{Name: name + "-od", CPUs: 2, Labels: team(name), Capacity: []string{controlplane.OnDemand}, ConsolidateAfter: "0s"}))
		left[name] = s.node(name).Name
		s.service(name, 1, func(d *controlplane.DeploymentSpec) { d.NodeSelector = team(name) })
		moves[name] = s.watchMoves(name, 1)
		room[name] = s.node(name).Name
		s.annotate(room[name], `"`+doNotDisrupt+`":"true"`) // it has no pod yet
	}
	s.patchNode(room["tainted"], "", `{"spec":{"taints":[{"key":"example.com/lost-offering","effect":"PreferNoSchedule"}]}}`)
	for _, name := range teams {
		s.patchPool(name, `{"spec":{"disruption":{"consolidateAfter":"0s"}}}`)
	}

	for _, name := range teams {
		s.waitGone(left[name])
	}
	if home := s.homeOf("plain", controlplane.Spot, 1); home != room["plain"] {
		t.Errorf("without a taint the pod is on %s, want %s", home, room["plain"])
	}
	launched := s.homeOf("tainted", controlplane.OnDemand, 1)

	s.patchNode(room["tainted"], "", `{"spec":{"taints":null}}`)
	s.waitGone(launched)
	if home := s.homeOf("tainted", controlplane.Spot, 1); home != room["tainted"] {
		t.Errorf("after the taint was removed the pod is on %s, want %s", home, room["tainted"])
	}
	plain, _ := moves["plain"].sum()
	tainted, _ := moves["tainted"].sum()
	if plain != 1 || tainted != 2 {
		t.Errorf("%.0f moves of the pod without a taint and %.0f with it, want 1 and 2", plain, tainted)
	}
}
