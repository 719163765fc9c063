package stories

import (
	"math/rand/v2"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
)

// holding brings up a node with a service of four pods on it, interrupts it, and waits
// until each of them has a placeholder.
func (s *story) holding(name string, notice func(instance string)) *corev1.Node {
	s.Helper()
	nodes, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{
		Count: 1, Prefix: name, CPUs: 4, Labels: map[string]string{lifecycle: "spot"},
	})
	s.must(err)
	s.service(name, 4, nil)
	notice(controlplane.InstanceID(nodes[0].Name))
	s.eventually("four placeholders", func() bool { return len(s.placeholders()) == 4 })
	return nodes[0]
}

// over removes a service that has served its purpose.
func (s *story) over(name string) {
	s.Helper()
	now, all := int64(0), metav1.DeletePropagationForeground
	s.must(s.cluster.Client.AppsV1().Deployments("default").Delete(s.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now, PropagationPolicy: &all}))
}

// Nobody makes room, and the daemon dies with the placeholders pending. They go with
// their Node; they go when the next daemon starts and the node is not interrupted any
// more; and a running daemon takes them back when somebody cancels the interruption.
func TestPlaceholdersAreNotLeftBehind(t *testing.T) {
	s := newStory(t, controlplane.Options{})
	s.accounts(inBothModes)
	server, queue := s.sqs()
	notice := func(instance string) {
		queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-of-"+instance, instance, time.Now()))
	}
	unmark := func(node string) {
		patch := []byte(`{"metadata":{"annotations":{"` + interruption.Annotation + `":null}},"spec":{"unschedulable":null,"taints":null}}`)
		_, err := s.cluster.Client.CoreV1().Nodes().Patch(s.ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
		s.must(err)
	}

	d := s.holder(server, queue, alone)
	first := s.holding("first", notice)
	d.Kill()
	s.must(s.cluster.Client.CoreV1().Nodes().Delete(s.ctx, first.Name, metav1.DeleteOptions{}))
	s.noneHeld()
	s.over("first")

	d = s.holder(server, queue, alone)
	second := s.holding("second", notice)
	d.Kill()
	unmark(second.Name)
	if n := len(s.placeholders()); n != 4 {
		t.Errorf("%d placeholders with no daemon there, want 4 to be taken back", n)
	}
	d = s.holder(server, queue, alone)
	s.noneHeld()
	if line := s.waitLine(d, "placeholders taken back"); line["placeholders"] != 4.0 || line["reason"] != "the node is not interrupted any more" {
		t.Errorf("the log says %v", line)
	}
	s.over("second")
	s.must(s.cluster.Client.CoreV1().Nodes().Delete(s.ctx, second.Name, metav1.DeleteOptions{}))

	third := s.holding("third", notice)
	unmark(third.Name)
	s.noneHeld()
	if _, err := s.cluster.Client.CoreV1().Nodes().Get(s.ctx, third.Name, metav1.GetOptions{}); err != nil {
		t.Errorf("the node is to live on: %v", err)
	}
}

// The daemon is killed at random moments from the notice to the end of the drain. Each
// pod has had one placeholder, and in the end none is left.
func TestKilledAtAnyMomentNoPlaceholderTooMany(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	s.accounts(inBothModes)
	node := s.spot(1, 4)[0]
	const pods = 12
	s.service("web", pods, func(d *controlplane.DeploymentSpec) { d.CPU, d.BudgetMinAvailable = "250m", budget(pods-2) })
	cas := s.autoscale(4, 3*time.Second)
	server, queue := s.sqs()
	// EventBridge delivers at least once. A message that a daemon had in hand when it was killed
	// is hidden for longer than the story may take.
	body := daemon.EventBridge(daemon.SpotInterruption, "event-1", controlplane.InstanceID(node.Name), time.Now())
	for range 12 {
		queue.Send(body)
		d := s.holder(server, queue, alone)
		select {
		case <-time.After(150*time.Millisecond + rand.N(1500*time.Millisecond)):
		case <-d.Done():
			t.Fatalf("daemon ended by itself with code %d", d.ExitCode())
		}
		d.Kill()
	}
	queue.Send(body)
	s.holder(server, queue, alone)
	rec := s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Released })
	if rec.Pods == nil || rec.Pods.Graceful != pods {
		t.Errorf("record %s, want %d pods graceful", rec, pods)
	}
	s.noneHeld()
	_, err := s.cluster.WaitReady(s.ctx, "default", "web", pods)
	s.must(err)
	made := s.placeholdersMade()
	for name, n := range made {
		if n != 1 {
			t.Errorf("placeholder %s was made %d times", name, n)
		}
	}
	// One whose client was killed may have been made all the same, and is not answered with
	// success then.
	for _, r := range s.requests(func(r request) bool {
		return r.Verb == "create" && r.ObjectRef.Resource == "pods" && r.ObjectRef.Namespace == holdNamespace && r.ResponseStatus.Code >= 500
	}) {
		made[r.ObjectRef.Name]++
	}
	if len(made) != pods {
		t.Errorf("%d placeholders made, want %d", len(made), pods)
	}
	if n := cas.nodes(); n != 1 {
		t.Errorf("the autoscaler has made %d nodes, want 1", n)
	}
}

