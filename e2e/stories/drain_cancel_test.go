package stories

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
)

// An interruption is cancelled while its pods are surged and their replacement pods have no room
// yet. The pods go back to their ReplicaSets, which delete the replacement pods, and the node is as
// it was: no service is affected.
func TestCanceledSurgeLeavesNoTrace(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	node := s.bare("node", 1, 4)[0]
	_, err := s.cluster.Client.CoreV1().Nodes().Patch(s.ctx, node.Name, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"mine":"yes"}},"spec":{"taints":[{"key":"mine","effect":"PreferNoSchedule"}]}}`), metav1.PatchOptions{})
	s.must(err)
	pods := s.service("web", 4, surge(3, func(d *controlplane.DeploymentSpec) { d.BudgetMinAvailable = budget(4) }))
	d, queue := s.drill()
	seen := s.watchSurge("default", "web")

	interrupt(queue, node.Name, 110*time.Second)
	s.waitSurged(3)
	s.annotate(node.Name, `"spot-handler/cancel":"true"`)
	s.wantAsBefore(node.Name, "web", pods)

	if line := s.waitLine(d, "interruption cancelled"); line["node"] != node.Name {
		t.Errorf("want a line about %s: %v", node.Name, line)
	}
	s.eventually("Event about the end", func() bool { return len(s.events("InterruptionCanceled", node.Name)) == 1 })
	if n := s.metric(d, `spot_handler_drains_total{kind="spot-interruption",result="canceled"}`); n != 1 {
		t.Errorf("%v drains counted as canceled, want 1", n)
	}
	for _, outcome := range []string{"graceful", "truncated", "forced", "left"} {
		if n := s.metric(d, `spot_handler_pods_total{kind="spot-interruption",outcome="`+outcome+`"}`); n != 0 {
			t.Errorf("%v pods counted as %s, want none", n, outcome)
		}
	}
	if _, ready := seen.worst(); ready < 4 {
		t.Errorf("only %d pods were ready at some moment, want never less than 4", ready)
	}
	if evictions := s.evictions(); len(evictions) != 0 {
		t.Errorf("evicted: %v", evictions)
	}
	after := s.lastSeen(node.Name)
	if after.Labels["mine"] != "yes" || !hasTaint(after, "mine") {
		t.Errorf("labels %v and taints %v: what others had set is gone", after.Labels, after.Spec.Taints)
	}
	// It can be interrupted again, by a notice that is at least a second later than the cancellation.
	queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-again", controlplane.InstanceID(node.Name), time.Now().Add(time.Second)))
	s.waitSurged(3)
}

// The process that surged pods is killed. While none runs, one interruption is cancelled, the record
// of another is removed, and of a third the Deployment is deleted too. The next process finishes all
// three, although their budgets never let a pod go.
func TestSurgedPodsAreFoundAfterACrash(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	type home struct {
		node    *corev1.Node
		service string
		pods    []*corev1.Pod
	}
	var homes []home
	for _, name := range []string{"cancelled", "forgotten", "ownerless"} {
		node := s.bare(name, 1, 4)[0]
		pods := s.service(name, 2, surge(2, func(d *controlplane.DeploymentSpec) {
			d.NodeSelector = map[string]string{corev1.LabelHostname: node.Name} // so replacement pods have no room
			d.BudgetMaxUnavailable = never
		}))
		homes = append(homes, home{node, name, pods})
	}
	server, queue := s.sqs()
	first := s.runQueue(server, queue)
	for _, h := range homes {
		interrupt(queue, h.node.Name, 110*time.Second)
	}
	s.waitSurged(6)
	s.waitEmpty(queue)
	first.Kill()

	canceled, forgotten, ownerless := homes[0], homes[1], homes[2]
	s.annotate(canceled.node.Name, `"spot-handler/cancel":"true"`)
	for _, h := range []home{forgotten, ownerless} {
		s.annotate(h.node.Name, `"`+interruption.Annotation+`":null`)
	}
	background := metav1.DeletePropagationBackground
	s.must(s.cluster.Client.AppsV1().Deployments("default").Delete(s.ctx, ownerless.service, metav1.DeleteOptions{PropagationPolicy: &background}))
	s.eventually("end of the ReplicaSet", func() bool {
		sets, err := s.cluster.Client.AppsV1().ReplicaSets("default").List(s.ctx, metav1.ListOptions{LabelSelector: controlplane.Selector(ownerless.service)})
		s.must(err)
		return len(sets.Items) == 0
	})
	s.runQueue(server, queue)

	s.wantAsBefore(canceled.node.Name, canceled.service, canceled.pods)
	s.wantSamePods(forgotten.service, forgotten.pods)
	s.eventually("end of the pods without an owner", func() bool { return len(s.podsOn(ownerless.node.Name, ownerless.service)) == 0 })
	s.wantNoneSurged()
}

// The process is killed over and over while it surges. Never are more pods surged than
// maxSurge allows or fewer ready than there should be, and each is moved once.
func TestKilledSurgeStaysWithoutADip(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	const replicas, allowed = 8, 2
	node := s.bare("node", 1, 4)[0]
	pods := s.service("web", replicas, surge(allowed, func(d *controlplane.DeploymentSpec) { d.BudgetMinAvailable = budget(replicas) }))
	s.bare("spare", 1, 8)
	server, queue := s.sqs()
	seen := s.watchSurge("default", "web")
	interrupt(queue, node.Name, 115*time.Second)

	var d *daemon.Daemon
	for i := range 8 {
		d = s.start(daemon.Options{Args: []string{"queue", "--queue-url=" + queue.URL(), alone}, SQS: server.URL})
		select {
		case <-time.After(300*time.Millisecond + time.Duration(i%4)*500*time.Millisecond):
		case <-d.Done():
			t.Fatalf("daemon ended by itself with code %d", d.ExitCode())
		}
		d.Kill()
	}
	s.runQueue(server, queue)
	rec := s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Released })
	if rec.Pods == nil || rec.Pods.Graceful != replicas || rec.Pods.Total != replicas {
		t.Errorf("record %s, want %d graceful", rec, replicas)
	}
	s.wantPods("default", "web", replicas)
	s.wantNoneSurged()

	deleted := map[string]int{} // evictions that a kill has cut short are carried out by a deletion
	for _, r := range s.requests(func(r request) bool {
		return r.Verb == "delete" && r.ObjectRef.Resource == "pods" && r.ResponseStatus.Code == 200
	}) {
		deleted[r.RequestObject.Preconditions.UID]++
	}
	for uid, n := range s.evictions() {
		deleted[uid] += n
	}
	brokenOff := s.brokenOff()
	for uid, name := range uids(pods) {
		if n := deleted[string(uid)]; n > 1 || n == 0 && !brokenOff[string(uid)] {
			t.Errorf("pod %s evicted or deleted %d times, want once", name, n)
		}
		delete(deleted, string(uid))
	}
	if len(deleted) != 0 {
		t.Errorf("other pods evicted: %v", deleted)
	}
	surged, ready := seen.worst()
	if surged > allowed {
		t.Errorf("%d pods were surged at once, want up to %d", surged, allowed)
	}
	if ready < replicas {
		t.Errorf("only %d pods were ready at some moment, want never less than %d", ready, replicas)
	}
}

// annotate changes a Node's annotations.
func (s *story) annotate(node, annotations string) {
	s.Helper()
	_, err := s.cluster.Client.CoreV1().Nodes().Patch(s.ctx, node, types.MergePatchType, []byte(`{"metadata":{"annotations":{`+annotations+`}}}`), metav1.PatchOptions{})
	s.must(err)
}

// wantAsBefore waits until the node carries nothing of ours any more, and checks that
// the service has the same pods as before.
func (s *story) wantAsBefore(node, service string, pods []*corev1.Pod) {
	s.Helper()
	found, err := s.cluster.WaitNode(s.ctx, node, func(n *corev1.Node) bool {
		_, has := n.Annotations[interruption.Annotation]
		return n != nil && !has
	})
	s.must(err)
	for _, key := range []string{interruption.Annotation, "spot-handler/cancel"} {
		if value, has := found.Annotations[key]; has {
			s.Errorf("node %s is annotated still: %s=%s", node, key, value)
		}
	}
	if _, has := found.Labels[interruption.ExcludeFromLoadBalancers]; has || found.Spec.Unschedulable || hasTaint(found, interruption.TaintKey) {
		s.Errorf("node %s: labels %v, taints %v, unschedulable %t", node, found.Labels, found.Spec.Taints, found.Spec.Unschedulable)
	}
	s.wantSamePods(service, pods)
}

// wantSamePods waits until those are the service's pods, and none else, and owned.
func (s *story) wantSamePods(service string, pods []*corev1.Pod) {
	s.Helper()
	want := uids(pods)
	_, err := s.cluster.WaitPods(s.ctx, "default", controlplane.Selector(service), func(now []*corev1.Pod) bool {
		same := len(now) == len(want)
		for _, p := range now {
			_, known := want[p.UID]
			same = same && known && controlplane.Ready(p) && !isSurged(p) && metav1.GetControllerOf(p) != nil
		}
		return same
	})
	if err != nil {
		s.Errorf("the pods of %s are not those from before: %v", service, err)
	}
}
