package stories

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/asgemu"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// scaled is a story in which EC2 and Auto Scaling are emulated: what a group launches
// joins the cluster as a Node, and what is terminated leaves it.
type scaled struct {
	*story
	cloud *asgemu.Server

	mu    sync.Mutex
	boots map[string]time.Time // by instance: when its Node joined
	hooks func(asgemu.Wait)    // called when a group begins to wait; may be nil
}

func (s *story) scale(boot time.Duration, unmanaged bool) *scaled {
	s.Helper()
	sc := &scaled{story: s, boots: map[string]time.Time{}}
	ctx, cancel := context.WithCancel(s.ctx)
	sc.cloud = asgemu.Start(asgemu.Options{
		Boot: boot,
		Waiting: func(w asgemu.Wait) {
			sc.mu.Lock()
			notify := sc.hooks
			sc.mu.Unlock()
			if notify != nil {
				notify(w)
			}
		},
		Booted: func(i asgemu.Instance) {
			sc.mu.Lock()
			sc.boots[i.ID] = time.Now()
			sc.mu.Unlock()
			_, err := s.cluster.CreateBareNodes(ctx, controlplane.BareNodes{
				Count: 1, Prefix: "joined-" + i.ID, Instances: []string{i.ID}, Labels: map[string]string{"group": i.Group}, Unmanaged: unmanaged,
			})
			if err != nil && ctx.Err() == nil {
				s.Errorf("join %s: %v", i, err)
			}
		},
		Ended: func(i asgemu.Instance) {
			for !sc.deleteNode(ctx, i.ID) && ctx.Err() == nil { // or the story would wait for it for ever
				time.Sleep(100 * time.Millisecond)
			}
		},
	})
	s.Cleanup(func() { cancel(); sc.cloud.Close() })
	return sc
}

// group makes a group of nodes.
func (s *scaled) group(name string, n int, unmanaged bool) []*corev1.Node {
	s.Helper()
	nodes, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{
		Count: n, Prefix: name, Labels: map[string]string{"group": name}, Unmanaged: unmanaged,
	})
	s.must(err)
	ids := make([]string, n)
	for i, node := range nodes {
		ids[i] = controlplane.InstanceID(node.Name)
	}
	s.cloud.CreateGroup(name, ids...)
	return nodes
}

func (s *scaled) nodes() []corev1.Node {
	list, err := s.cluster.Client.CoreV1().Nodes().List(context.WithoutCancel(s.ctx), metav1.ListOptions{})
	if err != nil {
		return nil
	}
	return list.Items
}

// deleteNode deletes the Node of an instance, and reports whether there is none any more.
func (s *scaled) deleteNode(ctx context.Context, instance string) (gone bool) {
	list, err := s.cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return false
	}
	for _, n := range list.Items {
		if strings.HasSuffix(n.Spec.ProviderID, "/"+instance) {
			err := s.cluster.Client.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{})
			return err == nil || apierrors.IsNotFound(err)
		}
	}
	return true
}

func (s *scaled) options(server *sqsemu.Server, queue *sqsemu.Queue, flags ...string) daemon.Options {
	return daemon.Options{
		Args: append([]string{"queue", "--queue-url=" + queue.URL(), alone}, flags...), SQS: server.URL, Groups: s.cloud.URL,
	}
}

// workers is a Deployment on the nodes of a group.
func (s *scaled) workers(name string, replicas int) {
	s.Helper()
	s.service(name, replicas, func(d *controlplane.DeploymentSpec) { d.NodeSelector = map[string]string{"group": name} })
}

func replacement(r interruption.Record) interruption.Replacement {
	if r.Replacement == nil {
		return interruption.Replacement{}
	}
	return *r.Replacement
}

