package stories

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

// message is the body that EventBridge puts in the queue for any kind.
func message(detailType, source, id string, at time.Time, detail map[string]any) string {
	body, err := json.Marshal(map[string]any{
		"version": "0", "id": id, "detail-type": detailType, "source": source, "account": "123456789012",
		"time": at.UTC().Format(time.RFC3339), "region": "eu-west-1", "resources": []string{}, "detail": detail,
	})
	if err != nil { // it is made of what JSON has
		panic(err)
	}
	return string(body)
}

// healthEvent is a scheduled change of AWS Health. The type is such as
// INSTANCE_REBOOT_MAINTENANCE_SCHEDULED, the status open, upcoming or closed.
// https://docs.aws.amazon.com/health/latest/ug/aws-health-events-eventbridge-schema.html
func healthEvent(name, kind, status string, start time.Time, nodes ...string) string {
	var entities []map[string]any
	for _, node := range nodes {
		entities = append(entities, map[string]any{"entityValue": controlplane.InstanceID(node), "status": "PENDING"})
	}
	return message("AWS Health Event", "aws.health", fmt.Sprint("health-", name, "-", status), time.Now(), map[string]any{
		"eventArn": "arn:aws:health:eu-west-1::event/EC2/AWS_EC2_" + kind + "/" + name, "service": "EC2",
		"eventTypeCode": "AWS_EC2_" + kind, "eventTypeCategory": "scheduledChange", "eventScopeCode": "ACCOUNT_SPECIFIC",
		"startTime": start.UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT"), "statusCode": status, "affectedEntities": entities,
	})
}

// stateChange is EC2's message about the state of the node's instance.
func stateChange(node, state string) string {
	return message("EC2 Instance State-change Notification", "aws.ec2", "state-"+node+"-"+state, time.Now(),
		map[string]any{"instance-id": controlplane.InstanceID(node), "state": state})
}

// patchNode changes a Node as somebody else would; the subresource may be empty.
func (s *story) patchNode(node, subresource, patch string) {
	s.Helper()
	var more []string
	if subresource != "" {
		more = append(more, subresource)
	}
	_, err := s.cluster.Client.CoreV1().Nodes().Patch(s.ctx, node, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, more...)
	s.must(err)
}

// boots says which run of its machine the node is.
func (s *story) boots(node, boot string) {
	s.Helper()
	s.patchNode(node, "status", fmt.Sprintf(`{"status":{"nodeInfo":{"bootID":%q}}}`, boot))
}

func (s *story) waitNoRecord(node string) *corev1.Node {
	s.Helper()
	found, err := s.cluster.WaitNode(s.ctx, node, func(n *corev1.Node) bool {
		_, has := n.Annotations[interruption.Annotation]
		return !has
	})
	s.must(err)
	return found
}

// An event that is days ahead is recorded, and pods come and go as ever. When the lead
// has come, here by a daemon with a longer one, the node is drained, also by a process that
// never saw the message.
func TestScheduledEventIsDrainedBeforeItsWindow(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	node := s.bare("node", 1, 4)[0]
	pods := s.service("web", 4, quick)
	server, queue := s.sqs()
	first := s.runQueue(server, queue, "--scheduled-lead=1h")

	start := time.Now().Add(6 * time.Hour).Truncate(time.Second)
	id := queue.Send(healthEvent("e-1", "PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED", "upcoming", start, node.Name))
	s.eventually("deletion of the message", func() bool { return queue.Deleted(id) })
	rec := s.waitRecord(node.Name, func(r interruption.Record) bool { return true })
	if rec.Phase != interruption.Waiting || rec.Kind != interruption.ScheduledEvent || !rec.Deadline.Equal(start) {
		t.Errorf("record %s, want one that waits for %s", rec, start)
	}
	s.waitLine(first, "drain waits")
	if err := s.stays(2*time.Second, func() bool { n := s.lastSeen(node.Name); return !n.Spec.Unschedulable && len(n.Spec.Taints) == 0 }); err != nil {
		t.Errorf("marked hours before its time: %+v", s.lastSeen(node.Name).Spec)
	}
	pods = append(pods, s.service("more", 1, quick)...) // the node takes pods still
	if n := len(s.evictions()); n != 0 {
		t.Errorf("%d evictions", n)
	}
	first.Kill()

	s.bare("spare", 1, 8)
	second := s.runQueue(server, queue, "--scheduled-lead=12h")
	rec = s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Released })
	if rec.Pods == nil || rec.Pods.Graceful != 5 || rec.Pods.Total != 5 {
		t.Errorf("record %s, want 5 graceful", rec)
	}
	if n := s.lastSeen(node.Name); !n.Spec.Unschedulable || !hasTaint(n, interruption.TaintKey) {
		t.Errorf("drained without a cordon: %+v", n.Spec)
	}
	s.waitLine(second, "wait is over")
	s.wantEachOnce(uids(pods))
}

