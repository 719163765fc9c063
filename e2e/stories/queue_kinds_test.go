package stories

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
)

// AWS Health announces the retirement of three instances in one message, with the window
// near enough that their nodes are to be drained now. All three are, a fourth is not; and
// the message goes only when each of the three has its record.
func TestAHealthMessageOfThreeInstancesDrainsThree(t *testing.T) {
	s := newStory(t, controlplane.Options{})
	nodes := s.bare("doomed", 3, 4)
	other := s.bare("other", 1, 4)[0]
	second := time.Second
	_, err := s.cluster.CreateCrowd(s.ctx, controlplane.Crowd{
		Name: "web", PerNode: 2, Behaviour: controlplane.Behaviour{ReadyAfter: &second, StopAfter: &second},
	}, append(nodes, other))
	s.must(err)
	server, queue := s.sqs()
	d := s.runQueue(server, queue)

	start := time.Now().Add(20 * time.Minute).Truncate(time.Second)
	h := daemon.Health{
		EventID: "event-health", ARN: "arn:aws:health:eu-west-1::event/EC2/AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED/1",
		Code: "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED", Status: "upcoming", Start: start, Description: "The hardware degrades.",
		Instances: []string{"i-0ffffffffffffffff"}, // of somebody else
	}
	for _, node := range nodes {
		h.Instances = append(h.Instances, controlplane.InstanceID(node.Name))
	}
	id := queue.Send(daemon.ScheduledChange(h, time.Now()))
	s.eventually("deletion of the message", func() bool { return queue.Deleted(id) })
	for _, node := range nodes {
		rec, ok := record(s.lastSeen(node.Name))
		if !ok {
			t.Errorf("the message was deleted before node %s had its record", node.Name)
			continue
		}
		if rec.Kind != interruption.ScheduledEvent || rec.Event != h.ARN || rec.Action != interruption.ActionRetirement || !rec.Deadline.Equal(start) {
			t.Errorf("record of %s: %s", node.Name, rec)
		}
	}
	for _, node := range nodes {
		rec := s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase.Over() })
		if rec.Pods == nil || rec.Pods.Total != 2 || rec.Pods.Graceful != 2 {
			t.Errorf("record of %s: %s, want both pods gone gracefully", node.Name, rec)
		}
		if on := s.podsOn(node.Name, "web"); len(on) != 0 {
			t.Errorf("node %s still has %d pods", node.Name, len(on))
		}
	}
	if rec, ok := record(s.lastSeen(other.Name)); ok || len(s.podsOn(other.Name, "web")) != 2 {
		t.Errorf("node %s has lost pods or has a record: %s", other.Name, rec)
	}
	s.eventually("count of the one message", func() bool { return s.metric(d, `spot_handler_messages_total{outcome="accepted"}`) == 1 })
	if n := s.metric(d, `spot_handler_notices_total{kind="scheduled-event",source="queue"}`); n != 3 {
		t.Errorf("%v notices counted, want 3", n)
	}
}

// Nothing but messages that cannot be used is in the queue, of every sort, and each comes
// back as its dead-letter queue is patient. The daemon does no more than look at each when
// SQS shows it, stays ready, and takes a good message at once.
func TestPoisonAloneInTheQueueDoesNoHarm(t *testing.T) {
	s := newStory(t, controlplane.Options{})
	nodes := s.bare("node", 1, 4)
	server := sqsemu.Start()
	t.Cleanup(server.Close)
	queue := server.CreateQueue("spot-handler", sqsemu.QueueOptions{DeadLetters: server.Queue("dead-letters"), MaxReceives: 1000})

	now := time.Now()
	instance := controlplane.InstanceID(nodes[0].Name)
	hook := daemon.Hook{Group: "", Name: "drain", Token: "token", Instance: instance}
	kinds := []string{
		"}{ no JSON",
		"",
		`{"detail-type":"` + strings.Repeat("x", 200_000) + `"}`,
		strings.Repeat(`{"a":`, 10_000),
		daemon.EventBridge(daemon.SpotInterruption, "event-1", "../../etc/passwd", now),
		daemon.EventBridge(daemon.CapacityReservation, "event-2", instance, now), // no time
		daemon.InstanceState("melting", "event-3", instance, now),
		daemon.ScheduledChange(daemon.Health{EventID: "event-4", ARN: "arn", Code: "X", Status: "upcoming", Start: now.AddDate(9, 0, 0), Instances: []string{instance}}, now),
		daemon.LifecycleAction(hook, "event-5", now),
		daemon.SNS(daemon.SNS("twice", now), now),
		daemon.Envelope("aws.ec2", "EC2 Something New", "event-6", now, nil, map[string]any{}),
		daemon.Envelope("somebody", daemon.SpotInterruption, "event-7", now, nil, map[string]any{}),
	}
	const each = 4
	for range each {
		for _, body := range kinds {
			queue.Send(body)
		}
	}
	all := float64(each * len(kinds))
	d := s.runQueue(server, queue)
	rejected := func() float64 {
		return s.metric(d, `spot_handler_messages_total{outcome="malformed"}`) + s.metric(d, `spot_handler_messages_total{outcome="unsupported"}`)
	}
	s.eventually("rejection of all", func() bool { return rejected() == all })

	// Two more rounds of them: SQS shows each again 30 s after it was received.
	again := func(n int) bool {
		for _, m := range queue.Messages() {
			if m.ReceiveCount < n {
				return false
			}
		}
		return true
	}
	receives, used := server.Requests("ReceiveMessage"), s.metric(d, "process_cpu_seconds_total")
	s.eventually("a third look at all", func() bool { return again(3) })
	looked, burnt := server.Requests("ReceiveMessage")-receives, s.metric(d, "process_cpu_seconds_total")-used
	t.Logf("%d receives and %.2f s of processor time for %v messages, twice more", looked, burnt, all)
	if looked > 4*int(all) {
		t.Errorf("%d receives for %v messages that came back twice", looked, all)
	}
	if burnt > 10 {
		t.Errorf("%.1f s of processor time in a minute of waiting", burnt)
	}
	if n := rejected(); n != all {
		t.Errorf("%v counted, want each of %v once", n, all)
	}
	if n := len(d.Lines("cannot use message")); n != int(all) {
		t.Errorf("logged %d times, want each of %v once", n, all)
	}
	s.must(d.WaitReady(s.ctx))

	good := queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-good", instance, time.Now()))
	s.waitRecord(nodes[0].Name, func(r interruption.Record) bool { return r.Event == "event-good" })
	s.eventually("deletion of the good message", func() bool { return queue.Deleted(good) })
	for _, m := range queue.Messages() {
		if m.ID == good && m.ReceiveCount != 1 {
			t.Errorf("the good message was received %d times", m.ReceiveCount)
		}
		if m.ID != good && m.State == sqsemu.Deleted {
			t.Errorf("deleted, though there is a dead-letter queue: %.100s", m.Body)
		}
	}
}

