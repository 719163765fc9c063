package workloads

import (
	"cmp"
	"fmt"
	"net/url"
	"time"

	"spot-handler/drain/plan"
)

// The types of our CloudEvents.
const (
	typeNotice           = "spot-handler.notice"            // the node ends; again when it ends earlier
	typeReplacementReady = "spot-handler.replacement-ready" // for pods that ask for it
	typeCanceled         = "spot-handler.canceled"          // the node does not end after all
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

// eventData is what a pod has to know. Times are absolute: a pod that reads them later needs no
// other.
type eventData struct {
	Kind   string `json:"kind"`
	Action string `json:"action,omitempty"` // EC2's: terminate, stop or hibernate
	Node   string `json:"node"`
	// Rehearsal: an operator has made it up, and the node comes back.
	Rehearsal bool `json:"rehearsal,omitempty"`

	Deadline time.Time `json:"deadline,omitzero"`  // when the node ends
	EvictBy  time.Time `json:"evictBy,omitzero"`   // when the pod's eviction begins at the latest
	Grace    int64     `json:"gracePeriodSeconds"` // from its eviction to its end

	Replacement string `json:"replacement"`
}

// noReplacement is the state of a replacement that was not requested, or not yet.
const noReplacement = "None"

// newEvent is the event for a pod of the node. The id is the same whichever process makes the event, so a
// receiver can tell what it has received before.
func newEvent(now time.Time, in Interruption, what string, d plan.Decision) cloudEvent {
	pod := d.Pod
	event := cloudEvent{
		SpecVersion:     "1.0",
		ID:              fmt.Sprintf("%s/%s/%s/%d/%d", in.Record.Event, pod.UID, what, unix(in.Deadline), unix(d.At)),
		Source:          "/spot-handler/nodes/" + url.PathEscape(in.Node),
		Type:            what,
		Subject:         pod.Namespace + "/" + pod.Name,
		Time:            now.UTC().Truncate(time.Millisecond),
		DataContentType: "application/json",
		Data: eventData{
			Kind:        string(in.Record.Kind),
			Action:      in.Record.Action,
			Node:        in.Node,
			Rehearsal:   in.Record.Rehearsed(),
			Deadline:    in.Deadline.UTC(),
			EvictBy:     d.At.UTC(),
			Grace:       int64(plan.Grace(pod).Seconds()),
			Replacement: cmp.Or(in.Replacement, noReplacement),
		},
	}
	if d.Grace != nil {
		event.Data.Grace = *d.Grace
	}
	if what == typeCanceled {
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
