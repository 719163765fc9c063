package stories

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/handler/interruption"
)

// The leader's own pod is on the node that goes. It is moved last; it is stopped by
// that, as a kubelet stops it, and the other replica sees the rest through.
func TestOwnPodGoesLast(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	node := s.bare("node", 1, 8)[0]
	stop := 10 * time.Second // longer than anybody takes to see that it is to end
	handler := controlplane.DeploymentSpec{Namespace: namespace, Name: "handler", Replicas: 1, CPU: "500m"}
	quick(&handler)
	handler.StopAfter, handler.Grace = &stop, 30*time.Second
	_, err := s.cluster.RunDeployment(s.ctx, handler)
	s.must(err)
	pods, err := s.cluster.WaitReady(s.ctx, namespace, handler.Name, 1)
	s.must(err)
	own := pods[0]
	others := s.service("web", 3, func(d *controlplane.DeploymentSpec) {
		quick(d)
		d.MaxSurge, d.BudgetMinAvailable = never, budget(2) // one after the other
	})
	s.bare("spare", 1, 8)
	server, queue := s.sqs()
	leader := s.runReplica(server, queue, "--pod-name="+own.Name)
	s.waitLine(leader, "leading")
	follower := s.runReplica(server, queue, "--pod-name=another")
	s.background(func(ctx context.Context) {
		_, err := s.cluster.WaitPods(ctx, namespace, controlplane.Selector(handler.Name), func(pods []*corev1.Pod) bool {
			for _, p := range pods {
				if p.UID == own.UID && p.DeletionTimestamp != nil {
					return true
				}
			}
			return false
		})
		if err == nil {
			leader.Stop()
		}
	})

	interrupt(queue, node.Name, 100*time.Second)
	rec := s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Released })
	if rec.Pods == nil || rec.Pods.Total != 4 || rec.Pods.Graceful != 4 {
		t.Errorf("record %s, want 4 graceful", rec)
	}
	s.wantEachOnce(uids(append(others, own)))
	evicted := s.evicted()
	if last := evicted[len(evicted)-1]; last.RequestObject.DeleteOptions.Preconditions.UID != string(own.UID) {
		t.Errorf("the last pod to go was %s, want our own, %s", last.ObjectRef.Name, own.Name)
	}
	if code := s.waitEnd(leader); code != 0 {
		t.Errorf("the leader ended with code %d, want 0", code)
	}
	if line := s.waitLine(follower, "drained"); line["graceful"] != 4.0 {
		t.Errorf("want 4 graceful: %v", line)
	}
}
