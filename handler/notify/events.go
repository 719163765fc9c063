// Package notify says what happens to nodes, as News, and shows it with Kubernetes Events,
// which `kubectl describe node` and `kubectl describe pod` show. All passes the same news on
// to several, such as Events and webhooks.
//
// Nothing here blocks or fails: an Event that cannot be written is dropped, as the record
// on the Node is what counts.
package notify

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/rest"

	"spot-handler/drain/fair"
	"spot-handler/handler/interruption"
	"spot-handler/handler/ratelimit"
)

// The reasons of our Events on pods.
const (
	ReasonEvictionBlocked = "EvictionBlocked"
	ReasonEvictionForced  = "EvictionForced"
	ReasonPodLeft         = "LeftOnInterruptedNode"
	ReasonMeaningless     = "AnnotationMeaningless"
)

// Events writes Kubernetes Events, those of one object one after the other. What is written in one
// namespace delays neither the Events of another nor those on Nodes, and each Node has a share of its
// own. client-go's recorder merges patches by the schemas of OpenAPI, which would take memory on every
// spot node (performance.md). It also keeps 2,000 Events waiting at most, fewer than a burst of a
// thousand nodes has.
type Events struct {
	client rest.Interface // of core/v1
	node   func(name string) (*corev1.Node, bool)

	writing context.Context // of all requests
	stop    context.CancelFunc

	nodes, pods line // nodes is for all that has no namespace
	number      atomic.Int64
	shares      *ratelimit.PerNode // of Events on Nodes

	known *cache.LRUExpireCache // Events as last written, by eventKey
}

// NewEvents returns Events that client writes, the REST client of core/v1. Those about a pod say
// what the record of its node says; node finds that.
func NewEvents(client rest.Interface, node func(name string) (*corev1.Node, bool)) *Events {
	e := &Events{client: client, node: node, known: cache.NewLRUExpireCache(eventsKept), shares: ratelimit.New(nodeEvery, nodeBurst, 1)}
	e.nodes.Lane, e.pods.Lane = fair.NewLane(1, eventsWaiting), fair.NewLane(4, eventsWaiting) // a namespace that is alone has a third
	e.writing, e.stop = context.WithCancel(context.Background())
	return e
}

// Run returns when ctx has ended and nothing is being written any more. All users of the Events
// should have stopped before ctx ends.
func (e *Events) Run(ctx context.Context) error {
	<-ctx.Done()
	e.stop()
	e.nodes.Wait()
	e.pods.Wait()
	return nil
}

// Notify writes an Event on the Node, with what its record says as annotations.
func (e *Events) Notify(n News) {
	e.record(referenceTo("Node", n.Node.ObjectMeta), aboutNode(n.Node, n.Record), n.eventType(), n.Reason, n.Text)
}

// warnOfPod writes a warning about a pod of the node.
func (e *Events) warnOfPod(node string, pod *corev1.Pod, reason, text string) {
	var rec interruption.Record
	if n, ok := e.node(node); ok {
		rec = recordOf(n)
	}
	e.record(referenceTo("Pod", pod.ObjectMeta), aboutPod(node, rec), corev1.EventTypeWarning, reason, said(rec, text))
}

// About is an Event on an object that is no Node or pod of ours, such as the
// replacement that a provisioner has asked for. eventType is corev1.EventTypeNormal or
// corev1.EventTypeWarning.
func (e *Events) About(object *corev1.ObjectReference, eventType, reason, text string) {
	e.record(*object, nil, eventType, reason, text)
}

// EvictionBlocked: a pod has to leave and cannot, for a reason in the API server's own
// words.
func (e *Events) EvictionBlocked(node string, pod *corev1.Pod, reason string) {
	e.warnOfPod(node, pod, ReasonEvictionBlocked, fmt.Sprintf("cannot leave interrupted node %s yet: %s", node, reason))
}

// EvictionForced: a pod was deleted past its disruption budget, as --blocked-pods or the
// annotation of that name says.
func (e *Events) EvictionForced(node string, pod *corev1.Pod, reason string) {
	e.warnOfPod(node, pod, ReasonEvictionForced,
		fmt.Sprintf("deleted past its PDB, because interrupted node %s is about to end: %s", node, reason))
}

// PodLeft: the node ends with the pod on it.
func (e *Events) PodLeft(node string, pod *corev1.Pod, reason string) {
	e.warnOfPod(node, pod, ReasonPodLeft,
		fmt.Sprintf("left on interrupted node %s at its deadline: %s", node, cmp.Or(reason, "there was no time to evict it")))
}

// AnnotationMeaningless: the pod asks for something that nobody knows.
func (e *Events) AnnotationMeaningless(node string, pod *corev1.Pod, text string) {
	e.warnOfPod(node, pod, ReasonMeaningless, "annotation is ignored: "+text)
}

// NamespaceAnnotationMeaningless: the pod's namespace asks for something that nobody knows.
func (e *Events) NamespaceAnnotationMeaningless(node string, pod *corev1.Pod, text string) {
	e.warnOfPod(node, pod, ReasonMeaningless, "annotation of the namespace is ignored: "+text)
}

// About reports whether the Event is about this pod. The UID alone does not tell: users who may write
// Events in a namespace of their own may give them that of any pod.
func About(e *corev1.Event, pod *corev1.Pod) bool {
	of := e.InvolvedObject
	return e.Namespace == pod.Namespace && of.Namespace == pod.Namespace && of.Name == pod.Name && of.UID == pod.UID
}

// Refusal is the reason that an Event EvictionBlocked gives.
func Refusal(e *corev1.Event) string {
	_, reason, _ := strings.Cut(strings.TrimPrefix(e.Message, rehearsed), ": ")
	return strings.TrimSpace(reason)
}

// The annotations of our Events, for tools that route or count Events and should not have to
// read their text. An empty one is left out.
const (
	annotationKind         = "spot-handler/kind"
	annotationSource       = "spot-handler/source"
	annotationAction       = "spot-handler/action"
	annotationEventID      = "spot-handler/event-id"
	annotationDeadline     = "spot-handler/deadline" // RFC 3339
	annotationInstanceID   = "spot-handler/instance-id"
	annotationInstanceType = "spot-handler/instance-type"
	annotationZone         = "spot-handler/availability-zone"
	AnnotationNode         = "spot-handler/node" // of Events on pods
)

// aboutNode are the annotations of an Event on a Node: what its record says, and its labels.
func aboutNode(node *corev1.Node, rec interruption.Record) map[string]string {
	about := map[string]string{
		annotationInstanceType: node.Labels[corev1.LabelInstanceTypeStable],
		annotationZone:         node.Labels[corev1.LabelTopologyZone],
		annotationKind:         string(rec.Kind),
		annotationSource:       string(rec.Source),
		annotationAction:       rec.Action,
		annotationEventID:      rec.Event,
		annotationInstanceID:   rec.Instance,
	}
	if d := rec.Deadline; !d.IsZero() {
		about[annotationDeadline] = d.UTC().Format(time.RFC3339)
	}
	maps.DeleteFunc(about, func(_, value string) bool { return value == "" })
	return about
}

// aboutPod are the annotations of an Event on a pod of the node with that record.
func aboutPod(node string, rec interruption.Record) map[string]string {
	about := map[string]string{AnnotationNode: node}
	if rec.Kind != "" {
		about[annotationKind], about[annotationSource] = string(rec.Kind), string(rec.Source)
	}
	return about
}
