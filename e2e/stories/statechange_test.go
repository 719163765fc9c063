package stories

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
)

// die ends the node's kubelet, and has the node not Ready as the control plane would after
// 50 s. Nothing is known of its pods: nobody plays them any more.
func (s *story) die(node string) {
	s.Helper()
	pods := s.cluster.Client.CoreV1().Pods("default")
	list, err := pods.List(s.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	s.must(err)
	for _, p := range list.Items {
		_, err := pods.Patch(s.ctx, p.Name, types.MergePatchType, []byte(`{"status":{"phase":"Unknown"}}`), metav1.PatchOptions{}, "status")
		s.must(err)
	}
	s.annotate(node, `"kwok.x-k8s.io/node":null`)
	s.patchNode(node, "status", `{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown","message":"kubelet stopped posting"}]}}`)
}

// A machine stops, and another shuts down: its pods go at once, with what grace is left,
// which is none but the second that keeps the API server from forgetting them.
func TestStoppingInstanceIsDrainedAtOnce(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	stops, ends := s.bare("stops", 1, 2)[0], s.bare("ends", 1, 2)[0]
	pods := uids(s.service("web", 4, func(d *controlplane.DeploymentSpec) { quick(d); d.Grace = time.Minute }))
	s.bare("spare", 1, 8)
	_, queue := s.drill()

	queue.Send(stateChange(stops.Name, "stopping"))
	queue.Send(stateChange(ends.Name, "shutting-down"))
	for node, phase := range map[string]interruption.Phase{stops.Name: interruption.Drained, ends.Name: interruption.Released} {
		rec := s.waitRecord(node, func(r interruption.Record) bool { return r.Phase.Over() })
		if rec.Kind != interruption.StateChange || rec.Phase != phase || rec.Pods == nil || rec.Pods.Left != 0 {
			t.Errorf("record %s, want %s and none left", rec, phase)
		}
		if hasTaint(s.lastSeen(node), corev1.TaintNodeOutOfService) {
			t.Errorf("node %s is out of service, though its kubelet lives", node)
		}
	}
	s.wantEachOnce(pods)
	for _, r := range s.evicted() {
		if grace := r.RequestObject.DeleteOptions.GracePeriodSeconds; grace == nil || *grace != 1 {
			t.Errorf("evicted with grace %v, want 1 s", grace)
		}
	}
	s.waitEmpty(queue)
}

// Two machines are gone without a word, with pods on them that no kubelet ends, and with
// volumes that no kubelet unmounts. When EC2 says of the one that it is terminated, and not
// before, the control plane lets go of both. Of the other EC2 says that it has stopped: it
// may come back. A third lives, whatever is said of it.
func TestTerminatedInstanceLetsGoOfItsVolumes(t *testing.T) {
	s := newStoryApart(t, controlplane.Options{Audit: true})
	nodes, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 2, Prefix: "dead", Annotations: controlplane.AttachesVolumes})
	s.must(err)
	terminated, stopped := nodes[0].Name, nodes[1].Name
	lives := s.bare("lives", 1, 2)[0].Name
	for name, node := range map[string]string{"db-terminated": terminated, "db-stopped": stopped} {
		s.must(s.cluster.CreateClaim(s.ctx, "", name, corev1.ReadWriteOnce))
		s.service(name, 1, func(d *controlplane.DeploymentSpec) {
			quick(d)
			d.NodeSelector = map[string]string{corev1.LabelHostname: node}
			d.Change = func(d *appsv1.Deployment) { controlplane.Mount(&d.Spec.Template.Spec, name) }
		})
		s.must(s.cluster.WaitAttachments(s.ctx, node, func(attachments []*storagev1.VolumeAttachment) bool {
			for _, a := range attachments {
				if !a.Status.Attached {
					s.must(s.cluster.Attach(s.ctx, a.Name))
				}
			}
			return len(attachments) == 1
		}))
		s.patchNode(node, "status", fmt.Sprintf(`{"status":{"volumesInUse":["kubernetes.io/csi/e2e.spot-handler^%s"]}}`, name))
		s.die(node)
	}
	_, queue := s.drill()

	queue.Send(stateChange(stopped, "stopped"))
	queue.Send(stateChange(terminated, "shutting-down"))
	for _, node := range []string{stopped, terminated} {
		s.waitRecord(node, func(r interruption.Record) bool { return r.Kind == interruption.StateChange })
	}
	// Deleted, and nobody ends them.
	s.eventually("evictions", func() bool { return len(s.evictions()) == 2 })
	terminating := s.podsOn(terminated, "db-terminated")
	if len(terminating) != 1 || terminating[0].DeletionTimestamp == nil {
		t.Fatalf("pods %v, want one that is terminating", terminating)
	}
	if err := s.stays(2*time.Second, func() bool { return !hasTaint(s.lastSeen(terminated), corev1.TaintNodeOutOfService) }); err != nil {
		t.Error("out of service before it was terminated")
	}

	queue.Send(stateChange(terminated, "terminated"))
	queue.Send(stateChange(lives, "terminated"))
	out, err := s.cluster.WaitNode(s.ctx, terminated, func(n *corev1.Node) bool { return hasTaint(n, corev1.TaintNodeOutOfService) })
	s.must(err)
	for _, taint := range out.Spec.Taints {
		if taint.Key == corev1.TaintNodeOutOfService && (taint.Value != "nodeshutdown" || taint.Effect != corev1.TaintEffectNoExecute) {
			t.Errorf("taint %s", taint.ToString())
		}
	}
	s.must(s.cluster.Detach(s.ctx, s.detaching(terminated, "db-terminated")))
	s.eventually("end of the pod", func() bool { return len(s.podsOn(terminated, "db-terminated")) == 0 })
	s.must(s.cluster.WaitAttachments(s.ctx, terminated, func(a []*storagev1.VolumeAttachment) bool { return len(a) == 0 }))

	// Only what is to be forced was.
	s.waitRecord(lives, func(r interruption.Record) bool { return r.Phase.Over() })
	for _, node := range []string{stopped, lives} {
		n := s.lastSeen(node)
		if n == nil || hasTaint(n, corev1.TaintNodeOutOfService) {
			t.Errorf("node %s is out of service: %+v", node, n)
		}
	}
	if len(s.podsOn(stopped, "db-stopped")) != 1 {
		t.Error("the pod of the instance that has stopped is gone")
	}
	s.must(s.cluster.WaitAttachments(s.ctx, stopped, func(a []*storagev1.VolumeAttachment) bool { return len(a) == 1 && a[0].DeletionTimestamp == nil }))
	if s.lastSeen(terminated) == nil {
		t.Error("the Node was deleted: that is its owner's to do")
	}
	s.waitEmpty(queue)
}

