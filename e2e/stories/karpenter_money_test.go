package stories

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/karpenter"
)

// A kubelet drops the replacement from its Node's record, and writes labels of another pool, type and zone. Its NodeClaim
// says what it is: it gets the replacement that it had, from its own pool's fallback, also from the next process.
func TestANodeBuysOneReplacement(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	s.must(s.cluster.CreatePools(s.ctx,
		controlplane.PoolSpec{Name: "spot"},
		controlplane.PoolSpec{Name: "good", Capacity: []string{controlplane.OnDemand}},
		controlplane.PoolSpec{Name: "lure"},
		controlplane.PoolSpec{Name: "dear", Capacity: []string{controlplane.OnDemand}},
	))
	nodes, err := s.cluster.CreateNodes(s.ctx, "spot", 1)
	s.must(err)
	options := karpenter.Options{Dynamic: s.cluster.Dynamic, FallbackNodePools: map[string]string{"spot": "good", "lure": "dear"}}
	r, end := s.replacerWith(options)
	rec := spotRecord(nodes[0], time.Now().Add(2*time.Minute))
	first := r.ask(nodes[0], &rec)
	if first.Pool != "good" || first.State != provisioner.StateRequested {
		t.Fatalf("replacement %+v, want one of pool good", first)
	}

	liar := nodes[0].DeepCopy()
	liar.Labels["karpenter.sh/nodepool"] = "lure"
	liar.Labels[corev1.LabelInstanceTypeStable], liar.Labels[corev1.LabelTopologyZone] = "p5.48xlarge", "nowhere"
	truth, ok := offerings.Of(nodes[0])
	made, err := r.pools.AsMade(s.ctx, liar)
	s.must(err)
	if of, known := offerings.Of(made); !ok || !known || of != truth {
		t.Errorf("its offering is %v, want %v", of, truth)
	}
	rec = spotRecord(liar, time.Now().Add(2*time.Minute))
	if again := r.ask(liar, &rec); again.Name != first.Name {
		t.Errorf("replacement %+v, want %s", again, first.Name)
	}
	end()
	next, _ := s.replacerWith(options)
	rec = spotRecord(liar, time.Now().Add(2*time.Minute))
	if again := next.ask(liar, &rec); again.Name != first.Name {
		t.Errorf("the next process: replacement %+v, want %s", again, first.Name)
	}
	list, err := s.cluster.Dynamic.Resource(controlplane.NodeClaims).List(s.ctx, metav1.ListOptions{LabelSelector: karpenter.ReplacesLabel})
	s.must(err)
	if len(list.Items) != 1 {
		t.Errorf("%d NodeClaims replace the node, want one", len(list.Items))
	}
}