// Maintenance is announced for two nodes, and canceled: for one in the middle of its
// drain, for one when it is drained. Both are as before, pods come back, and what an admin
// had set himself stays: the cordon, and the label for load balancers.
func TestCanceledMaintenanceUncordons(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	drained := s.bare("drained", 1, 2)[0]
	pods := s.service("web", 4, quick) // fills its node
	full := s.bare("full", 1, 2)[0]
	// No budget lets these go, and nothing takes their replacement pods.
	stuck := s.service("stuck", 2, surge(2, func(d *controlplane.DeploymentSpec) {
		d.NodeSelector, d.BudgetMinAvailable = map[string]string{corev1.LabelHostname: full.Name}, budget(2)
	}))
	s.bare("spare", 1, 2) // takes the 4 pods of web and no more
	admins := s.bare("admins", 1, 2)[0]
	s.patchNode(admins.Name, "", `{"metadata":{"labels":{"`+interruption.ExcludeFromLoadBalancers+`":"admin"}},"spec":{"unschedulable":true}}`)
	d, queue := s.drill()

	start := time.Now().Add(20 * time.Minute)
	event := func(status string) string {
		return healthEvent("m-1", "SYSTEM_MAINTENANCE_EVENT", status, start, drained.Name, full.Name, admins.Name)
	}
	queue.Send(event("upcoming"))
	for _, n := range []*corev1.Node{drained, admins} {
		s.waitRecord(n.Name, func(r interruption.Record) bool { return r.Phase == interruption.Drained })
	}
	s.waitSurged(2)
	if n := len(s.podsOn(drained.Name, "web")); n != 0 {
		t.Errorf("%d pods on the drained node", n)
	}
	s.wantEachOnce(uids(pods))

	twice := event("closed")
	queue.Send(twice)
	queue.Send(twice)
	s.wantAsBefore(full.Name, "stuck", stuck)
	after := s.waitNoRecord(drained.Name)
	if after.Spec.Unschedulable || hasTaint(after, interruption.TaintKey) {
		t.Errorf("node %s is marked still: %+v", after.Name, after.Spec)
	}
	s.eventually("Event about the end", func() bool { return len(s.events("InterruptionCanceled", drained.Name)) == 1 })
	after = s.waitNoRecord(admins.Name)
	if !after.Spec.Unschedulable || hasTaint(after, interruption.TaintKey) || after.Labels[interruption.ExcludeFromLoadBalancers] != "admin" {
		t.Errorf("an admin had cordoned %s and labelled it: %+v, labels %v", after.Name, after.Spec, after.Labels)
	}

	// There is room again, and it is used.
	_, err := s.cluster.Client.AppsV1().Deployments("default").Patch(s.ctx, "web", types.MergePatchType, []byte(`{"spec":{"replicas":8}}`), metav1.PatchOptions{})
	s.must(err)
	s.eventually("pods on the node", func() bool { return len(s.podsOn(drained.Name, "web")) > 0 })

	// The announcement once more, as messages come: it is past.
	queue.Send(event("upcoming"))
	s.waitEmpty(queue)
	s.waitNoRecord(drained.Name)
	if done, off := s.metric(d, `spot_handler_drains_total{kind="scheduled-event",result="completed"}`),
		s.metric(d, `spot_handler_drains_total{kind="scheduled-event",result="canceled"}`); done != 2 || off != 1 {
		t.Errorf("%v drains completed and %v canceled, want 2 and 1", done, off)
	}
}