// Everything is said of one instance, some of it twice: it is one record, of the strongest
// kind and with the earliest deadline, one drain, and no message stays.
func TestSeveralKindsAreOneInterruption(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	node := s.bare("node", 1, 4)[0]
	pods := uids(s.service("web", 4, quick))
	s.bare("spare", 1, 8)
	server, queue := s.sqs()
	instance := controlplane.InstanceID(node.Name)
	at := time.Now().Truncate(time.Second)
	bodies := []string{
		healthEvent("r-1", "INSTANCE_REBOOT_MAINTENANCE_SCHEDULED", "upcoming", at.Add(240*time.Hour), node.Name),
		daemon.EventBridge(daemon.Rebalance, "event-1", instance, at),
		daemon.EventBridge(daemon.SpotInterruption, "event-2", instance, at),
		message("EC2 Capacity Reservation Instance Interruption Warning", "aws.ec2", "event-3", at, map[string]any{
			"instance-id": instance, "instance-action": "terminate", "instance-termination-time": at.Add(100 * time.Second).UTC().Format(time.RFC3339),
		}),
	}
	var ids []string
	for _, body := range append(bodies, bodies...) {
		ids = append(ids, queue.Send(body))
	}
	d := s.runQueue(server, queue)
	for _, id := range ids {
		s.eventually("deletion of the message", func() bool { return queue.Deleted(id) })
	}
	rec := s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Released })
	if rec.Kind != interruption.SpotInterruption || !rec.Deadline.Equal(at.Add(100*time.Second)) || rec.Event != "event-2" {
		t.Errorf("record %s, want the notice with the reservation's deadline", rec)
	}
	s.wantEachOnce(pods)
	drains := 0.0
	for _, kind := range interruption.Kinds() {
		for _, result := range []string{"completed", "deadline", "canceled", "failed"} {
			drains += s.metric(d, fmt.Sprintf(`spot_handler_drains_total{kind=%q,result=%q}`, kind, result))
		}
	}
	if drains != 1 {
		t.Errorf("%v drains counted, want 1", drains)
	}

	// The usual end of it all: nothing is done twice.
	s.eventually("Event about the end", func() bool { return len(s.events("Drained", node.Name)) == 1 })
	for _, state := range []string{"shutting-down", "terminated"} {
		queue.Send(stateChange(node.Name, state))
	}
	s.waitEmpty(queue)
	s.die(node.Name)
	_, err := s.cluster.WaitNode(s.ctx, node.Name, func(n *corev1.Node) bool { return hasTaint(n, corev1.TaintNodeOutOfService) })
	s.must(err)
	if drained, state := s.events("Drained", node.Name), s.events("StateChange", node.Name); len(drained) != 1 || len(state) != 0 {
		t.Errorf("%d Events about the drain, want the one of before; of the state: %v", len(drained), state)
	}
	if rec, _ := record(s.lastSeen(node.Name)); rec.Phase != interruption.Released {
		t.Errorf("record %s, want it released still", rec)
	}
	s.wantEachOnce(pods)
}
