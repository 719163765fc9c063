package stories

import (
	"encoding/json"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/asgemu"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
)

// hookMessage is what EventBridge sends when a group begins to wait.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html
func hookMessage(w asgemu.Wait) string {
	detailType := "EC2 Instance-terminate Lifecycle Action"
	if w.Transition == asgemu.Launching {
		detailType = "EC2 Instance-launch Lifecycle Action"
	}
	body, err := json.Marshal(map[string]any{
		"version": "0", "id": "event-" + w.Token, "detail-type": detailType, "source": "aws.autoscaling", "account": "123456789012",
		"time": w.Since.UTC().Format(time.RFC3339), "region": "eu-west-1",
		"resources": []string{"arn:aws:autoscaling:eu-west-1:123456789012:autoScalingGroup:1:autoScalingGroupName/" + w.Group},
		"detail": map[string]string{
			"LifecycleActionToken": w.Token, "AutoScalingGroupName": w.Group, "LifecycleHookName": w.Hook,
			"EC2InstanceId": w.Instance, "LifecycleTransition": w.Transition,
		},
	})
	if err != nil { // strings only: cannot happen
		panic(err)
	}
	return string(body)
}

// hooked is a story of a group of one node, "workers", with a node beside it that takes
// its pods, whose hooks reach the queue as often as times says.
func hooked(t *testing.T, times int, hooks ...asgemu.Hook) (s *scaled, node string, server *sqsemu.Server, queue *sqsemu.Queue) {
	t.Helper()
	s = newStory(t, controlplane.Options{Audit: true}).scale(time.Second, false)
	node = s.group("workers", 1, false)[0].Name
	_, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 1, Prefix: "spare", Labels: map[string]string{"group": "later"}})
	s.must(err)
	for _, h := range hooks {
		s.cloud.PutHook("workers", h)
	}
	server, queue = s.sqs()
	s.sendHooks(queue, times)
	return s, node, server, queue
}

// sendHooks sends every hook to the queue as many times.
func (s *scaled) sendHooks(queue *sqsemu.Queue, times int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks = func(w asgemu.Wait) {
		for range times {
			queue.Send(hookMessage(w))
		}
	}
}

// openSpare lets the pods of the group onto the node beside it.
func (s *scaled) openSpare() {
	s.Helper()
	s.kubectl("", "label", "node", "--selector=group=later", "group=workers", "--overwrite")
}

func terminateHook(name string, timeout time.Duration) asgemu.Hook {
	return asgemu.Hook{Name: name, Transition: asgemu.TerminateAt, Timeout: timeout, Default: asgemu.Abandon}
}

// wantContinued fails the story unless every wait for the instance was ended by us.
func (s *scaled) wantContinued(instance string, n int) []asgemu.Wait {
	s.Helper()
	waits := s.cloud.Waits(instance)
	if len(waits) != n {
		s.Errorf("%d waits for %s, want %d", len(waits), instance, n)
	}
	for _, w := range waits {
		if w.Result != asgemu.Continue || w.TimedOut {
			s.Errorf("wait %+v, want CONTINUE by the daemon", w)
		}
	}
	return waits
}

// A group shrinks and waits at two hooks, of which each message comes three times. The node
// is drained, then each hook is completed, once, and the group ends the instance.
func TestHooksAreCompletedOnceAfterTheDrain(t *testing.T) {
	s, node, server, queue := hooked(t, 3, terminateHook("drain", 5*time.Minute), terminateHook("backup", 10*time.Minute))
	instance := controlplane.InstanceID(node)
	s.workers("workers", 4)
	s.openSpare()
	d := s.run(s.options(server, queue))

	s.cloud.Shrink(instance)
	s.eventually("the instance ends", func() bool { i, _ := s.cloud.Instance(instance); return i.State == asgemu.Terminated })
	s.waitGone(node)
	s.waitEmpty(queue)

	s.wantContinued(instance, 2)
	if drained := s.waitLine(d, "drained"); drained["graceful"] != 4.0 || drained["left"] != 0.0 {
		t.Errorf("want all 4 graceful: %v", drained)
	}
	for what, n := range map[string]int{"CompleteLifecycleAction": 2, "DescribeLifecycleHooks": 1, "DetachInstances": 0, "RecordLifecycleActionHeartbeat": 0} {
		if got := s.cloud.Requests(what); got != n {
			t.Errorf("%d calls of %s, want %d", got, what, n)
		}
	}
	if n := s.cloud.Launched("workers"); n != 0 {
		t.Errorf("a group that shrinks launched %d", n)
	}
	s.eventually("count of both completions", func() bool {
		return s.metric(d, `spot_handler_lifecycle_actions_total{action="complete",result="ok"}`) == 2
	})
	_, err := s.cluster.WaitReady(s.ctx, "default", "workers", 4)
	s.must(err)
}

