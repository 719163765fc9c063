package stories

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/imdsemu"
	"spot-handler/handler/interruption"
)

// polls waits until the metadata service was asked so many times more.
func (s *story) polls(imds *imdsemu.Server, path string, more int) {
	s.Helper()
	until := imds.Requests(path) + more
	s.eventually("polls of "+path, func() bool { return imds.Requests(path) >= until })
}

// The group wants the instance terminated, and the metadata service says so for as long as
// the instance lives. However often that is read, and by whichever process, it is one
// interruption: one record, one Event, one notice.
func TestLifecycleStateIsOneInterruption(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	node := s.bare("node", 1, 4)[0]
	imds := s.imds(node)
	imds.SetTargetLifecycleState("InService")
	d := s.runIMDS(imds, node)
	s.polls(imds, imdsemu.TargetLifecycleStatePath, 3)
	if rec, has := record(s.lastSeen(node.Name)); has {
		t.Fatalf("recorded while in service: %s", rec)
	}

	imds.SetTargetLifecycleState("Terminated")
	s.polls(imds, imdsemu.TargetLifecycleStatePath, 4) // the first may have been under way
	rec := s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Kind == interruption.InstanceTerminating })
	if rec.Action != interruption.ActionTerminate || len(rec.Announced) != 0 {
		t.Errorf("record %s, want one announcement, of a termination", rec)
	}
	if n := s.lastSeen(node.Name); !n.Spec.Unschedulable || !hasTaint(n, interruption.TaintKey) {
		t.Errorf("not cordoned: %+v", n.Spec)
	}
	s.polls(imds, imdsemu.TargetLifecycleStatePath, 3)
	once := func(d *daemon.Daemon, notices float64) {
		t.Helper()
		if n := s.metric(d, `spot_handler_notices_total{kind="instance-terminating",source="imds"}`); n != notices {
			t.Errorf("%v notices counted, want %v", n, notices)
		}
		if n := len(d.Lines("interruption accepted")); n != int(notices) {
			t.Errorf("accepted %d times, want %v", n, notices)
		}
		s.eventually("Event about it", func() bool { return len(s.events("InstanceTerminating", node.Name)) > 0 })
		if events := s.events("InstanceTerminating", node.Name); len(events) != 1 || events[0].Count != 1 {
			t.Errorf("Events %v, want one, once", events)
		}
	}
	once(d, 1)

	// The pod is restarted, and reads it again.
	if code := d.Stop(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	d = s.runIMDS(imds, node)
	s.polls(imds, imdsemu.TargetLifecycleStatePath, 3)
	once(d, 0)
	if again, _ := record(s.lastSeen(node.Name)); again.Event != rec.Event || !again.Received.Equal(rec.Received) {
		t.Errorf("record %s became %s", rec, again)
	}
}

