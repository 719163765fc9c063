package stories

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
)

// EC2's notice comes while the instance boots, and pods wait for it. The daemon that has taken
// the notice is killed, and the next gets it from the queue. The Node is cordoned as soon as it
// registers, before any of the pods is put on it; Karpenter launches another node for them, and
// the first is handed back. A notice about an instance of nobody stays until its deadline, and
// then goes as foreign.
func TestNoticeBeforeTheNode(t *testing.T) {
	s := newStory(long(t), controlplane.Options{Karpenter: true, Audit: true})
	if !s.readsNodeClasses() {
		t.Skip("kwok's provider of this Karpenter registers Nodes at once: no notice comes before its Node")
	}
	const boot = time.Minute // SQS hides the message of who was killed for half of it
	s.must(s.cluster.CreatePools(s.ctx, controlplane.PoolSpec{Name: "batch", CPUs: 16, Boot: boot}, controlplane.PoolSpec{Name: "quick", Weight: 100, CPUs: 16}))
	server, queue := s.sqs()
	first := s.runQueue(server, queue)
	claim, err := s.cluster.Launch(s.ctx, "batch")
	s.must(err)
	instance := controlplane.InstanceID(claim)
	_, err = s.cluster.RunDeployment(s.ctx, controlplane.DeploymentSpec{Name: "web", Replicas: 4, CPU: "500m"})
	s.must(err)
	queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-early", instance, time.Now()))
	s.eventually("second receipt", func() bool { return queue.Messages()[0].ReceiveCount == 2 })
	first.Kill()
	second := s.runQueue(server, queue)
	queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-foreign", "i-0123456789abcdef0", time.Now().Add(-75*time.Second)))

	var node *corev1.Node
	s.eventually("the Node", func() bool {
		list, err := s.cluster.Client.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{LabelSelector: interruption.InstanceIDLabel + "=" + instance})
		s.must(err)
		if len(list.Items) > 0 {
			node = &list.Items[0]
		}
		return node != nil
	})
	s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Kind == interruption.SpotInterruption })
	s.waitGone(node.Name)
	pods, err := s.cluster.WaitReady(s.ctx, "default", "web", 4)
	s.must(err)
	for _, p := range pods {
		if p.Spec.NodeName == node.Name {
			t.Errorf("pod %s is on the node that went", p.Name)
		}
	}
	bound, err := s.cluster.Client.CoreV1().Events("default").List(s.ctx, metav1.ListOptions{FieldSelector: fields.Set{"reason": "Scheduled"}.String()})
	s.must(err)
	t.Logf("%d pods were placed", len(bound.Items))
	if n := len(bound.Items); n != 4 {
		t.Errorf("%d pods were placed, want the four, each once", n)
	}
	created, cordoned := time.Time{}, time.Time{}
	for _, r := range s.allRequests(func(r request) bool { return r.ObjectRef.Resource == "nodes" && r.ResponseStatus.Code < 300 }) {
		switch {
		case r.Verb == "create" && r.ObjectRef.Name == node.Name:
			created = r.RequestReceivedTimestamp
		case r.Verb == "patch" && r.ObjectRef.Name == node.Name && strings.HasPrefix(r.UserAgent, "spot-handler/") && cordoned.IsZero():
			cordoned = r.RequestReceivedTimestamp
		}
	}
	t.Logf("cordoned %s after its registration", cordoned.Sub(created))
	if took := cordoned.Sub(created); took > 3*time.Second {
		t.Errorf("cordoned %s after its registration", took)
	}
	s.waitEmpty(queue)
	s.eventually("counts", func() bool {
		return s.metric(second, `spot_handler_early_notices_total{outcome="recorded"}`) == 1 &&
			s.metric(second, `spot_handler_early_notices_total{outcome="expired"}`) == 1 &&
			s.metric(second, `spot_handler_messages_total{outcome="foreign"}`) == 1
	})
}