// A reboot, and a spot interruption that only stops its instance: the nodes are kept, and
// uncordoned when their boot id has changed and they are Ready. What was taken out of load
// balancers goes back, but for what an admin had taken out. One that hibernates is kept
// too, and wakes up with the boot id that it had. One node is Karpenter's: its NodeClaim
// is not touched, though its pods have been replaced elsewhere.
func TestRebootedNodeIsUncordoned(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true, Karpenter: true})
	reboots, stops, admins := s.bare("reboots", 1, 2)[0], s.bare("stops", 1, 2)[0], s.bare("admins", 1, 2)[0]
	s.patchNode(admins.Name, "", `{"metadata":{"labels":{"`+interruption.ExcludeFromLoadBalancers+`":"admin"}}}`)
	sleeps := s.bare("sleeps", 1, 2)[0]
	s.boots(sleeps.Name, "boot-1")
	s.service("web", 8, quick)
	s.bare("spare", 1, 8)
	team := map[string]string{"team": "batch"}
	s.must(s.cluster.CreatePools(s.ctx,
		controlplane.PoolSpec{Name: "batch", Labels: team, Annotations: map[string]string{"spot-handler/fallback-nodepool": "fallback"}},
		controlplane.PoolSpec{Name: "fallback", Labels: team, Capacity: []string{controlplane.OnDemand}}))
	claimed := s.node("batch")
	s.service("batch", 2, func(d *controlplane.DeploymentSpec) { quick(d); d.NodeSelector = team })
	all := []*corev1.Node{reboots, stops, admins, claimed}
	for _, n := range all {
		s.boots(n.Name, "boot-1")
	}
	d, queue := s.drill()

	queue.Send(healthEvent("r-1", "INSTANCE_REBOOT_MAINTENANCE_SCHEDULED", "upcoming", time.Now().Add(10*time.Minute), reboots.Name, claimed.Name))
	for _, n := range []*corev1.Node{stops, admins} {
		queue.Send(message(daemon.SpotInterruption, "aws.ec2", "stop-"+n.Name, time.Now(),
			map[string]any{"instance-id": controlplane.InstanceID(n.Name), "instance-action": "stop"}))
	}
	// It is awake a minute after the notice at the earliest, of which most has passed.
	awake := time.Now().Add(5 * time.Second)
	queue.Send(message(daemon.SpotInterruption, "aws.ec2", "sleep", awake.Add(-time.Minute),
		map[string]any{"instance-id": controlplane.InstanceID(sleeps.Name), "instance-action": "hibernate"}))
	for _, n := range append(all, sleeps) {
		rec := s.waitRecord(n.Name, func(r interruption.Record) bool { return r.Phase.Over() })
		if rec.Phase != interruption.Drained || rec.Boot != "boot-1" {
			t.Errorf("record %s, want it drained and the node kept", rec)
		}
	}
	if rec, _ := record(s.lastSeen(claimed.Name)); replacement(rec).State != provisioner.StateReady || len(s.claims("fallback", "")) != 1 {
		t.Errorf("record %s, want a replacement in pool fallback", rec)
	}
	if n := s.lastSeen(stops.Name); n.Labels[interruption.ExcludeFromLoadBalancers] != interruption.ExcludeFromLoadBalancersValue {
		t.Errorf("not taken out of load balancers: %v", n.Labels)
	}
	// A kubelet that restarts is no reboot.
	s.patchNode(reboots.Name, "status", `{"status":{"nodeInfo":{"kubeletVersion":"v1"}}}`)
	if err := s.stays(2*time.Second, func() bool { return s.lastSeen(reboots.Name).Spec.Unschedulable }); err != nil {
		t.Error("uncordoned before the reboot")
	}
	for _, n := range all {
		s.boots(n.Name, "boot-2")
		after := s.waitNoRecord(n.Name)
		if after.Spec.Unschedulable || hasTaint(after, interruption.TaintKey) {
			t.Errorf("node %s is marked still: %+v", n.Name, after.Spec)
		}
		want := ""
		if n == admins {
			want = "admin"
		}
		if got := after.Labels[interruption.ExcludeFromLoadBalancers]; got != want {
			t.Errorf("node %s: label for load balancers %q, want %q", n.Name, got, want)
		}
		s.eventually("Event about the return", func() bool { return len(s.events("InstanceReturned", n.Name)) == 1 })
	}
	s.eventually("the return of the node that sleeps", func() bool { // kwok has it Ready again at once
		if n := s.lastSeen(sleeps.Name); n.Annotations[interruption.Annotation] == "" {
			return !n.Spec.Unschedulable && len(s.events("InstanceReturned", n.Name)) == 1
		}
		if since, ready := nodes.ReadySince(s.lastSeen(sleeps.Name)); ready && !since.After(awake) {
			s.patchNode(sleeps.Name, "status", `{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown"}]}}`)
		}
		return false
	})
	claim := s.claim(claimed.OwnerReferences[0].Name)
	if claim.GetDeletionTimestamp() != nil || claim.GetAnnotations()["karpenter.sh/nodeclaim-termination-timestamp"] != "" || s.lastSeen(claimed.Name).UID != claimed.UID {
		t.Errorf("the instance came back, and its NodeClaim was not left alone: %v", claim.Object["metadata"])
	}
	for _, r := range s.requests(func(r request) bool {
		return r.ObjectRef.Resource == "nodeclaims" && r.ObjectRef.Name == claim.GetName()
	}) {
		if r.Verb != "get" {
			t.Errorf("%s of the NodeClaim", r.Verb)
		}
	}
	for series, want := range map[string]float64{
		`{kind="scheduled-event",result="completed"}`: 2, `{kind="spot-interruption",result="completed"}`: 3,
		`{kind="scheduled-event",result="canceled"}`: 0, `{kind="spot-interruption",result="canceled"}`: 0,
	} {
		if n := s.metric(d, "spot_handler_drains_total"+series); n != want {
			t.Errorf("%v drains %s, want %v", n, series, want)
		}
	}
}
