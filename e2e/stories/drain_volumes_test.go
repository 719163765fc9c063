package stories

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
)

// A pod has gone, and its volume is still attached to the node: its replacement pod cannot
// start yet, so the node is not done with. It is when the volume is detached. What is
// attached for a pod that stays is not waited for.
func TestDrainEndsWhenVolumesAreDetached(t *testing.T) {
	s := newStoryApart(t, controlplane.Options{Audit: true})
	node, volume := s.withVolume()
	d, queue := s.drill()

	interrupt(queue, node.Name, 100*time.Second)
	attachment := s.detaching(node.Name, volume)
	s.eventually("departure of the pod", func() bool { return len(s.podsOn(node.Name, "db")) == 0 })
	// A drain that did not wait would end a moment after that.
	if err := s.stays(3*time.Second, func() bool { return len(d.Lines("drained")) == 0 }); err != nil {
		t.Errorf("drained before the volume was detached")
	}
	if rec, _ := record(s.lastSeen(node.Name)); rec.Phase.Over() {
		t.Errorf("record %s, want it not to be over before the volume is detached", rec)
	}
	s.must(s.cluster.Detach(s.ctx, attachment))
	line := s.wantResults(d, map[string]result{node.Name: {graceful: 1}})[node.Name]
	if slack, _ := line["slack_seconds"].(float64); slack < 30 {
		t.Errorf("drained %v s before the deadline: the end of the attachment was not seen", slack)
	}
}

// The volume is never detached: the deadline ends the wait. All pods have had their
// grace; it is said what was waited for.
func TestVolumesAreWaitedForUntilTheDeadline(t *testing.T) {
	s := newStoryApart(t, controlplane.Options{Audit: true})
	node, volume := s.withVolume()
	d, queue := s.drill()

	deadline := interrupt(queue, node.Name, 40*time.Second)
	s.detaching(node.Name, volume)
	rec := s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Released })
	if left := time.Until(deadline); left > 10*time.Second {
		t.Errorf("released %s before the deadline, with the volume still attached", left)
	}
	if rec.Pods == nil || rec.Pods.Graceful != 1 || rec.Pods.Total != 1 {
		t.Errorf("record %s, want the one pod graceful", rec)
	}
	ends := func() []daemon.Line { return append(d.Lines("deadline reached"), d.Lines("drained")...) }
	s.eventually("line about the end", func() bool { return len(ends()) > 0 })
	if lines := ends(); len(lines) != 1 {
		t.Errorf("want one line about the end: %v", lines)
	}
}

// withVolume makes a node with a pod that has a volume of its own, and a DaemonSet's
// pod that has another.
func (s *story) withVolume() (node *corev1.Node, volume string) {
	s.Helper()
	annotated := func(prefix string) *corev1.Node {
		nodes, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 1, Prefix: prefix, Annotations: controlplane.AttachesVolumes})
		s.must(err)
		return nodes[0]
	}
	node = annotated("node")
	s.must(s.cluster.CreateClaim(s.ctx, "", "data", corev1.ReadWriteOnce))
	s.must(s.cluster.CreateClaim(s.ctx, "", "cache", corev1.ReadWriteOnce))
	s.daemonSet("agent", func(of *corev1.PodTemplateSpec) {
		p := &of.Spec
		controlplane.Mount(p, "cache")
		p.NodeSelector = map[string]string{corev1.LabelHostname: node.Name}
	})
	s.service("db", 1, func(d *controlplane.DeploymentSpec) {
		quick(d)
		d.Change = func(d *appsv1.Deployment) { controlplane.Mount(&d.Spec.Template.Spec, "data") }
	})
	s.must(s.cluster.WaitAttachments(s.ctx, node.Name, func(attachments []*storagev1.VolumeAttachment) bool {
		for _, a := range attachments {
			if !a.Status.Attached {
				s.must(s.cluster.Attach(s.ctx, a.Name))
			}
		}
		return len(attachments) == 2
	}))
	annotated("spare")
	return node, "data"
}

// detaching waits until the volume is about to be detached from the node.
func (s *story) detaching(node, volume string) (attachment string) {
	s.Helper()
	s.must(s.cluster.WaitAttachments(s.ctx, node, func(attachments []*storagev1.VolumeAttachment) bool {
		for _, a := range attachments {
			if a.DeletionTimestamp != nil && *a.Spec.Source.PersistentVolumeName == volume {
				attachment = a.Name
			}
		}
		return attachment != ""
	}))
	return attachment
}
