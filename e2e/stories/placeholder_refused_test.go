package stories

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// What placeholders need is not there: that is said once, and the nodes are drained as
// if there were no such thing, with nothing left behind.
func TestPlaceholdersRefused(t *testing.T) {
	s := newStory(t, controlplane.Options{})
	s.accounts(inBothModes, "kind: PriorityClass")
	nodes := s.spot(3, 2)
	s.service("web", 9, func(d *controlplane.DeploymentSpec) { d.Spread = corev1.LabelHostname })
	server, queue := s.sqs()

	// The pods of a node have room on the others, as long as these last.
	for i, tt := range []struct {
		reason string
		damage func()
	}{
		{"no PriorityClass with name spot-handler-placeholder was found", func() {}},
		{"exceeded quota: none", func() {
			s.accounts(inBothModes)
			_, err := s.cluster.Client.CoreV1().ResourceQuotas(holdNamespace).Create(s.ctx, &corev1.ResourceQuota{
				ObjectMeta: metav1.ObjectMeta{Name: "none"},
				Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}},
			}, metav1.CreateOptions{})
			s.must(err)
			s.eventually("the quota counts", func() bool {
				q, err := s.cluster.Client.CoreV1().ResourceQuotas(holdNamespace).Get(s.ctx, "none", metav1.GetOptions{})
				return err == nil && len(q.Status.Hard) > 0
			})
		}},
		{"cannot create resource \"podtemplates\"", func() {
			s.must(s.cluster.Client.RbacV1().Roles(holdNamespace).Delete(s.ctx, "spot-handler-queue", metav1.DeleteOptions{}))
		}},
	} {
		tt.damage()
		d := s.holder(server, queue, alone)
		instance := controlplane.InstanceID(nodes[i].Name)
		queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-of-"+instance, instance, time.Now()))
		rec := s.waitRecord(nodes[i].Name, func(r interruption.Record) bool { return r.Phase == interruption.Released })
		if r := rec.Replacement; r == nil || r.State != provisioner.StateUnsupported || !strings.Contains(r.Reason, tt.reason) {
			t.Errorf("record %s, want no replacement, as %s", rec, tt.reason)
		}
		if rec.Pods == nil || rec.Pods.Graceful == 0 || rec.Pods.Graceful != rec.Pods.Total {
			t.Errorf("record %s, want all pods graceful", rec)
		}
		lines := d.Lines("no placeholders")
		if len(lines) != 1 || !strings.Contains(lines[0]["reason"].(string), tt.reason) {
			t.Errorf("the log says %v, want once: %s", lines, tt.reason)
		}
		s.noneHeld()
		if code := d.Stop(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
}

// Karpenter as the autoscaler of a node that it did not make: a real one, which sees the
// placeholders, makes one node for them in the pool that the selector names, and none
// for their pods' replacements.
func TestPlaceholdersMakeKarpenterMakeRoom(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	s.accounts(inBothModes)
	s.pools(4 * time.Second)
	node := s.spot(1, 8)[0]
	const pods = 8
	s.service("web", pods, func(d *controlplane.DeploymentSpec) { d.BudgetMinAvailable = budget(pods - 2) })
	server, queue := s.sqs()
	s.holder(server, queue, "--fallback-selector=karpenter.sh/nodepool=batch-fallback")
	queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-1", controlplane.InstanceID(node.Name), time.Now()))

	rec := s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Released })
	if r := rec.Replacement; r == nil || r.Backend != provisioner.Placeholder || r.State != provisioner.StateReady || rec.Pods.Graceful != pods {
		t.Errorf("record %s, want a replacement that is Ready and %d pods graceful", rec, pods)
	}
	s.noneHeld()
	_, err := s.cluster.WaitReady(s.ctx, "default", "web", pods)
	s.must(err)
	list, err := s.cluster.Dynamic.Resource(controlplane.NodeClaims).List(s.ctx, metav1.ListOptions{})
	s.must(err)
	for _, claim := range list.Items {
		if pool := claim.GetLabels()["karpenter.sh/nodepool"]; pool != "batch-fallback" {
			t.Errorf("NodeClaim %s in pool %s", claim.GetName(), pool)
		}
	}
	if len(list.Items) != 1 {
		t.Errorf("%d NodeClaims, want 1", len(list.Items))
	}
}