// A node of an Auto Scaling group is interrupted: its instance leaves the group, the
// group launches another, and the pods move when that is a Ready node. EC2 ends the
// instance itself.
func TestGroupReplacesInterruptedNode(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true}).scale(4*time.Second, false)
	node := s.group("workers", 1, false)[0]
	instance := controlplane.InstanceID(node.Name)
	s.workers("workers", 4)
	server, queue := s.sqs()
	d := s.run(s.options(server, queue))

	queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-1", instance, time.Now()))
	done := s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Released })

	got := replacement(done)
	joined, ok := s.cloud.Instance(got.Name)
	if got.Backend != "asg" || got.Pool != "workers" || got.State != provisioner.StateReady || !ok || !joined.Launched {
		t.Errorf("replacement %+v, want one that the group launched", got)
	}
	s.mu.Lock()
	ready := s.boots[got.Name]
	s.mu.Unlock()
	for _, r := range s.requests(func(r request) bool { return r.ObjectRef.Subresource == "eviction" }) {
		if r.RequestReceivedTimestamp.Before(ready) {
			t.Errorf("eviction %s before the new node joined", ready.Sub(r.RequestReceivedTimestamp))
		}
	}
	pods, err := s.cluster.WaitReady(s.ctx, "default", "workers", 4)
	s.must(err)
	for _, p := range pods {
		if !strings.HasPrefix(p.Spec.NodeName, "joined-"+got.Name) {
			t.Errorf("pod %s is on %s", p.Name, p.Spec.NodeName)
		}
	}
	if i, _ := s.cloud.Instance(instance); i.Group != "" || i.State != asgemu.Running {
		t.Errorf("interrupted instance is %s: want it out of its group, and left to EC2", i)
	}
	if n := s.cloud.Launched("workers"); n != 1 {
		t.Errorf("%d launched, want 1", n)
	}
	if n := s.cloud.Requests("TerminateInstances"); n != 0 {
		t.Errorf("%d calls to terminate, want none", n)
	}
	chosen := d.Lines("provisioner chosen")
	if len(chosen) != 1 || chosen[0]["backend"] != "asg" || !strings.Contains(fmt.Sprint(chosen[0]["why"]), "karpenter: ") {
		t.Errorf("want one line that says which and why: %v", chosen)
	}
	for _, event := range s.events("ReplacementRequested", node.Name) {
		if !strings.Contains(event.Message, "workers") {
			t.Errorf("event %q does not name the group", event.Message)
		}
	}
	if n := s.metric(d, `spot_handler_replacements_total{backend="asg",result="ready"}`); n != 1 {
		t.Errorf("%v replacements counted as ready, want 1", n)
	}
}

// On a rebalance recommendation EC2 does not end the instance: when it is drained, we do.
func TestRebalancedInstanceIsTerminatedWhenDrained(t *testing.T) {
	s := newStory(t, controlplane.Options{}).scale(3*time.Second, false)
	node := s.group("workers", 1, false)[0]
	instance := controlplane.InstanceID(node.Name)
	s.workers("workers", 3)
	server, queue := s.sqs()
	d := s.run(s.options(server, queue))

	queue.Send(daemon.EventBridge(daemon.Rebalance, "event-1", instance, time.Now()))
	s.waitGone(node.Name)
	if i, _ := s.cloud.Instance(instance); i.State != asgemu.Terminated {
		t.Errorf("instance is %s", i)
	}
	if drained := s.waitLine(d, "drained"); drained["graceful"] != 3.0 {
		t.Errorf("want 3 graceful: %v", drained)
	}
	if n := s.cloud.Launched("workers"); n != 1 {
		t.Errorf("%d launched, want 1", n)
	}
	for _, i := range s.cloud.Members("workers") {
		if i.State != asgemu.Running {
			t.Errorf("member %s", i)
		}
	}
	_, err := s.cluster.WaitReady(s.ctx, "default", "workers", 3)
	s.must(err)
}

// On a rebalance recommendation a pod that asks not to be disrupted stays. If there is no other
// on the node, its instance stays in the group, and the node in service.
func TestInstanceStaysInItsGroupIfNothingWouldMove(t *testing.T) {
	s := newStory(t, controlplane.Options{}).scale(time.Second, false)
	node := s.group("workers", 1, false)[0]
	s.service("workers", 2, func(d *controlplane.DeploymentSpec) {
		d.Annotations = map[string]string{"karpenter.sh/do-not-disrupt": "true"}
	})
	server, queue := s.sqs()
	s.run(s.options(server, queue))

	queue.Send(daemon.EventBridge(daemon.Rebalance, "event-1", controlplane.InstanceID(node.Name), time.Now()))
	s.eventually("Event that says why", func() bool { return len(s.events("NoReplacement", node.Name)) > 0 })
	rec := s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Replacement != nil })
	if now := s.lastSeen(node.Name); rec.Phase != interruption.Waiting || now.Spec.Unschedulable || hasTaint(now, interruption.TaintKey) {
		t.Errorf("record %s, cordon %v; want the node in service", rec, now.Spec.Unschedulable)
	}
	if n := len(s.cloud.Members("workers")); n != 1 || s.cloud.Launched("workers") != 0 {
		t.Errorf("%d members and %d launched, want the one, and none", n, s.cloud.Launched("workers"))
	}

	interrupt(queue, node.Name, 2*time.Minute) // moves them
	s.eventually("launch of another instance", func() bool { return s.cloud.Launched("workers") == 1 })
}

