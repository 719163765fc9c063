package stories

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
)

// An eviction was granted and cut short, as when the daemon is killed at the wrong
// millisecond: the budget is charged and the pod lives. The API server refuses it for
// two minutes from then on, and yet it is moved in time.
func TestGrantedEvictionIsCarriedOut(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	nodes, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 1})
	s.must(err)
	pod := s.service("web", 3, func(d *controlplane.DeploymentSpec) { d.BudgetMinAvailable = budget(2) })[0]
	spare, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 1, Prefix: "spare"})
	s.must(err)

	// What the first half of an eviction leaves behind.
	grant := fmt.Sprintf(`{"status":{"disruptionsAllowed":0,"disruptedPods":{%q:%q}}}`, pod.Name, time.Now().UTC().Format(time.RFC3339))
	_, err = s.cluster.Client.PolicyV1().PodDisruptionBudgets("default").Patch(s.ctx, "web", types.MergePatchType, []byte(grant), metav1.PatchOptions{}, "status")
	s.must(err)

	server, queue := s.sqs()
	d := s.runQueue(server, queue, "--drain-strategy=hold") // a surge would not have to ask for the charge
	queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-1", controlplane.InstanceID(nodes[0].Name), time.Now()))

	drained := s.waitLine(d, "drained")
	if drained["graceful"] != 3.0 {
		t.Errorf("want 3 graceful: %v", drained)
	}
	if slack, _ := drained["slack_seconds"].(float64); slack < 60 {
		t.Errorf("drained with %v s to spare: the budget stayed charged", slack)
	}
	if n := len(d.Lines("carried out an eviction")); n != 1 {
		t.Errorf("%d evictions carried out, want 1", n)
	}
	if evictions := s.evictions(); evictions[string(pod.UID)] != 0 {
		t.Error("the API server evicted the pod itself: the story did not happen")
	}
	pods, err := s.cluster.WaitReady(s.ctx, "default", "web", 3)
	s.must(err)
	for _, p := range pods {
		if p.Spec.NodeName != spare[0].Name || p.Status.Phase != corev1.PodRunning {
			t.Errorf("pod %s is on %s", p.Name, p.Spec.NodeName)
		}
	}
}