// Replacement pods that come while no daemon is there preempt placeholders; pods of lower
// priority than theirs do not get the room, neither before nor in between.
func TestReplacementPodsPreemptPlaceholders(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	s.accounts(inBothModes)
	node := s.spot(1, 4)[0]
	const pods = 6
	s.service("web", pods, func(d *controlplane.DeploymentSpec) { d.BudgetMinAvailable = budget(pods) }) // nobody may be evicted
	_, err := s.cluster.Client.SchedulingV1().PriorityClasses().Create(s.ctx, &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{Name: "overprovisioning"}, Value: -10,
	}, metav1.CreateOptions{})
	s.must(err)
	fallback, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{
		Count: 1, Prefix: "od", CPUs: pods / 2, Labels: map[string]string{lifecycle: "on-demand"},
	})
	s.must(err)
	server, queue := s.sqs()
	d := s.holder(server, queue, alone)
	queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-1", controlplane.InstanceID(node.Name), time.Now()))
	s.eventually("the placeholders fill the fallback node", func() bool { return bound(s.placeholders()) == pods })
	s.waitLine(d, "replacement ready")
	d.Kill()

	_, err = s.cluster.RunDeployment(s.ctx, controlplane.DeploymentSpec{
		Name: "filler", Replicas: 2, CPU: "500m", NodeSelector: map[string]string{lifecycle: "on-demand"},
		Change: func(d *appsv1.Deployment) { d.Spec.Template.Spec.PriorityClassName = "overprovisioning" },
	})
	s.must(err)
	filler := func() (pending, bound int) {
		list, err := s.cluster.Client.CoreV1().Pods("default").List(s.ctx, metav1.ListOptions{LabelSelector: controlplane.Selector("filler")})
		s.must(err)
		for _, p := range list.Items {
			switch {
			case p.Spec.NodeName != "":
				bound++
			case plan.Unschedulable(&p):
				pending++
			}
		}
		return pending, bound
	}
	s.eventually("the filler finds no room", func() bool { pending, _ := filler(); return pending == 2 })

	for _, p := range s.podsOn(node.Name, "web")[:2] { // a deletion asks no budget
		s.must(s.cluster.Client.CoreV1().Pods("default").Delete(s.ctx, p.Name, metav1.DeleteOptions{}))
	}
	onFallback := func() (n int) {
		for _, p := range s.podsOn(fallback[0].Name, "web") {
			if controlplane.Ready(&p) {
				n++
			}
		}
		return n
	}
	s.eventually("two replacement pods in the place of two placeholders", func() bool { return onFallback() == 2 && len(s.placeholders()) == pods-2 })
	if _, n := filler(); n != 0 {
		t.Errorf("%d fillers have room, want none", n)
	}

	s.holder(server, queue, alone)
	s.must(s.cluster.Client.PolicyV1().PodDisruptionBudgets("default").Delete(s.ctx, "web", metav1.DeleteOptions{}))
	s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Released })
	s.noneHeld()
	s.eventually("all pods on the fallback node", func() bool { return onFallback() == pods })
	if _, n := filler(); n != 0 {
		t.Errorf("%d fillers have room in the end, want none", n)
	}
	if made := s.placeholdersMade(); len(made) != pods {
		t.Errorf("%d placeholders were made, want %d", len(made), pods)
	}
}
