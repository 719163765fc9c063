package stories

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
)

// With --replacement=when-needed the pods of a lost node go to nodes that are there, and nothing
// is bought. Of a second node they fit too, but the room goes while they move: then a
// replacement is requested after all, and no pod is without a place.
func TestNoReplacementWhereThereIsRoom(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true, Audit: true})
	s.pools(2 * time.Second)
	nodes, err := s.cluster.CreateNodes(s.ctx, "batch", 3)
	s.must(err)
	const pods = 12
	s.service("web", pods, func(d *controlplane.DeploymentSpec) { d.CPU = "1" })
	fewest := s.watchReady("web")
	server, queue := s.sqs()
	d := s.runQueue(server, queue, "--replacement=when-needed")
	lose := func(node string) {
		queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-"+node, controlplane.InstanceID(node), time.Now()))
	}

	began := time.Now()
	lose(nodes[0].Name)
	s.waitGone(nodes[0].Name)
	t.Logf("the node is gone after %s", time.Since(began))
	if claims := s.claims("batch-fallback", ""); len(claims) != 0 {
		t.Errorf("claims %v, want none", claims)
	}
	_, err = s.cluster.WaitReady(s.ctx, "default", "web", pods)
	s.must(err)
	if n := s.metric(d, `spot_handler_replacements_total{backend="spare",result="ready"}`); n != 1 {
		t.Errorf("%v nodes without a replacement, want 1", n)
	}

	lose(nodes[1].Name)
	s.eventually("second promise of room", func() bool { return len(d.Lines("no replacement needed")) == 2 })
	_, err = s.cluster.Client.CoreV1().Nodes().Patch(s.ctx, nodes[2].Name, types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
	s.must(err)
	s.waitGone(nodes[1].Name)
	if claims := s.claims("batch-fallback", controlplane.InstanceID(nodes[1].Name)); len(claims) != 1 {
		t.Errorf("claims %v, want one for the node whose room has gone", claims)
	}
	_, err = s.cluster.WaitReady(s.ctx, "default", "web", pods)
	s.must(err)
	if n := fewest(); n < pods {
		t.Errorf("%d of %d were ready, want all", n, pods)
	}
	looks := s.requests(func(r request) bool { return r.Verb == "list" && r.ObjectRef.Resource == "nodes" })
	t.Logf("%d lists of nodes, the index's included", len(looks))
}
