package stories

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
)

// Of two DaemonSets one asks to go last: its pod is evicted when the service's pods have gone, long before its
// eviction deadline, and only once, though its DaemonSet puts another one on the node, and though the leader dies
// meanwhile. The other's stays. Neither asks the replacement for room.
func TestDaemonThatAsksLeavesLast(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true, Audit: true})
	s.pools(5 * time.Second)
	node := s.node("batch")
	const stop = 3 * time.Second
	service := controlplane.DeploymentSpec{Name: "web", Replicas: 2}
	quick(&service)
	service.StopAfter = new(stop)
	_, err := s.cluster.RunDeployment(s.ctx, service)
	s.must(err)
	web, err := s.cluster.WaitReady(s.ctx, "", "web", 2)
	s.must(err)
	shipper := s.daemonSet("shipper", func(of *corev1.PodTemplateSpec) {
		of.Annotations = controlplane.Behaviour{StopAfter: new(10 * time.Second)}.Annotations() // the leader dies meanwhile
		of.Annotations["spot-handler/when"] = "last"
	}).UID
	proxy := s.daemonSet("proxy", func(*corev1.PodTemplateSpec) {}).UID
	server, queue := s.sqs()
	first := s.runQueue(server, queue)

	interrupt(queue, node.Name, 2*time.Minute)
	s.eventually("eviction of the log shipper", func() bool { return len(s.evicted()) == len(web)+1 })
	at := map[types.UID]time.Time{}
	for _, r := range s.evicted() {
		at[types.UID(r.RequestObject.DeleteOptions.Preconditions.UID)] = r.RequestReceivedTimestamp
	}
	for _, pod := range web {
		if last := at[shipper]; last.Sub(at[pod.UID]) < stop {
			t.Errorf("the log shipper was evicted at %s, and %s at %s, which takes %s to end", last, pod.Name, at[pod.UID], stop)
		}
	}
	if early := time.Until(at[shipper].Add(time.Minute)); early < 0 {
		t.Errorf("the log shipper was evicted %s ago", early)
	}
	if !at[proxy].IsZero() {
		t.Error("the proxy was evicted, which does not ask for it")
	}
	first.Kill()
	s.waitLine(s.runQueue(server, queue), "drained")
	if n := len(s.evicted()); n != len(web)+1 {
		t.Errorf("%d evictions, want %d: one of each pod", n, len(web)+1)
	}
}