// Killed in the middle of the drain, and again when the drain is over and Auto Scaling does
// not answer: the next one completes the hook.
func TestKilledTheNextCompletesTheHook(t *testing.T) {
	s, node, server, queue := hooked(t, 1, terminateHook("drain", 10*time.Minute))
	instance := controlplane.InstanceID(node)
	s.workers("workers", 4)
	s.cloud.Fail(asgemu.Fault{Effect: asgemu.Unavailable, Action: "CompleteLifecycleAction"})
	run := func() *daemon.Daemon {
		return s.run(s.options(server, queue, "--provisioner=none", "--drain-strategy=at-once"))
	}
	first := run()
	s.cloud.Shrink(instance)
	s.waitRecord(node, func(r interruption.Record) bool { return r.Phase == interruption.Draining && !r.Deadline.IsZero() })
	first.Kill()

	s.openSpare()
	second := run()
	s.waitRecord(node, func(r interruption.Record) bool { return r.Phase == interruption.Released })
	s.waitLine(second, "complete lifecycle hook") // tried, in vain
	second.Kill()
	if w := s.cloud.Waits(instance)[0]; w.Result != "" {
		t.Fatalf("wait %+v has ended already", w)
	}

	s.cloud.ClearFaults()
	run()
	s.waitGone(node)
	s.wantContinued(instance, 1)
	s.waitEmpty(queue)
}

// An instance that never was a Node, and one whose Node goes while a budget blocks its
// drain.
func TestHooksWithoutANodeAreCompleted(t *testing.T) {
	s, node, server, queue := hooked(t, 1, terminateHook("drain", 10*time.Minute))
	s.service("workers", 2, func(d *controlplane.DeploymentSpec) {
		d.NodeSelector, d.BudgetMinAvailable = map[string]string{"group": "workers"}, budget(2)
	})
	stranger := asgemu.NewInstanceID()
	s.cloud.CreateGroup("strangers", stranger)
	s.cloud.PutHook("strangers", terminateHook("drain", 10*time.Minute))
	s.run(s.options(server, queue))

	s.cloud.Shrink(stranger)
	s.cloud.Shrink(controlplane.InstanceID(node))
	s.waitRecord(node, func(r interruption.Record) bool { return r.Pods != nil && !r.Deadline.IsZero() })
	s.must(s.cluster.Client.CoreV1().Nodes().Delete(s.ctx, node, metav1.DeleteOptions{}))
	for _, id := range []string{stranger, controlplane.InstanceID(node)} {
		s.eventually("the instance ends", func() bool { i, _ := s.cloud.Instance(id); return i.State == asgemu.Terminated })
		s.wantContinued(id, 1)
	}
	s.waitEmpty(queue)
}

// Heartbeats go out at half of the hook's timeout, every 15 s, until the drain has ended, 5 s before
// the deadline: the fourth would come too late to be of use. Then the hook is completed with the pods that are left.
func TestHeartbeatsAreExactAndStop(t *testing.T) {
	s, node, server, queue := hooked(t, 1, terminateHook("drain", 30*time.Second))
	instance := controlplane.InstanceID(node)
	s.service("workers", 2, func(d *controlplane.DeploymentSpec) {
		d.NodeSelector, d.BudgetMinAvailable = map[string]string{"group": "workers"}, budget(2)
	})
	d := s.run(s.options(server, queue, "--heartbeat-until=55s"))

	s.cloud.Shrink(instance)
	s.eventually("the instance ends", func() bool { i, _ := s.cloud.Instance(instance); return i.State == asgemu.Terminated })
	w := s.wantContinued(instance, 1)[0]
	if w.Heartbeats != 3 || s.cloud.Requests("RecordLifecycleActionHeartbeat") != 3 {
		t.Errorf("%d heartbeats of %d calls, want 3", w.Heartbeats, s.cloud.Requests("RecordLifecycleActionHeartbeat"))
	}
	if over := s.waitLine(d, "deadline reached"); over["left"] != 2.0 {
		t.Errorf("want both pods left: %v", over)
	}
	if done := s.waitLine(d, "lifecycle hook completed"); done["heartbeats"] != 3.0 {
		t.Errorf("want 3 heartbeats in the record: %v", done)
	}
}

// A group grows: its new instance goes into service when its Node is Ready.
func TestLaunchHookIsCompletedWhenTheNodeIsReady(t *testing.T) {
	s, _, server, queue := hooked(t, 2, asgemu.Hook{Name: "join", Transition: asgemu.Launching, Timeout: 10 * time.Minute, Default: asgemu.Abandon})
	stranger := asgemu.Wait{ // of another cluster: its Node never comes
		Group: "strangers", Hook: "join", Transition: asgemu.Launching, Instance: asgemu.NewInstanceID(), Token: "stranger", Since: time.Now().Add(-3 * time.Hour),
	}
	queue.Send(hookMessage(stranger))
	d := s.run(s.options(server, queue))
	s.cloud.SetDesired("workers", 2)

	var launched asgemu.Instance
	s.eventually("the instance is in service", func() bool {
		for _, i := range s.cloud.Members("workers") {
			if i.Launched && i.Lifecycle == asgemu.InService {
				launched = i
			}
		}
		return launched.ID != ""
	})
	s.wantContinued(launched.ID, 1)
	s.mu.Lock()
	joined, ok := s.boots[launched.ID]
	s.mu.Unlock()
	if !ok {
		t.Errorf("the hook was completed before the Node joined")
	}
	t.Logf("in service %s after its Node was asked to join", time.Since(joined))
	s.waitEmpty(queue)
	for _, n := range s.nodes() {
		if _, has := record(&n); has || n.Spec.Unschedulable {
			t.Errorf("node %s has been touched", n.Name)
		}
	}
	if n := len(d.Lines("interruption accepted, node cordoned")); n != 0 {
		t.Errorf("%d interruptions", n)
	}
}
