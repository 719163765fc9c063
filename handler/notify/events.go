// Package notify tells people what happens to their nodes: with Kubernetes Events,
// which `kubectl describe node` and `kubectl describe pod` show.
//
// Nothing here blocks or fails: an Event that cannot be written is dropped, as the
// record on the Node is what counts.
package notify

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"spot-handler/handler/interruption"
)

// The reasons of our Events on Nodes.
const (
	ReasonReplacementRequested = "ReplacementRequested"
	ReasonReplacementFailed    = "ReplacementFailed"
	ReasonNoReplacement        = "NoReplacement"
	ReasonDrained              = "Drained"
	ReasonDeadlineReached      = "DeadlineReached"
	ReasonCanceled             = "InterruptionCanceled"
	ReasonRecordUnreadable     = "RecordUnreadable"
)

// The reasons of our Events on pods.
const (
	ReasonEvictionBlocked = "EvictionBlocked"
	ReasonEvictionForced  = "EvictionForced"
	ReasonPodLeft         = "LeftOnInterruptedNode"
)

// noticed gives the reason of the Event for a notice: each kind has its own.
var noticed = map[interruption.Kind]string{
	interruption.SpotInterruption:                "SpotInterruption",
	interruption.RebalanceRecommendation:         "RebalanceRecommendation",
	interruption.CapacityReservationInterruption: "CapacityReservationInterruption",
	interruption.ScheduledEvent:                  "ScheduledEvent",
	interruption.InstanceTerminating:             "InstanceTerminating",
	interruption.StateChange:                     "InstanceStateChange",
}

// Events writes Kubernetes Events.
type Events struct {
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
	client      rest.Interface
}

// NewEvents returns Events that are kept until Run writes them with client, the REST
// client of core/v1. The scheme knows the types of the objects that Events are about.
func NewEvents(client rest.Interface, scheme *runtime.Scheme) *Events {
	b := record.NewBroadcaster()
	return &Events{
		broadcaster: b,
		recorder:    b.NewRecorder(scheme, corev1.EventSource{Component: "spot-handler"}),
		client:      client,
	}
}

// Run writes Events until ctx ends.
func (e *Events) Run(ctx context.Context) error {
	recording := e.broadcaster.StartRecordingToSink(sink{ctx, e.client})
	defer recording.Stop()
	<-ctx.Done()
	e.broadcaster.Shutdown()
	return nil
}

// Noticed: EC2 is about to end the node.
func (e *Events) Noticed(node *corev1.Node, r interruption.Record) {
	when := "no deadline"
	if d := r.DeadlineTime(); !d.IsZero() {
		when = fmt.Sprintf("deadline %s, in %.0f s", d.Format(time.RFC3339), time.Until(d).Seconds())
	}
	done := "node cordoned"
	if r.Phase == interruption.Waiting {
		done = "the drain waits"
	}
	e.recorder.AnnotatedEventf(node, aboutNode(node), corev1.EventTypeWarning, noticed[r.Kind], "%s of %s from %s: %s; %s",
		r.Kind, r.Instance, r.Source, when, done)
}

// Replacement: capacity was requested in the node's place, or it is known that
// there will be none.
func (e *Events) Replacement(node *corev1.Node, reason string, r interruption.Replacement) {
	switch reason {
	case ReasonReplacementRequested:
		text := ""
		if r.Reason != "" {
			text = "; " + r.Reason
		}
		e.recorder.AnnotatedEventf(node, aboutNode(node), corev1.EventTypeNormal, reason, "requested %s in pool %s from %s%s", r.Name, r.Pool, r.Backend, text)
	default:
		e.recorder.AnnotatedEventf(node, aboutNode(node), corev1.EventTypeWarning, reason, "no replacement: %s", r.Reason)
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
	kind, text := corev1.EventTypeNormal, ""
	if reason != ReasonDrained || p.Left+p.Forced+p.Truncated > 0 {
		kind = corev1.EventTypeWarning
	}
	if slack != 0 {
		text = fmt.Sprintf("; slack %.0f s", slack.Seconds())
	}
	if refusal != "" {
		text += "; last refusal: " + refusal
	}
	e.recorder.AnnotatedEventf(node, aboutNode(node), kind, reason, "%d pods: %d graceful, %d truncated, %d forced, %d left%s",
		p.Total, p.Graceful, p.Truncated, p.Forced, p.Left, text)
}

// Canceled: the interruption was called off, and what it had set on the node is undone.
func (e *Events) Canceled(node *corev1.Node, r interruption.Record) {
	e.recorder.AnnotatedEventf(node, aboutNode(node), corev1.EventTypeNormal, ReasonCanceled, "%s called off; node as it was before", r.Kind)
}

// RecordUnreadable: the annotation holds something that is not a record.
func (e *Events) RecordUnreadable(node *corev1.Node, err error) {
	e.recorder.AnnotatedEventf(node, aboutNode(node), corev1.EventTypeWarning, ReasonRecordUnreadable,
		"annotation %s is not acted on: %v", interruption.Annotation, err)
}

// EvictionBlocked: a pod has to leave and may not, for a reason in the API server's
// own words.
func (e *Events) EvictionBlocked(node string, pod *corev1.Pod, reason string) {
	e.recorder.AnnotatedEventf(pod, aboutPod(node), corev1.EventTypeWarning, ReasonEvictionBlocked, "cannot leave interrupted node %s yet: %s", node, reason)
}

// EvictionForced: a pod was deleted past its disruption budget, as --blocked-pods or the
// annotation of that name says.
func (e *Events) EvictionForced(node string, pod *corev1.Pod, reason string) {
	e.recorder.AnnotatedEventf(pod, aboutPod(node), corev1.EventTypeWarning, ReasonEvictionForced,
		"deleted past its disruption budget, as interrupted node %s is about to end: %s", node, reason)
}

// PodLeft: the node ends with the pod on it.
func (e *Events) PodLeft(node string, pod *corev1.Pod, reason string) {
	if reason == "" {
		reason = "there was no time to evict it"
	}
	e.recorder.AnnotatedEventf(pod, aboutPod(node), corev1.EventTypeWarning, ReasonPodLeft, "left on interrupted node %s at its deadline: %s", node, reason)
}

// sink writes Events as the recorder asks: an Event that repeats itself is counted up
// in place.
type sink struct {
	ctx    context.Context
	client rest.Interface
}

func (s sink) Create(event *corev1.Event) (*corev1.Event, error) {
	return s.do(s.client.Post().Namespace(event.Namespace).Body(event))
}

func (s sink) Update(event *corev1.Event) (*corev1.Event, error) {
	return s.do(s.client.Put().Namespace(event.Namespace).Name(event.Name).Body(event))
}

func (s sink) Patch(event *corev1.Event, data []byte) (*corev1.Event, error) {
	return s.do(s.client.Patch(types.StrategicMergePatchType).Namespace(event.Namespace).Name(event.Name).Body(data))
}

func (s sink) do(r *rest.Request) (*corev1.Event, error) {
	event := &corev1.Event{}
	return event, r.Resource("events").Do(s.ctx).Into(event)
}
