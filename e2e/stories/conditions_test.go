package stories

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// conditionsOf are the Node's conditions that an interruption can have, in one text.
func conditionsOf(node *corev1.Node) string {
	var list []string
	for _, c := range node.Status.Conditions {
		if slices.Contains(nodes.ConditionTypes(), c.Type) {
			list = append(list, fmt.Sprintf("%s=%s(%s)", c.Type, c.Status, c.Reason))
		}
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// shows waits until these are the Node's conditions.
func (s *story) shows(node, want string) {
	s.Helper()
	last, err := s.cluster.WaitNode(s.ctx, node, func(n *corev1.Node) bool { return n != nil && conditionsOf(n) == want })
	if err != nil {
		s.Fatalf("node %s shows %q, want %q: %v", node, conditionsOf(last), want, err)
	}
}

// Anybody who knows the standard conditions follows a drain to its end, a cancellation, a recommendation
// and a scheduled event. An empty node and a drained one cost no request more than without them. What
// somebody else says of a Node by such a condition stays, whatever becomes of the interruption.
func TestStandardConditions(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	const interrupted = "spot-handler/Interrupted=True(SpotInterruption)"
	foreign := `{"status":{"conditions":[
		{"type":"DrainInProgress","status":"False","reason":"KubectlDrain","message":"by hand"},
		{"type":"Drained","status":"True","reason":"KubectlDrain","message":"by hand"},
		{"type":"MaintenancePlanned","status":"True","reason":"KernelUpdate","message":"next week"}]}}`
	const foreignShown = "DrainInProgress=False(KubectlDrain) Drained=True(KubectlDrain) MaintenancePlanned=True(KernelUpdate)"
	bare := s.bare("node", 4, 8)
	drained, stuck, others, planned := bare[0].Name, bare[1].Name, bare[2].Name, bare[3].Name
	s.patchNode(others, "status", foreign)
	pin := func(node string) func(*controlplane.DeploymentSpec) {
		return func(d *controlplane.DeploymentSpec) {
			d.NodeSelector, d.BudgetMinAvailable = map[string]string{corev1.LabelHostname: node}, budget(1)
		}
	}
	s.service("stuck", 1, pin(stuck))
	s.service("others", 1, pin(others))
	web := s.service("web", 2, func(d *controlplane.DeploymentSpec) {
		quick(d)
		d.NodeSelector = map[string]string{corev1.LabelHostname: drained}
	})
	watched := s.watchConditions(drained)
	d, queue := s.drill()

	interrupt(queue, drained, 2*time.Minute)
	ended := s.waitRecord(drained, func(r interruption.Record) bool { return r.Phase.Over() })
	s.shows(drained, "Drained=True(SpotHandlerDrained) "+interrupted)
	if !slices.Contains(watched(), "DrainInProgress=True(SpotHandlerSpotInterruption) "+interrupted) {
		t.Errorf("conditions in turn: %q", watched())
	}
	if ended.Pods == nil || ended.Pods.Graceful != len(web) {
		t.Errorf("record %s, want %d graceful", ended, len(web))
	}
	var status, all int
	for _, r := range s.requests(func(r request) bool {
		return r.ObjectRef.Resource == "nodes" && r.ObjectRef.Name == drained && r.Verb == "patch" && r.ResponseStatus.Code == 200
	}) {
		all++
		if r.ObjectRef.Subresource == "status" {
			status++
		}
	}
	if status != 2 || all > 5 {
		t.Errorf("%d patches of the Node, %d of them of its status; want at most 5 and 2: the end's record and condition are one", all, status)
	}

	interrupt(queue, stuck, 2*time.Minute)
	s.shows(stuck, "DrainInProgress=True(SpotHandlerSpotInterruption) "+interrupted)
	s.annotate(stuck, `"spot-handler/cancel":"true"`)
	s.shows(stuck, "")

	interrupt(queue, others, 2*time.Minute)
	s.shows(others, foreignShown+" "+interrupted)
	s.annotate(others, `"spot-handler/cancel":"true"`)
	s.shows(others, foreignShown)

	recommend := daemon.EventBridge(daemon.Rebalance, "event-risk", controlplane.InstanceID(stuck), time.Now().Add(time.Second))
	queue.Send(recommend)
	s.shows(stuck, "MaintenancePlanned=True(SpotHandlerRebalanceRecommendation)")
	s.annotate(stuck, `"spot-handler/cancel":"true"`)
	s.shows(stuck, "")

	start := time.Now().Add(6 * time.Hour)
	queue.Send(healthEvent("m-1", "SYSTEM_MAINTENANCE_EVENT", "upcoming", start, planned))
	s.shows(planned, "MaintenancePlanned=True(SpotHandlerScheduledEvent)")
	queue.Send(healthEvent("m-1", "SYSTEM_MAINTENANCE_EVENT", "closed", start, planned))
	s.shows(planned, "")
	if d.Stop() != 0 {
		t.Error("the daemon did not stop cleanly")
	}
}

// watchConditions follows a Node's conditions until the story ends, and returns what they were in turn.
func (s *story) watchConditions(node string) (seen func() []string) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	changes := make(chan string, 1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = s.cluster.WaitNode(ctx, node, func(n *corev1.Node) bool {
			if n != nil {
				changes <- conditionsOf(n)
			}
			return n == nil
		})
	}()
	s.Cleanup(func() { cancel(); <-done })
	var list []string
	return func() []string {
		for {
			select {
			case c := <-changes:
				list = append(list, c)
			default:
				return slices.Compact(list)
			}
		}
	}
}
