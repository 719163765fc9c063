package stories

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/sqsemu"
)

// envelope is a message of EventBridge.
// https://docs.aws.amazon.com/eventbridge/latest/ref/overiew-event-structure.html
func (s *story) envelope(id, source, detailType string, detail map[string]any) string {
	s.Helper()
	body, err := json.Marshal(map[string]any{
		"version": "0", "id": id, "detail-type": detailType, "source": source, "account": "123456789012",
		"time": time.Now().UTC().Format(time.RFC3339), "region": "eu-west-1", "resources": []string{}, "detail": detail,
	})
	s.must(err)
	return string(body)
}

// A dry run logs the story of every kind, and changes nothing: no Node, no pod, no message.
func TestDryRunOfEveryKind(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	nodes := s.bare("node", 7, 8)
	s.service("web", 7, quick)
	server, queue := s.sqs()
	d := s.runQueue(server, queue, "--dry-run", "--scheduled-lead=1h")

	window := time.Now().Add(48 * time.Hour).UTC()
	kinds := []struct {
		kind, source, detailType string
		detail                   func(instance string) map[string]any
		story                    []string // beside the record and the cordon, which all have
	}{
		{"spot-interruption", "aws.ec2", "EC2 Spot Instance Interruption Warning", func(i string) map[string]any {
			return map[string]any{"instance-id": i, "instance-action": "terminate"}
		}, []string{"would release node"}},
		{"rebalance-recommendation", "aws.ec2", "EC2 Instance Rebalance Recommendation", func(i string) map[string]any {
			return map[string]any{"instance-id": i}
		}, []string{"would wait"}},
		{"capacity-reservation-interruption", "aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning", func(i string) map[string]any {
			return map[string]any{"instance-id": i, "instance-action": "terminate",
				"instance-termination-time": time.Now().Add(2 * time.Minute).UTC().Format(time.RFC3339)}
		}, []string{"would release node"}},
		{"scheduled-event", "aws.health", "AWS Health Event", func(i string) map[string]any {
			return map[string]any{"service": "EC2", "eventTypeCategory": "scheduledChange", "eventTypeCode": "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED",
				"eventArn": "arn:aws:health:eu-west-1::event/EC2/1", "statusCode": "upcoming", "startTime": window.Format("Mon, 02 Jan 2006 15:04:05 GMT"),
				"affectedEntities": []any{map[string]any{"entityValue": i}}}
		}, []string{"would wait", "would keep node"}},
		{"instance-terminating", "aws.autoscaling", "EC2 Instance-terminate Lifecycle Action", func(i string) map[string]any {
			return map[string]any{"LifecycleActionToken": "87654321-4321-4321-4321-210987654321", "AutoScalingGroupName": "workers", "LifecycleHookName": "drain",
				"EC2InstanceId": i, "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING"}
		}, []string{"would complete lifecycle hook"}},
		{"state-change", "aws.ec2", "EC2 Instance State-change Notification", func(i string) map[string]any {
			return map[string]any{"instance-id": i, "state": "shutting-down"}
		}, nil},
	}
	var ids []string
	for i, k := range kinds {
		ids = append(ids, queue.Send(s.envelope("event-"+k.kind, k.source, k.detailType, k.detail(controlplane.InstanceID(nodes[i].Name)))))
	}
	// A hook of an instance that is no Node.
	ids = append(ids, queue.Send(s.envelope("event-gone", kinds[4].source, kinds[4].detailType, kinds[4].detail("i-0123456789abcdef0"))))

	reported := func(message, node string) bool {
		for _, l := range d.Lines("dry run: " + message) {
			if l["node"] == node || node == "" && l["instance_id"] == "i-0123456789abcdef0" {
				return true
			}
		}
		return false
	}
	for i, k := range kinds {
		for _, message := range append([]string{"would record", "would cordon", "would request replacement"}, k.story...) {
			s.eventually(k.kind+": "+message, func() bool { return reported(message, nodes[i].Name) })
		}
	}
	s.eventually("the hook of the unknown instance", func() bool { return reported("would complete lifecycle hook", "") })

	if code := d.Stop(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	for i, id := range ids {
		if queue.Deleted(id) {
			t.Errorf("message %d was deleted", i)
		}
	}
	for _, n := range nodes {
		now := s.lastSeen(n.Name)
		if now.Spec.Unschedulable || len(now.Spec.Taints) != len(n.Spec.Taints) {
			t.Errorf("node %s: unschedulable %v, taints %v", n.Name, now.Spec.Unschedulable, now.Spec.Taints)
		}
		for key := range now.Annotations {
			if strings.HasPrefix(key, "spot-handler/") {
				t.Errorf("node %s has annotation %s", n.Name, key)
			}
		}
	}
	s.wantNothingWritten(server)
}

// wantNothingWritten asserts that no daemon has written anything, neither to the API server
// nor to SQS.
func (s *story) wantNothingWritten(server *sqsemu.Server) {
	s.Helper()
	wrote := s.requests(func(r request) bool {
		switch r.Verb {
		case "get", "list", "watch":
			return false
		}
		return !strings.HasPrefix(r.ObjectRef.Resource, "selfsubject")
	})
	if len(wrote) != 0 {
		s.Errorf("%d requests that write: %+v", len(wrote), wrote)
	}
	for _, action := range []string{"ChangeMessageVisibilityBatch", "DeleteMessageBatch"} {
		if n := server.Requests(action); n != 0 {
			s.Errorf("%d calls of %s", n, action)
		}
	}
}

// A DaemonSet that only says what would be done starts with the permissions that the chart gives its
// account, and reads with them all that it plans with.
func TestDryRunOnTheNode(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	node := s.bare("node", 1, 8)[0]
	s.service("web", 2, quick)
	server := s.imds(node)
	d := s.runIMDS(server, node, "--drain=false", "--dry-run", "--provisioner=none")
	server.Interrupt("terminate", time.Now().Add(2*time.Minute))
	s.eventually("plans for the pods of web and the daemon's own", func() bool { return len(d.Lines("dry run: pod")) == 3 })
	for _, used := range []right{{verb: "list", group: "apps", resource: "replicasets"}, {verb: "list", resource: "resourcequotas"}} {
		if !s.used(dryRunAccount)[used] {
			t.Errorf("did not %s", used)
		}
	}
	if _, has := record(s.lastSeen(node.Name)); has {
		t.Error("the dry run has left a record")
	}
}
