package main

import (
	"fmt"
	"time"

	"spot-handler/e2e/chaos/evidence"
	"spot-handler/e2e/chaos/plan"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
)

// letter is what a message says, to be sent again.
type letter struct {
	kind  interruption.Kind
	event string
	body  func(event string) string
}

// announce sends EC2's message about a node.
func (s *stage) announce(step plan.Step) {
	node := s.nodes[step.Node]
	instance := controlplane.InstanceID(node)
	now := time.Now()
	if len(s.metadata) > 0 {
		s.show(step, node, now)
		return
	}
	if step.What == plan.Repeat || step.What == plan.SecondID {
		s.mu.Lock()
		again, known := s.sent[node]
		s.mu.Unlock()
		if !known {
			return // steps of the same moment: this one came first
		}
		if step.What == plan.SecondID {
			again.event += "-again"
		}
		s.send(node, again, nil)
		return
	}

	// EventBridge stamps whole seconds.
	at := now.Add(step.Left - interruption.SpotNotice + step.Skew).Truncate(time.Second)
	announced := evidence.Announcement{Sent: now, Deadline: at.Add(interruption.SpotNotice)}
	var l letter
	switch step.What {
	case plan.Interrupt, plan.Stop:
		action := "terminate"
		if step.What == plan.Stop {
			action = "stop"
		}
		l = letter{kind: interruption.SpotInterruption, body: func(event string) string {
			return daemon.Envelope("aws.ec2", daemon.SpotInterruption, event, at, []string{}, map[string]string{"instance-id": instance, "instance-action": action})
		}}
	case plan.Reserve:
		ends := now.Add(step.Left + step.Skew).Truncate(time.Second)
		announced.Deadline = ends
		l = letter{kind: interruption.CapacityReservationInterruption, body: func(event string) string {
			return daemon.CapacityReservationInterruption(event, instance, now, ends)
		}}
	case plan.Recommend:
		announced.Deadline = time.Time{}
		l = letter{kind: interruption.RebalanceRecommendation, body: func(event string) string {
			return daemon.EventBridge(daemon.Rebalance, event, instance, now.Add(step.Skew))
		}}
	case plan.Shutdown:
		announced.Deadline = now
		l = letter{kind: interruption.StateChange, body: func(event string) string {
			return daemon.InstanceState("shutting-down", event, instance, now.Add(step.Skew))
		}}
	}
	l.event = fmt.Sprintf("event-%d-%d-%s-%s", s.round.Seed, s.round.Number, instance, l.kind)
	announced.Kind = l.kind
	s.mu.Lock()
	s.comeBack[node] = step.What == plan.Stop
	s.mu.Unlock()
	s.send(node, l, &announced)
}

// show has the node's metadata service announce what a step says, in mode imds. That knows no
// messages, and nothing of reservations or states.
func (s *stage) show(step plan.Step, node string, now time.Time) {
	metadata := s.metadata[step.Node]
	announced := evidence.Announcement{Kind: interruption.SpotInterruption, Sent: now, Deadline: now.Add(step.Left).Truncate(time.Second)}
	action := "terminate"
	switch step.What {
	case plan.Repeat, plan.SecondID:
		return
	case plan.Recommend:
		announced.Kind, announced.Deadline = interruption.RebalanceRecommendation, time.Time{}
	case plan.Shutdown: // as long as the shortest of the others
		announced.Deadline = now.Add(time.Minute).Truncate(time.Second)
	case plan.Stop:
		action = "stop"
	}
	s.mu.Lock()
	s.comeBack[node] = step.What == plan.Stop
	loss := s.loss(node)
	loss.Announced = append(loss.Announced, announced)
	s.mu.Unlock()
	if announced.Deadline.IsZero() {
		metadata.Rebalance(now)
		return
	}
	metadata.Interrupt(action, announced.Deadline)
}

// send puts a letter in the queue, and notes it; announced is nil if it says nothing new.
func (s *stage) send(node string, l letter, announced *evidence.Announcement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	loss := s.loss(node)
	if announced != nil {
		loss.Announced = append(loss.Announced, *announced)
	}
	s.sent[node] = l
	s.messages = append(s.messages, evidence.Message{ID: s.queue.Send(l.body(l.event)), Node: node, Instance: loss.Instance, Kind: l.kind})
}

// loss is what is known about the node. The caller holds the mutex.
func (s *stage) loss(node string) *evidence.Loss {
	if s.losses[node] == nil {
		s.losses[node] = &evidence.Loss{Node: node, Instance: controlplane.InstanceID(node)}
	}
	return s.losses[node]
}