// A reboot is scheduled within the lead: the node is drained, and its pods wait, as they can
// run nowhere else. EC2 cancels the reboot: the node is as it was, and the pods come back.
func TestScheduledEventIsCanceledInTheMetadata(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	node := s.bare("node", 1, 4)[0]
	s.service("home", 2, func(d *controlplane.DeploymentSpec) {
		quick(d)
		d.NodeSelector = map[string]string{corev1.LabelHostname: node.Name}
	})
	imds := s.imds(node)
	d := s.runIMDS(imds, node, "--drain-strategy=at-once", "--release-node=false")

	window := time.Now().Add(20 * time.Minute).Truncate(time.Second)
	imds.Schedule(imdsemu.ScheduledEvent{
		Code: "system-reboot", Description: "scheduled reboot", EventID: "instance-event-0d59937288b749b32",
		NotBefore: window, NotAfter: window.Add(time.Hour), State: "active",
	})
	rec := s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Drained })
	if rec.Kind != interruption.ScheduledEvent || rec.Action != interruption.ActionReboot || !rec.Deadline.Equal(window) || rec.Pods.Graceful != 2 {
		t.Errorf("record %s, want a reboot at %s, 2 pods graceful", rec, window)
	}
	if n := s.lastSeen(node.Name); !n.Spec.Unschedulable || !hasTaint(n, interruption.TaintKey) {
		t.Errorf("not cordoned: %+v", n.Spec)
	}
	if on := s.podsOn(node.Name, "home"); len(on) != 0 {
		t.Errorf("%d pods on a node that is drained", len(on))
	}

	imds.Cancel("instance-event-0d59937288b749b32")
	after, err := s.cluster.WaitNode(s.ctx, node.Name, func(n *corev1.Node) bool { _, has := record(n); return n != nil && !has })
	s.must(err)
	if after.Spec.Unschedulable || hasTaint(after, interruption.TaintKey) {
		t.Errorf("still cordoned: %+v", after.Spec)
	}
	pods, err := s.cluster.WaitReady(s.ctx, "default", "home", 2)
	s.must(err)
	for _, p := range pods {
		if p.Spec.NodeName != node.Name {
			t.Errorf("pod %s is on %q", p.Name, p.Spec.NodeName)
		}
	}
	s.waitLine(d, "announcement withdrawn")
	s.eventually("Event about the end", func() bool { return len(s.events("InterruptionCanceled", node.Name)) == 1 })

	// The history goes on to say so, also to the next process: nothing happens.
	d.Stop()
	d = s.runIMDS(imds, node)
	s.polls(imds, imdsemu.EventHistoryPath, 1)
	if rec, has := record(s.lastSeen(node.Name)); has {
		t.Errorf("recorded again: %s", rec)
	}
	if n := s.metric(d, `spot_handler_notices_total{kind="scheduled-event",source="imds"}`); n != 0 {
		t.Errorf("%v notices counted by a process that has seen none", n)
	}
}

// EC2 announces everything at once to a daemon that is to look for recommendations alone:
// that is all it records, and all it asks for. One without switches records the rest.
func TestWhatIsSwitchedOffIsNotLookedFor(t *testing.T) {
	s := newStory(t, controlplane.Options{})
	node := s.bare("node", 1, 4)[0]
	imds := s.imds(node)
	now := time.Now()
	imds.Rebalance(now)
	imds.Interrupt("terminate", now.Add(2*time.Minute))
	imds.SetTargetLifecycleState("Terminated")
	imds.Schedule(imdsemu.ScheduledEvent{Code: "instance-stop", EventID: "instance-event-1", NotBefore: now.Add(5 * time.Minute), State: "active"})

	off := []string{imdsemu.InstanceActionPath, imdsemu.TargetLifecycleStatePath, imdsemu.ScheduledEventsPath, imdsemu.EventHistoryPath}
	flags := []string{"--rebalance=cordon", "--watch=rebalance"}
	d := s.runIMDS(imds, node, flags...)
	s.waitRecord(node.Name, func(interruption.Record) bool { return true })
	s.polls(imds, imdsemu.RebalancePath, 20)
	if rec, _ := record(s.lastSeen(node.Name)); rec.Kind != interruption.RebalanceRecommendation || len(rec.Announced) != 0 {
		t.Errorf("record %s, want the recommendation alone", rec)
	}
	for _, path := range off {
		if n := imds.Requests(path); n != 0 {
			t.Errorf("%s was requested %d times", path, n)
		}
	}
	for _, kind := range interruption.Kinds() {
		want := 0.0
		if kind == interruption.RebalanceRecommendation {
			want = 1
		}
		if n := s.metric(d, `spot_handler_notices_total{kind="`+string(kind)+`",source="imds"}`); n != want {
			t.Errorf("%v notices of kind %s, want %v", n, kind, want)
		}
	}

	d.Stop()
	s.runIMDS(imds, node)
	s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Kind == interruption.SpotInterruption })
}