// Without the permissions nodes are drained all the same, and what is missing is said once.
func TestWithoutPermissionsNodesAreDrained(t *testing.T) {
	s := newStory(t, controlplane.Options{}).scale(time.Second, false)
	nodes := s.group("workers", 3, false)
	s.workers("workers", 6)
	_, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 1, Prefix: "spare", Labels: map[string]string{"group": "workers"}})
	s.must(err)
	s.cloud.Fail(asgemu.Fault{Effect: asgemu.AccessDenied})
	server, queue := s.sqs()
	d := s.run(s.options(server, queue))
	for i, n := range nodes {
		queue.Send(daemon.EventBridge(daemon.SpotInterruption, fmt.Sprint("event-", i), controlplane.InstanceID(n.Name), time.Now()))
	}
	for _, n := range nodes {
		s.waitRecord(n.Name, func(r interruption.Record) bool { return r.Phase == interruption.Released })
	}
	if lines := d.Lines("no replacement through Auto Scaling groups"); len(lines) != 1 || !strings.Contains(fmt.Sprint(lines[0]["reason"]), "autoscaling:DescribeAutoScalingInstances") {
		t.Errorf("want one line that names the permission: %v", lines)
	}
	_, err = s.cluster.WaitReady(s.ctx, "default", "workers", 6)
	s.must(err)
}

// 200 nodes of one group are interrupted at once, each message comes twice, and the
// daemon is killed in the middle. The group launches 200 instances and not one more,
// each node gets one of its own, and the calls are few.
func TestBurstOfAGroupIsReplacedOnce(t *testing.T) {
	const n = 200
	s := newLargeStory(t, controlplane.Options{Heartbeat: time.Hour}).scale(5*time.Second, true)
	nodes := s.group("workers", n, true)
	s.onePodEach(nodes)
	server, queue := s.sqs()
	first := s.start(s.options(server, queue))
	ctx, cancel := context.WithTimeout(s.ctx, 30*time.Second)
	defer cancel()
	s.must(first.WaitReady(ctx))
	sent := time.Now()
	for round := range 2 {
		for i, node := range nodes {
			queue.Send(daemon.EventBridge(daemon.SpotInterruption, fmt.Sprintf("event-%d-%d", i, round), controlplane.InstanceID(node.Name), sent))
		}
	}
	s.eventually("the first instances have left", func() bool { return s.cloud.Requests("DetachInstances") >= 2 })
	first.Kill()
	before := s.cloud.Launched("workers")
	d := s.run(s.options(server, queue))

	given := map[string]string{}
	for _, node := range nodes {
		r := replacement(s.waitRecord(node.Name, func(r interruption.Record) bool { return replacement(r).State == provisioner.StateReady }))
		if other := given[r.Name]; other != "" {
			t.Errorf("%s replaces %s and %s", r.Name, other, node.Name)
		}
		given[r.Name] = node.Name
	}
	if got := s.cloud.Launched("workers"); got != n {
		t.Errorf("%d launched, want %d", got, n)
	}
	// One for each instance that is asked about, and for each Node that joins, would be 400.
	for action, most := range map[string]int{"DetachInstances": 60, "DescribeAutoScalingInstances": 200, "DescribeAutoScalingGroups": 10} {
		if calls := s.cloud.Requests(action); calls > most {
			t.Errorf("%d calls of %s, want at most %d", calls, action, most)
		}
	}
	t.Logf("killed with %d launched; calls: %d DescribeAutoScalingInstances, %d DescribeAutoScalingGroups, %d DetachInstances (%d ids at most)",
		before, s.cloud.Requests("DescribeAutoScalingInstances"), s.cloud.Requests("DescribeAutoScalingGroups"),
		s.cloud.Requests("DetachInstances"), s.cloud.Largest("DetachInstances"))
	if lines := d.Lines("ask Auto Scaling"); len(lines) > 0 {
		t.Errorf("calls failed: %v", lines[0])
	}
}

// onePodEach puts on each node a pod that nobody may move, as it would be done by the
// second: no kubelet runs here. It only makes the node worth replacing.
func (s *scaled) onePodEach(nodes []*corev1.Node) {
	s.Helper()
	for _, node := range nodes {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "on-" + node.Name, Annotations: map[string]string{"karpenter.sh/do-not-disrupt": "true"}},
			Spec: corev1.PodSpec{
				NodeName: node.Name, Containers: []corev1.Container{{Name: "app", Image: "fake"}},
			},
		}
		_, err := s.cluster.Client.CoreV1().Pods("default").Create(s.ctx, pod, metav1.CreateOptions{})
		s.must(err)
	}
}
