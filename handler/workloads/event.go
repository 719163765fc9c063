package workloads

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"time"

	smithytime "github.com/aws/smithy-go/time"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain"
)

// The types of our CloudEvents.
const (
	typeNotice           = "spot-handler.notice"            // the node ends; again when it ends earlier
	typeReplacementReady = "spot-handler.replacement-ready" // for those who ask
	typeCanceled         = "spot-handler.canceled"          // the node does not end after all
	typePeerNotice       = "spot-handler.peer-notice"       // the node of other pods of the gang ends
	typePeerCanceled     = "spot-handler.peer-canceled"     // it does not after all
)

// cloudEvent is one in the JSON format.
// https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md
type cloudEvent struct {
	SpecVersion     string    `json:"specversion"`
	ID              string    `json:"id"`
	Source          string    `json:"source"`
	Type            string    `json:"type"`
	Subject         string    `json:"subject"`
	Time            time.Time `json:"time"`
	DataContentType string    `json:"datacontenttype"`
	Data            eventData `json:"data"`
}

// eventData is what a pod has to know. Times are absolute: whoever reads them later needs no
// other.
type eventData struct {
	Kind   string `json:"kind"`
	Action string `json:"action,omitempty"` // EC2's: terminate, stop or hibernate
	Node   string `json:"node"`
	// Rehearsal: an operator has made it up, and the node comes back.
	Rehearsal bool `json:"rehearsal,omitempty"`

	Deadline time.Time `json:"deadline,omitzero"` // when the node ends
	EvictBy  time.Time `json:"evictBy,omitzero"`  // when the pod's eviction begins at the latest
	Grace    *int64    `json:"gracePeriodSeconds,omitempty"`

	Replacement string `json:"replacement"`

	// Gang is the pod's, and Pods are those of it that leave the node, if the pod is not one of
	// them; EvictBy is theirs.
	Gang string   `json:"gang,omitempty"`
	Pods []string `json:"pods,omitempty"`
}

// noReplacement is the state of a replacement that was not requested, or not yet.
const noReplacement = "None"

// newEvent is the event for a pod of the node.
func newEvent(now time.Time, in Interruption, what string, d drain.Decision) cloudEvent {
	event := eventFor(now, in, what, d.Pod, d.At)
	event.Data.Grace = cmp.Or(d.Grace, new(int64(drain.Grace(d.Pod).Seconds()))) // from its eviction to its end
	return event
}

// newPeerEvent is the event for another pod of a gang.
func newPeerEvent(now time.Time, g going, peer *corev1.Pod) cloudEvent {
	event := eventFor(now, g.in, g.what, peer, g.by)
	event.Data.Gang, event.Data.Pods = g.gang.Name, g.pods
	return event
}

// eventFor is what both have in common. The id is the same whoever makes the event, so a receiver
// can tell what it has received before.
func eventFor(now time.Time, in Interruption, what string, pod *corev1.Pod, evictBy time.Time) cloudEvent {
	event := cloudEvent{
		SpecVersion: "1.0",
		ID:          fmt.Sprintf("%s/%s/%s/%d/%d", in.Record.Event, pod.UID, what, unix(in.Deadline), unix(evictBy)),
		Source:      "/spot-handler/nodes/" + url.PathEscape(in.Node),
		Type:        what, Subject: pod.Namespace + "/" + pod.Name, Time: now.UTC().Truncate(time.Millisecond),
		DataContentType: "application/json",
		Data: eventData{
			Kind: string(in.Record.Kind), Action: in.Record.Action, Node: in.Node, Replacement: cmp.Or(in.Replacement, noReplacement),
			Rehearsal: in.Record.Rehearsed(), Deadline: in.Deadline.UTC(), EvictBy: evictBy.UTC(),
		},
	}
	if what == typeCanceled || what == typePeerCanceled {
		event.Data.Deadline, event.Data.EvictBy = time.Time{}, time.Time{}
	}
	return event
}

func unix(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

// What a pod without a server reads: annotations, which a volume of the downward API shows as
// files.
// https://kubernetes.io/docs/concepts/storage/volumes/#downwardapi

const (
	noteTimeout  = 5 * time.Second
	noteAttempts = 5
)

// noted reports whether the pod carries a note, from whomever.
func noted(pod *corev1.Pod) bool {
	return pod.Annotations[drain.DeadlineAnnotation] != "" || pod.Annotations[drain.EvictByAnnotation] != ""
}

// note writes when the pod's node ends and when its eviction begins at the latest, or removes
// that.
func (t *Notifier) note(ctx context.Context, what string, deadline time.Time, d drain.Decision) {
	if what == typeCanceled {
		deadline, d.At = time.Time{}, time.Time{}
	}
	want := map[string]any{drain.DeadlineAnnotation: text(deadline), drain.EvictByAnnotation: text(d.At)}
	changed := what == typeCanceled // what stands there now might be newer than what we have seen
	for key, value := range want {
		stands, has := d.Pod.Annotations[key]
		changed = changed || has != (value != nil) || has && stands != value
	}
	if !changed {
		return
	}
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"uid": d.Pod.UID, "annotations": want}}) // texts
	for attempt := 1; ; attempt++ {
		switch err := t.patch(ctx, d.Pod, patch); {
		case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsInvalid(err): // or another pod has its name
			return
		case apierrors.IsForbidden(err):
			if t.refused.CompareAndSwap(false, true) {
				t.opts.Logger.Warn().Err(err).Msg("annotations of workloads are not written")
			}
			return
		case attempt == noteAttempts || smithytime.SleepWithContext(ctx, time.Duration(attempt)*time.Second) != nil:
			t.opts.Logger.Debug().Err(err).Str("pod", d.Pod.Namespace+"/"+d.Pod.Name).Msg("annotate workload")
			return
		}
	}
}

func (t *Notifier) patch(ctx context.Context, pod *corev1.Pod, patch []byte) error {
	ctx, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	return t.opts.Pods.Patch(types.MergePatchType).Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
		MaxRetries(0).Body(patch).Do(ctx).Error()
}

// text is a time as an annotation has it; nil removes the annotation.
func text(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format(time.RFC3339)
}
