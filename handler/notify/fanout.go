package notify

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// Teller is told what happens to a node. No method blocks or fails.
type Teller interface {
	Noticed(node *corev1.Node, r interruption.Record)
	Replacement(node *corev1.Node, reason string, r interruption.Replacement)
	Ended(node *corev1.Node, reason string, p interruption.Pods, slack time.Duration, refusal string)
	Canceled(node *corev1.Node, r interruption.Record)
	Returned(node *corev1.Node, r interruption.Record)
	RecordUnreadable(node *corev1.Node, err error)
}

// All tells everyone in it.
type All []Teller

var (
	_ Teller = All{}
	_ Teller = (*Events)(nil)
)

// Noticed: EC2 is about to end the node.
func (a All) Noticed(node *corev1.Node, r interruption.Record) {
	for _, t := range a {
		t.Noticed(node, r)
	}
}

// Replacement: capacity was requested for the node's pods, or there will be none.
func (a All) Replacement(node *corev1.Node, reason string, r interruption.Replacement) {
	for _, t := range a {
		t.Replacement(node, reason, r)
	}
}

// Ended: the drain is over.
func (a All) Ended(node *corev1.Node, reason string, p interruption.Pods, slack time.Duration, refusal string) {
	for _, t := range a {
		t.Ended(node, reason, p, slack, refusal)
	}
}

// Canceled: the interruption was called off.
func (a All) Canceled(node *corev1.Node, r interruption.Record) {
	for _, t := range a {
		t.Canceled(node, r)
	}
}

// Returned: the instance has come back, or its rehearsal is over.
func (a All) Returned(node *corev1.Node, r interruption.Record) {
	for _, t := range a {
		t.Returned(node, r)
	}
}

// RecordUnreadable: the annotation holds something that is not a record.
func (a All) RecordUnreadable(node *corev1.Node, err error) {
	for _, t := range a {
		t.RecordUnreadable(node, err)
	}
}
