package sim

import (
	"fmt"
	"time"

	"spot-handler/e2e/imdsemu"
	"spot-handler/handler/interruption"
)

// scheduledID is the id of the event that EC2 has scheduled for an instance.
func scheduledID(l Loss) string { return "instance-event-" + instanceID(l.Node)[2:] }

// announceRetirement has EC2 announce that an instance will be retired, or rebooted, and perhaps take that back.
func (w *World) announceRetirement(nth int, l Loss) {
	start := w.began.Add(l.At + l.Lead).Truncate(time.Second)
	say := func(status string, n int) {
		w.tellRetirement(l, status, start)
		if w.Scene.Intake == IntakeIMDS {
			return
		}
		event := fmt.Sprintf("%08x-%04x-4000-8000-5c4ed0000%03d", w.Scene.Seed&0xffffffff, nth, n)
		w.note("ec2: retirement of %s is %s, event %s", l.Node, status, event)
		id := w.Queue.Send(retirement(event, l, status, start))
		if status != "closed" {
			w.judge.sent(id, l.Node, interruption.ScheduledEvent)
		}
	}
	w.at(l.At, "announce retirement of "+l.Node, func() {
		w.judge.announced(l)
		for n := range l.Copies {
			w.after(l.Delay+time.Duration(n)*l.Again, fmt.Sprintf("send retirement of %s %d", l.Node, n), func() { say("upcoming", n) })
		}
	})
	if l.Withdrawn > 0 {
		w.at(l.Withdrawn, "withdraw retirement of "+l.Node, func() { say("closed", 99) })
	}
}

// tellRetirement has the metadata say so.
func (w *World) tellRetirement(l Loss, status string, start time.Time) {
	a := w.agents[l.Node]
	switch {
	case a == nil:
	case status == "closed":
		if a.retires {
			a.metadata.Cancel(scheduledID(l))
		}
	case !a.retires:
		a.retires = true
		if l.Withdrawn == 0 {
			w.expectRecord(l.Node, interruption.ScheduledEvent)
		}
		code := "instance-retirement"
		if l.Reboots {
			code = "instance-reboot"
		}
		a.metadata.Schedule(imdsemu.ScheduledEvent{
			Code: code, Description: "degraded hardware", EventID: scheduledID(l), NotBefore: start, State: "active",
		})
	}
}

// retirement is what AWS Health says of a scheduled event.
// https://docs.aws.amazon.com/health/latest/ug/aws-health-events-eventbridge-schema.html
func retirement(event string, l Loss, status string, start time.Time) string {
	stamp := func(t time.Time) string { return t.UTC().Format("Mon, 2 Jan 2006 15:04:05 GMT") }
	entity := map[string]string{"entityValue": instanceID(l.Node), "status": "PENDING"}
	if status == "closed" {
		entity["status"] = "RESOLVED"
	}
	code := "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED"
	if l.Reboots {
		code = "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED"
	}
	return envelope("aws.health", "AWS Health Event", event, time.Now(), map[string]any{
		"eventArn": "arn:aws:health:eu-west-1::event/EC2/" + code + "/" + scheduledID(l), "service": "EC2",
		"eventTypeCode": code, "eventTypeCategory": "scheduledChange", "statusCode": status,
		"startTime": stamp(start), "lastUpdatedTime": stamp(time.Now()), "affectedEntities": []any{entity},
		"page": "1", "totalPages": "1", "backupEvent": "false",
	})
}
