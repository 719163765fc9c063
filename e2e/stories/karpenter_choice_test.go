package stories

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// selecting is onePod with a node selector.
func selecting(name, key, value string) *corev1.Pod {
	p := onePod().Moving[0].DeepCopy()
	p.Name, p.Spec.NodeSelector = name, map[string]string{key: value}
	return p
}

// Nobody has named a fallback: of the pools that suit, the better one is at its limit,
// and the other gives the node. What cannot run there is named, and left out.
func TestPoolIsChosen(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	od := []string{controlplane.OnDemand}
	s.must(s.cluster.CreatePools(s.ctx,
		controlplane.PoolSpec{Name: "spot", Weight: 100, Labels: map[string]string{"team": "web"}},
		controlplane.PoolSpec{Name: "mixed", Weight: 90, Capacity: []string{controlplane.Spot, controlplane.OnDemand}, Labels: map[string]string{"team": "ml"}},
		controlplane.PoolSpec{Name: "a-other-spot", Weight: 60, Labels: map[string]string{"team": "web"}},
		controlplane.PoolSpec{Name: "b-tainted", Weight: 60, Capacity: od, Labels: map[string]string{"team": "web"},
			Taints: []corev1.Taint{{Key: "example.com/gpu", Effect: corev1.TaintEffectNoSchedule}}},
		controlplane.PoolSpec{Name: "full", Weight: 50, Capacity: od, Labels: map[string]string{"team": "web"}, Limits: map[string]string{"cpu": "400m"}},
		controlplane.PoolSpec{Name: "good", Weight: 10, Capacity: od, Labels: map[string]string{"team": "web"}, Boot: time.Second},
		controlplane.PoolSpec{Name: "unlabeled", Weight: 20, Capacity: od},
	))
	node, mixed := s.node("spot"), s.node("mixed")
	r := s.replacer(s.cluster.Dynamic, nil)

	free := selecting("free", "team", "web")
	free.Spec.Tolerations = nil
	need := provisioner.Need{Moving: []*corev1.Pod{
		selecting("needs-spot", "karpenter.sh/capacity-type", "spot"), selecting("needs-source", "karpenter.sh/nodepool", "spot"), free,
	}}
	rec := spotRecord(node, time.Now().Add(2*time.Minute))
	got := r.askFor(node, &rec, need)
	if got.State != provisioner.StateRequested || got.Pool != "good" {
		t.Fatalf("replacement %+v, want one requested in pool good", got)
	}
	for _, want := range []string{"without 2 of 3 pods", "default/needs-source needs karpenter.sh/nodepool=spot", "default/needs-spot needs karpenter.sh/capacity-type=spot"} {
		if !strings.Contains(got.Reason, want) {
			t.Errorf("reason %q, want %q in it", got.Reason, want)
		}
	}
	if cpu, _, _ := unstructured.NestedString(s.claim(got.Name).Object, "spec", "resources", "requests", "cpu"); cpu != "500m" {
		t.Errorf("the claim asks for %s of cpu, want that of one pod, 500m", cpu)
	}
	if got = r.settle(node, &rec); got.State != provisioner.StateReady {
		t.Fatalf("replacement %+v, want Ready", got)
	}

	// Pods that can go nowhere else are said, and not replaced.
	pinned := spotRecord(node, time.Now().Add(2*time.Minute))
	pinned.Instance = "i-pinned"
	got = r.askFor(node, &pinned, provisioner.Need{Moving: need.Moving[:2]})
	if got.State == provisioner.StateRequested || !strings.Contains(got.Reason, "default/needs-spot needs karpenter.sh/capacity-type=spot") {
		t.Errorf("replacement %+v, want none, with the pods and why", got)
	}

	// A pool of both kinds replaces its own spot nodes by on-demand ones, but where the node is
	// only at risk, by a spot node that is not. Of one instance type, that is another zone.
	both := spotRecord(mixed, time.Now().Add(2*time.Minute))
	webless := provisioner.Need{Moving: []*corev1.Pod{selecting("ml", "team", "ml")}}
	if got = r.askFor(mixed, &both, webless); got.Pool != "mixed" || got.State != provisioner.StateRequested {
		t.Fatalf("replacement %+v, want one requested in pool mixed", got)
	}
	s.eventually("on-demand node in pool mixed", func() bool {
		name, _, _ := unstructured.NestedString(s.claim(got.Name).Object, "status", "nodeName")
		if name == "" {
			return false
		}
		n, err := s.cluster.Client.CoreV1().Nodes().Get(s.ctx, name, metav1.GetOptions{})
		return err == nil && n.Labels["karpenter.sh/capacity-type"] == controlplane.OnDemand
	})
	risk := spotRecord(mixed, time.Time{})
	risk.Kind, risk.Instance = interruption.RebalanceRecommendation, "i-risk"
	if got = r.askFor(mixed, &risk, webless); got.Pool != "mixed" || got.Capacity != controlplane.Spot {
		t.Fatalf("replacement %+v on a rebalance recommendation, want another spot node of pool mixed", got)
	}
	s.eventually("spot node in another zone", func() bool {
		labels := s.claim(got.Name).GetLabels()
		zone := labels[corev1.LabelTopologyZone]
		return labels["karpenter.sh/capacity-type"] == controlplane.Spot && zone != "" && zone != mixed.Labels[corev1.LabelTopologyZone]
	})
}

// A fallback annotation that names no pool is a Warning on the Node, and not a guess,
// as is a workload that can run nowhere else. The nodes are drained all the same.
func TestNoReplacementIsSaid(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	s.must(s.cluster.CreatePools(s.ctx,
		controlplane.PoolSpec{Name: "misnamed", Annotations: map[string]string{"spot-handler/fallback-nodepool": "nowhere"}},
		controlplane.PoolSpec{Name: "spot", Weight: 50},
		controlplane.PoolSpec{Name: "on-demand", Capacity: []string{controlplane.OnDemand}},
	))
	misnamed, spot := s.node("misnamed"), s.node("spot")
	s.service("web", 1, func(d *controlplane.DeploymentSpec) { d.Pool = "misnamed" })
	s.service("pinned", 1, func(d *controlplane.DeploymentSpec) {
		d.NodeSelector = map[string]string{"karpenter.sh/capacity-type": "spot", "karpenter.sh/nodepool": "spot"}
	})
	server, queue := s.sqs()
	d := s.runQueue(server, queue)
	for node, want := range map[*corev1.Node][]string{
		misnamed: {"ReplacementFailed", "NodePool nowhere, named by annotation spot-handler/fallback-nodepool of NodePool misnamed, does not exist"},
		spot:     {"NoReplacement", "default/pinned-"},
	} {
		queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-"+node.Name, controlplane.InstanceID(node.Name), time.Now()))
		s.eventually("Event "+want[0], func() bool {
			for _, e := range s.events(want[0], node.Name) {
				if e.Type == corev1.EventTypeWarning && strings.Contains(e.Message, want[1]) {
					return true
				}
			}
			return false
		})
		s.waitGone(node.Name)
	}
	s.eventually("one line for each node", func() bool { return len(d.Lines("provisioner chosen")) == 2 })
	for _, result := range []string{"failed", "unsupported"} {
		if n := s.metric(d, `spot_handler_replacements_total{backend="karpenter",result="`+result+`"}`); n != 1 {
			t.Errorf("%v counted as %s, want 1", n, result)
		}
	}
	if claims := s.claims("on-demand", ""); len(claims) != 0 {
		t.Errorf("claims %v, want none", claims)
	}
}
