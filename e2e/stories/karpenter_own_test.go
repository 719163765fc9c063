package stories

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
)

// Karpenter's own interruption queue acts on the same notices: it deletes the claim of
// one node seconds before ours comes, and of another in the same moment. For the first
// we ask only for what Karpenter leaves behind, the pods that ask not to be disrupted
// and those whose budget never lets them go; for the second there is one claim of ours
// at the most, beside one of Karpenter's at the most. Each is said once.
func TestKarpenterDeletesTheClaimItself(t *testing.T) {
	s := newStory(long(t), controlplane.Options{Karpenter: true})
	s.must(s.cluster.CreatePools(s.ctx,
		controlplane.PoolSpec{Name: "early", Weight: 100, CPUs: 16, Labels: map[string]string{"team": "early"}, Annotations: map[string]string{"spot-handler/fallback-nodepool": "early-fallback"}},
		controlplane.PoolSpec{Name: "early-fallback", CPUs: 16, Capacity: []string{controlplane.OnDemand}, Labels: map[string]string{"team": "early"}},
		controlplane.PoolSpec{Name: "same", Weight: 100, CPUs: 16, Labels: map[string]string{"team": "same"}, Annotations: map[string]string{"spot-handler/fallback-nodepool": "same-fallback"}},
		controlplane.PoolSpec{Name: "same-fallback", CPUs: 16, Capacity: []string{controlplane.OnDemand}, Labels: map[string]string{"team": "same"}},
	))
	early, same := s.node("early"), s.node("same")
	on := func(team string, more func(*controlplane.DeploymentSpec)) func(*controlplane.DeploymentSpec) {
		return func(d *controlplane.DeploymentSpec) {
			d.NodeSelector = map[string]string{"team": team}
			if more != nil {
				more(d)
			}
		}
	}
	s.service("movable", 3, on("early", nil))
	s.service("pinned", 1, on("early", func(d *controlplane.DeploymentSpec) {
		d.Grace = 5 * time.Second
		d.Change = func(d *appsv1.Deployment) {
			d.Spec.Template.Annotations["karpenter.sh/do-not-disrupt"] = "true"
		}
	}))
	s.service("blocked", 2, on("early", func(d *controlplane.DeploymentSpec) {
		d.BudgetMaxUnavailable, d.Grace = budget(0), 5*time.Second
	}))
	s.service("web", 4, on("same", nil))
	server, queue := s.sqs()
	d := s.runQueue(server, queue, "--drain-strategy=hold")
	claims := s.cluster.Dynamic.Resource(controlplane.NodeClaims)
	// EC2's notice is a minute old when it comes, which shortens the story.
	at := time.Now().Add(-time.Minute)

	s.must(claims.Delete(s.ctx, early.OwnerReferences[0].Name, metav1.DeleteOptions{}))
	s.eventually("Karpenter's taint", func() bool { return hasTaint(s.lastSeen(early.Name), "karpenter.sh/disrupted") })
	s.eventually("a claim that has been deleting for a while", func() bool {
		claim, err := claims.Get(s.ctx, early.OwnerReferences[0].Name, metav1.GetOptions{})
		return err == nil && claim.GetDeletionTimestamp() != nil && time.Since(claim.GetDeletionTimestamp().Time) > 2*time.Second
	})
	queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-early", controlplane.InstanceID(early.Name), at))

	s.must(claims.Delete(s.ctx, same.OwnerReferences[0].Name, metav1.DeleteOptions{}))
	queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-same", controlplane.InstanceID(same.Name), at))

	s.eventually("a claim for what is left behind", func() bool { return len(s.claims("early-fallback", "")) == 1 })
	ours := s.claim(s.claims("early-fallback", "")[0])
	if cpu, _, _ := unstructured.NestedString(ours.Object, "spec", "resources", "requests", "cpu"); cpu != "1500m" {
		t.Errorf("the claim asks for %s of cpu, want that of three pods, 1500m", cpu)
	}
	s.eventually("Event on the NodeClaim", func() bool { return len(s.events("ReplacesInterruptedNode", ours.GetName())) == 1 })
	s.waitGone(early.Name)
	s.waitGone(same.Name)
	said := 0
	for _, line := range d.Lines("provisioner chosen") {
		if reason, _ := line["reason"].(string); line["node"] == early.Name && strings.Contains(reason, "only for the 3 of ") {
			said++
		}
	}
	if said != 1 {
		t.Errorf("said %d times what the replacement is for, want once", said)
	}
	for name, n := range map[string]int{"movable": 3, "pinned": 1, "blocked": 2, "web": 4} {
		_, err := s.cluster.WaitReady(s.ctx, "default", name, n)
		s.must(err)
	}
	if n := len(s.claims("same-fallback", "")); n > 1 {
		t.Errorf("%d claims of ours for the node that was deleted in the same moment, want one at most", n)
	}
	list, err := claims.List(s.ctx, metav1.ListOptions{LabelSelector: "karpenter.sh/nodepool in (same,same-fallback)"})
	s.must(err)
	t.Logf("%d nodes for the four pods of web", len(list.Items))
	if n := len(list.Items); n < 1 || n > 2 { // the two may decide in the same second, each once
		t.Errorf("%d nodes for the four pods of web, want one, or one of each at the most", n)
	}
}

// After a rebalance recommendation there is no hurry for anybody: what stays on the node, as
// pods of DaemonSets and those that tolerate the interruption do, has its own grace period
// when Karpenter ends the node, and is not deleted with a second of it.
func TestNoHurryLeavesWhatStaysItsGrace(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true, Audit: true})
	s.pools(2 * time.Second)
	node := s.node("batch")
	const grace = 20 * time.Second
	stays := s.service("stays", 1, func(d *controlplane.DeploymentSpec) {
		stop := 10 * time.Second
		quick(d)
		d.StopAfter, d.Grace = &stop, grace
		d.Tolerations = []corev1.Toleration{{Key: interruption.TaintKey, Operator: corev1.TolerationOpExists}}
	})[0]
	s.service("web", 2, quick)
	_, queue := s.drill()

	queue.Send(daemon.EventBridge(daemon.Rebalance, "event-1", controlplane.InstanceID(node.Name), time.Now()))
	s.waitGone(node.Name)
	ended := s.allRequests(func(r request) bool {
		return r.ObjectRef.Resource == "pods" && r.ObjectRef.Name == stays.Name && strings.Contains(r.UserAgent, "karpenter") && r.ResponseStatus.Code < 300 &&
			(r.Verb == "delete" || r.ObjectRef.Subresource == "eviction")
	})
	if len(ended) == 0 {
		t.Error("Karpenter has not ended the pod that stayed")
	}
	for _, r := range ended {
		for _, g := range []*int64{r.RequestObject.GracePeriodSeconds, r.RequestObject.DeleteOptions.GracePeriodSeconds} {
			if g != nil && *g < int64(grace.Seconds()) {
				t.Errorf("%s %s with %d s of grace, want its own %s", r.Verb, r.ObjectRef.Subresource, *g, grace)
			}
		}
	}
}
