package notify

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// The annotations of our Events, for whoever routes or counts Events and should not have to
// read their text. An empty one is left out.
const (
	AnnotationKind         = "spot-handler/kind"
	AnnotationSource       = "spot-handler/source"
	AnnotationAction       = "spot-handler/action"
	AnnotationEventID      = "spot-handler/event-id"
	AnnotationDeadline     = "spot-handler/deadline" // RFC 3339
	AnnotationInstanceID   = "spot-handler/instance-id"
	AnnotationInstanceType = "spot-handler/instance-type"
	AnnotationZone         = "spot-handler/availability-zone"
	AnnotationNode         = "spot-handler/node" // of Events on pods
)

// aboutNode are the annotations of an Event on a Node: what its record says, and its labels.
func aboutNode(node *corev1.Node) map[string]string {
	about := map[string]string{}
	set := func(key, value string) {
		if value != "" {
			about[key] = value
		}
	}
	set(AnnotationInstanceType, node.Labels[corev1.LabelInstanceTypeStable])
	set(AnnotationZone, node.Labels[corev1.LabelTopologyZone])
	rec, err := interruption.ParseRecord(node.Annotations[interruption.Annotation])
	if err != nil {
		return about
	}
	set(AnnotationKind, string(rec.Kind))
	set(AnnotationSource, string(rec.Source))
	set(AnnotationAction, rec.Action)
	set(AnnotationEventID, rec.Event)
	set(AnnotationInstanceID, rec.Instance)
	if d := rec.DeadlineTime(); !d.IsZero() {
		set(AnnotationDeadline, d.UTC().Format(time.RFC3339))
	}
	return about
}

// aboutPod are the annotations of an Event on a pod of the node with that record.
func aboutPod(node string, rec interruption.Record) map[string]string {
	about := map[string]string{AnnotationNode: node}
	if rec.Kind != "" {
		about[AnnotationKind], about[AnnotationSource] = string(rec.Kind), string(rec.Source)
	}
	return about
}
