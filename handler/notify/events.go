// Package notify tells people what happens to their nodes: with Kubernetes Events,
// which `kubectl describe node` and `kubectl describe pod` show. All tells several
// listeners the same, such as Events and webhooks.
//
// Nothing here blocks or fails: an Event that cannot be written is dropped, as the record
// on the Node is what counts.
package notify

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"spot-handler/handler/interruption"
)

// The reasons of our Events on Nodes.
const (
	ReasonReplacementRequested = "ReplacementRequested"
	ReasonReplacementFailed    = "ReplacementFailed"
	ReasonNoReplacement        = "NoReplacement"
	ReasonDrained              = "Drained"
	ReasonDeadlineReached      = "DeadlineReached"
	ReasonNodeGone             = "NodeGone"
	ReasonCanceled             = "InterruptionCanceled"
	ReasonInstanceReturned     = "InstanceReturned"
	ReasonRehearsalOver        = "RehearsalOver"
	ReasonRecordUnreadable     = "RecordUnreadable"
	ReasonPeersNotNotified     = "PeersNotNotified"
)

// The reasons of our Events on pods.
const (
	ReasonEvictionBlocked = "EvictionBlocked"
	ReasonEvictionForced  = "EvictionForced"
	ReasonPodLeft         = "LeftOnInterruptedNode"
	ReasonMeaningless     = "AnnotationMeaningless"
)

// Events writes Kubernetes Events.
type Events struct {
	recorder *recorder
	node     func(name string) (*corev1.Node, bool)
}

// NewEvents returns Events that are kept until Run writes them with client, the REST
// client of core/v1. Those about a pod say what the record of its node says; node finds that.
func NewEvents(client rest.Interface, node func(name string) (*corev1.Node, bool)) *Events {
	return &Events{newRecorder(client), node}
}

// Run writes Events until ctx ends.
func (e *Events) Run(ctx context.Context) error {
	e.recorder.run(ctx)
	return nil
}

// tell writes an Event on a Node, with what its record says as annotations.
func (e *Events) tell(node *corev1.Node, kind, reason, text string) {
	e.recorder.AnnotatedEventf(node, aboutNode(node), kind, reason, "%s", Said(recordOf(node), text))
}

// tellPod writes a warning about a pod of the node.
func (e *Events) tellPod(node string, pod *corev1.Pod, reason, text string) {
	var rec interruption.Record
	if n, ok := e.node(node); ok {
		rec = recordOf(n)
	}
	e.recorder.AnnotatedEventf(pod, aboutPod(node, rec), corev1.EventTypeWarning, reason, "%s", Said(rec, text))
}

// recordOf is the Node's record; none, and it is no rehearsal.
func recordOf(node *corev1.Node) interruption.Record {
	rec, _ := interruption.ParseRecord(node.Annotations[interruption.Annotation])
	return rec
}

// Noticed: EC2 is about to end the node.
func (e *Events) Noticed(node *corev1.Node, r interruption.Record) {
	e.tell(node, corev1.EventTypeWarning, NoticeReason(r.Kind), NoticeText(r))
}

// Replacement: capacity was requested for the node's pods, or there will be none.
func (e *Events) Replacement(node *corev1.Node, reason string, r interruption.Replacement) {
	switch reason {
	case ReasonReplacementRequested:
		text := ""
		if r.Reason != "" {
			text = "; " + r.Reason
		}
		e.tell(node, corev1.EventTypeNormal, reason, fmt.Sprintf("requested %s in pool %s from %s%s", r.Name, r.Pool, r.Backend, text))
	default:
		e.tell(node, corev1.EventTypeWarning, reason, "no replacement: "+r.Reason)
	}
}

// About is an Event on an object that is no Node or pod of ours, such as the
// replacement that a provisioner has asked for.
func (e *Events) About(object *corev1.ObjectReference, warning bool, reason, text string) {
	kind := corev1.EventTypeNormal
	if warning {
		kind = corev1.EventTypeWarning
	}
	e.recorder.Event(object, kind, reason, text)
}

// Ended: the drain is over.
func (e *Events) Ended(node *corev1.Node, reason string, p interruption.Pods, slack time.Duration, refusal string) {
	kind := corev1.EventTypeNormal
	if reason != ReasonDrained || p.Left+p.Forced+p.Truncated > 0 {
		kind = corev1.EventTypeWarning
	}
	p.Refusal = refusal
	e.tell(node, kind, reason, EndText(p, slack))
}

// Canceled: the interruption was called off, and what it had set on the node is undone.
func (e *Events) Canceled(node *corev1.Node, r interruption.Record) {
	e.tell(node, corev1.EventTypeNormal, ReasonCanceled, CanceledText(r))
}

// Returned: the instance has come back, or its rehearsal is over, and what was set on the node is
// undone.
func (e *Events) Returned(node *corev1.Node, r interruption.Record) {
	e.tell(node, corev1.EventTypeNormal, ReturnedReason(r), ReturnedText(r))
}

// RecordUnreadable: the annotation holds something that is not a record.
func (e *Events) RecordUnreadable(node *corev1.Node, err error) {
	e.recorder.AnnotatedEventf(node, aboutNode(node), corev1.EventTypeWarning, ReasonRecordUnreadable,
		"annotation %s is not acted on: %v", interruption.Annotation, err)
}

// PeersNotNotified: the other pods of a gang that leaves the node could not be read.
func (e *Events) PeersNotNotified(node, gang, reason string) {
	if n, ok := e.node(node); ok {
		e.tell(n, corev1.EventTypeWarning, ReasonPeersNotNotified, fmt.Sprintf("the other pods of gang %.300q were not notified: %s", gang, reason))
	}
}

// EvictionBlocked: a pod has to leave and cannot, for a reason in the API server's own
// words.
func (e *Events) EvictionBlocked(node string, pod *corev1.Pod, reason string) {
	e.tellPod(node, pod, ReasonEvictionBlocked, fmt.Sprintf("cannot leave interrupted node %s yet: %s", node, reason))
}

// EvictionForced: a pod was deleted past its disruption budget, as --blocked-pods or the
// annotation of that name says.
func (e *Events) EvictionForced(node string, pod *corev1.Pod, reason string) {
	e.tellPod(node, pod, ReasonEvictionForced,
		fmt.Sprintf("deleted past its disruption budget, as interrupted node %s is about to end: %s", node, reason))
}

// PodLeft: the node ends with the pod on it.
func (e *Events) PodLeft(node string, pod *corev1.Pod, reason string) {
	if reason == "" {
		reason = "there was no time to evict it"
	}
	e.tellPod(node, pod, ReasonPodLeft, fmt.Sprintf("left on interrupted node %s at its deadline: %s", node, reason))
}

// AnnotationMeaningless: the pod, or its namespace, asks for something that nobody knows.
func (e *Events) AnnotationMeaningless(node string, pod *corev1.Pod, text string, ofNamespace bool) {
	whose := ""
	if ofNamespace {
		whose = " of the namespace"
	}
	e.tellPod(node, pod, ReasonMeaningless, fmt.Sprintf("annotation%s is ignored: %s", whose, text))
}
