package aws

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	// The longest that SQS keeps anything.
	fourteenDays = 14 * 24 * 60 * 60

	key   = "arn:aws-us-gov:kms:us-gov-west-1:111122223333:key/0123abcd-0123-0123-0123-0123456789ab"
	topic = "arn:aws-us-gov:sns:us-gov-west-1:111122223333:alarms"
)

func TestQueue(t *testing.T) {
	everyWay(t, settings{}, func(t *testing.T, d deployment) {
		if want := "spot-handler-" + cluster; d.queue.name != want || d.deadLetters.name != want+"-dead-letters" {
			t.Errorf("queues %s and %s", d.queue.name, d.deadLetters.name)
		}
		if d.queue.retention != 300 {
			t.Errorf("messages are kept for %d s, want 300", d.queue.retention)
		}
		if d.deadLetters.retention != fourteenDays {
			t.Errorf("dead letters are kept for %d s, want 14 days", d.deadLetters.retention)
		}
		for _, q := range []sqsQueue{d.queue, d.deadLetters} {
			if !q.managedSSE || q.kmsKey != "" {
				t.Errorf("%s: managed encryption %t with key %q, want SQS's own", q.name, q.managedSSE, q.kmsKey)
			}
		}
	})
}

// The queue's settings agree with what the daemon does with a message.
func TestQueueAgreesWithTheDaemon(t *testing.T) {
	hidden, wait := durationOf(t, "hiddenFor"), durationOf(t, "longPoll")
	everyWay(t, settings{}, func(t *testing.T, d deployment) {
		if got := time.Duration(d.queue.visibility) * time.Second; got != hidden {
			t.Errorf("visibility timeout %s, the daemon asks for %s", got, hidden)
		}
		if got := time.Duration(d.queue.wait) * time.Second; got != wait {
			t.Errorf("wait time %s, the daemon asks for %s", got, wait)
		}

		// A message about an unknown instance is received twice by design, and once more
		// for each process that is killed with it in hand.
		count := d.queue.redrive.MaxReceiveCount
		if count < 3 {
			t.Errorf("maxReceiveCount %d, want 3 or more: the daemon looks twice", count)
		}
		// One that cannot be read is left hidden every time, and has to be moved before its
		// time in the queue is over.
		if taken := time.Duration(count+1) * hidden; taken > time.Duration(d.queue.retention)*time.Second {
			t.Errorf("a message reaches the dead-letter queue after up to %s, and is kept for %d s", taken, d.queue.retention)
		}
	})
}

func TestDeadLetters(t *testing.T) {
	everyWay(t, settings{}, func(t *testing.T, d deployment) {
		if d.queue.redrive.Target != d.deadLetters.arn {
			t.Errorf("dead letters go to %q, want %q", d.queue.redrive.Target, d.deadLetters.arn)
		}
		want := redriveAllowPolicy{Permission: "byQueue", Sources: []string{d.queue.arn}}
		if diff := cmp.Diff(want, d.deadLetters.redriveAllow); diff != "" {
			t.Errorf("redrive allow policy (-want +got):\n%s", diff)
		}
		if d.deadLetters.redrive.Target != "" {
			t.Error("the dead-letter queue has one of its own")
		}
	})
}

func TestKeyOfYourOwn(t *testing.T) {
	everyWay(t, settings{kmsKey: key}, func(t *testing.T, d deployment) {
		for _, q := range []sqsQueue{d.queue, d.deadLetters} {
			if q.managedSSE || q.kmsKey != key {
				t.Errorf("%s: managed encryption %t with key %q", q.name, q.managedSSE, q.kmsKey)
			}
		}
	})
}

func TestAlarms(t *testing.T) {
	everyWay(t, settings{}, func(t *testing.T, d deployment) {
		if len(d.alarms) != 0 {
			t.Errorf("alarms %v without a topic", d.alarms)
		}
	})
	everyWay(t, settings{alarmTopic: topic}, func(t *testing.T, d deployment) {
		if len(d.alarms) != 2 {
			t.Errorf("alarms %v, want one of dead letters and one of a queue that is not read", d.alarms)
		}
	})
}

func TestOutputs(t *testing.T) {
	names := map[string]string{ // CloudFormation's and Terraform's
		"QueueUrl": "queue_url", "QueueArn": "queue_arn", "DeadLetterQueueUrl": "dead_letter_queue_url",
		"RoleArn": "role_arn", "PolicyArn": "policy_arn",
	}
	for _, credentials := range []string{"pod-identity", "none"} {
		s := settings{credentials: credentials}
		c, m := cloudFormation(t, s), terraform(t, s)
		for name, other := range names {
			want := name != "RoleArn" || credentials != "none"
			if (c.outputs[name] != "") != want || (m.outputs[other] != "") != want {
				t.Errorf("%s: outputs %s %q and %s %q", credentials, name, c.outputs[name], other, m.outputs[other])
			}
		}
		if len(c.outputs) > len(names) || len(m.outputs) > len(names) {
			t.Errorf("outputs %v and %v, want %v", c.outputs, m.outputs, names)
		}
		if c.outputs["QueueUrl"] != c.queue.url || m.outputs["queue_url"] != m.queue.url {
			t.Errorf("queue URLs %q and %q", c.outputs["QueueUrl"], m.outputs["queue_url"])
		}
	}
}
