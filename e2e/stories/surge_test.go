package stories

import (
	"testing"
	"time"

	"spot-handler/drain"
	"spot-handler/e2e/controlplane"
)

// The headline: a Deployment that allows surge loses not one ready pod while its node
// goes and the next one boots, under a budget that lets pods go one at a time.
func TestSurgeMovesAServiceWithoutADip(t *testing.T) {
	s := tell(t, controlplane.Options{Karpenter: true})
	s.pools(8 * time.Second)
	node := s.node("batch")
	s.service("web", 8, func(d *controlplane.DeploymentSpec) {
		d.BudgetMaxUnavailable = budget(1)
		d.MaxSurge = budget(8)
		d.MinReadySeconds = 3 // for the budget's controller to count a successor before it is made use of
	})
	if on := len(s.podsOn(node.Name, "web")); on != 8 {
		t.Fatalf("%d pods on the node, want all 8", on)
	}
	imds := s.imds(node)
	d := s.runIMDS(imds, node)
	fewest := s.watchReady("web")

	imds.Interrupt("terminate", time.Now().Add(120*time.Second))
	drained := s.waitLine(d, "drained")
	s.waitGone(node.Name)
	if n := fewest(); n < 8 {
		t.Errorf("only %d pods were ready at some time, want never less than 8", n)
	}
	if drained["graceful"] != 8.0 {
		t.Errorf("not all 8 pods left gracefully: %v", drained)
	}
	if refused := s.metric(d, `spot_handler_evictions_total{code="429"}`); refused != 0 {
		t.Errorf("%v evictions refused by the budget, want none: the successors were there", refused)
	}
	pods, err := s.cluster.WaitReady(s.ctx, "default", "web", 8)
	s.must(err)
	for _, p := range pods {
		if p.Labels[drain.SurgedLabel] != "" {
			t.Errorf("pod %s is surged and still there", p.Name)
		}
	}
	if claims := s.claims("batch-fallback", ""); len(claims) != 1 {
		t.Errorf("claims %v, want one", claims)
	}
}