// What an Auto Scaling group sends reaches the Node's record by every way: EventBridge, the
// queue as the hook's target, and a topic between them. Its test notifications go without
// a trace, and so does, after one second look, what is about a node that nobody knows.
func TestLifecycleHooksByEveryWay(t *testing.T) {
	s := newStory(t, controlplane.Options{})
	nodes := s.bare("node", 4, 4)
	server, queue := s.sqs()
	d := s.runQueue(server, queue)

	now := time.Now()
	hooks := make([]daemon.Hook, len(nodes))
	for i, node := range nodes {
		hooks[i] = daemon.Hook{Group: "workers", Name: fmt.Sprint("drain-", i), Token: fmt.Sprint("token-", i), Instance: controlplane.InstanceID(node.Name)}
	}
	ids := []string{
		queue.Send(daemon.LifecycleAction(hooks[0], "event-0", now)),
		queue.Send(daemon.DirectLifecycleAction(hooks[1], now)),
		queue.Send(daemon.SNS(daemon.DirectLifecycleAction(hooks[2], now), now)),
		queue.Send(daemon.SNS(daemon.LifecycleAction(hooks[3], "event-3", now), now)),
		queue.Send(daemon.TestNotification("workers", now)),
		queue.Send(daemon.SNS(daemon.TestNotification("workers", now), now)),
		queue.Send(daemon.InstanceState("running", "event-running", hooks[0].Instance, now)),
	}
	foreign := queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-foreign", "i-0ffffffffffffffff", now.Add(-110*time.Second)))
	for i, node := range nodes {
		rec := s.waitRecord(node.Name, func(r interruption.Record) bool { return len(r.Hooks) > 0 })
		h := rec.Hooks[0]
		if rec.Kind != interruption.InstanceTerminating || len(rec.Hooks) != 1 || h.Group != "workers" || h.Name != hooks[i].Name || h.Token != hooks[i].Token ||
			now.Sub(h.Since).Abs() > 2*time.Second {
			t.Errorf("record of %s: %s, want hook %+v", node.Name, rec, hooks[i])
		}
	}
	for i, id := range append(ids, foreign) {
		s.eventually(fmt.Sprintf("deletion of message %d", i), func() bool { return queue.Deleted(id) })
	}
	for _, m := range queue.Messages() {
		if want := map[bool]int{true: 2, false: 1}[m.ID == foreign]; m.ReceiveCount != want {
			t.Errorf("received %d times, want %d: %.200s", m.ReceiveCount, want, m.Body)
		}
	}
	for outcome, want := range map[string]float64{"accepted": 4, "ignored": 3, "foreign": 1, "malformed": 0, "unsupported": 0, "failed": 0} {
		series := fmt.Sprintf(`spot_handler_messages_total{outcome=%q}`, outcome)
		s.eventually("count of "+outcome, func() bool { return s.metric(d, series) >= want })
		if n := s.metric(d, series); n != want {
			t.Errorf("%v messages %s, want %v", n, outcome, want)
		}
	}
}
