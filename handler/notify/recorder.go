package notify

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	smithytime "github.com/aws/smithy-go/time"
	"github.com/cenkalti/backoff/v5"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/fair"
	"spot-handler/handler/interruption"
)

const (
	// component is who our Events come from.
	component = "spot-handler"

	// eventsWaiting is how many Events on Nodes wait to be written, about a kilobyte each, before
	// further ones are dropped: those of a thousand nodes at once, their notices, replacements and
	// ends. As many on pods wait, of which one namespace can have a third.
	eventsWaiting = 4000

	// A Node's share is nodeBurst Events and then one every nodeEvery. An interruption has up to ten.
	// Its kubelet can have one written for each record that it writes.
	nodeBurst = 60
	nodeEvery = 30 * time.Second

	// eventsKept is how many Events are known again when they repeat themselves.
	eventsKept = 4096

	// repeatWithin is how long: the API server forgets Events after an hour by default.
	repeatWithin = 10 * time.Minute

	// While more than eventBurst Events wait and the newest is younger than eventQuiet, as when many
	// notices come at once, none is written, for up to eventPatience each: to the API server one is
	// as much work as a cordon, and nothing waits for it. Longer, and those of 5,000 notices would
	// be more than eventsWaiting.
	eventBurst    = 32
	eventQuiet    = 100 * time.Millisecond
	eventPatience = 10 * time.Second

	// eventTries is how often an Event is tried while the API server is unreachable, and eventTimeout how
	// long each time: an admission webhook can hang for 30 s.
	eventTries   = 12
	eventTimeout = 10 * time.Second
)

// line holds Events that wait.
type line struct {
	*fair.Lane
	waiting atomic.Int64
	newest  atomic.Int64 // when the last was noted, in nanoseconds
}

// eventKey is what makes two Events the same one, repeated.
type eventKey struct {
	object                corev1.ObjectReference
	kind, reason, message string
}

// record notes an Event about a Node, a pod or what a reference names. It never blocks.
func (e *Events) record(about corev1.ObjectReference, annotations map[string]string, eventType, reason, message string) {
	now := metav1.Now()
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:        fmt.Sprintf("%s.%x", about.Name, now.UnixNano()),
			Namespace:   cmp.Or(about.Namespace, metav1.NamespaceDefault),
			Annotations: annotations,
		},
		InvolvedObject: about, Type: eventType, Reason: reason, Message: interruption.Clip(message),
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: component}, ReportingController: component,
	}
	in, tenant := &e.pods, about.Namespace
	if about.Namespace == "" {
		in, tenant = &e.nodes, about.Name
		if about.Kind == "Node" && !e.shares.Allow(about.Name) {
			return
		}
	}
	in.newest.Store(now.UnixNano())
	in.waiting.Add(1)
	if !in.Do(e.writing, fair.Task{
		Tenant: tenant, Who: cmp.Or(about.UID, types.UID(about.Name)), What: strconv.FormatInt(e.number.Add(1), 10),
		Run: func() {
			in.waiting.Add(-1)
			if in.yield(e.writing, now.Time) {
				e.write(e.writing, event)
			}
		},
	}) { // the record on the Node is what counts
		in.waiting.Add(-1)
	}
}

func referenceTo(kind string, o metav1.ObjectMeta) corev1.ObjectReference {
	return corev1.ObjectReference{
		APIVersion:      "v1",
		Kind:            kind,
		Namespace:       o.Namespace,
		Name:            o.Name,
		UID:             o.UID,
		ResourceVersion: o.ResourceVersion,
	}
}

// yield waits while others had better have the API server. It returns false if ctx ends.
func (l *line) yield(ctx context.Context, noted time.Time) bool {
	for {
		wait := yieldFor(int(l.waiting.Load()), time.Since(time.Unix(0, l.newest.Load())), time.Since(noted))
		if wait <= 0 {
			return true
		}
		if smithytime.SleepWithContext(ctx, wait) != nil {
			return false
		}
	}
}

// yieldFor is how long an Event of that age has to wait, with so many behind it.
func yieldFor(waiting int, newest, age time.Duration) time.Duration {
	if waiting < eventBurst {
		return 0
	}
	return min(eventQuiet-newest, eventPatience-age)
}

// write tries until the API server has answered: whatever it says then is the last word.
func (e *Events) write(ctx context.Context, event *corev1.Event) {
	key := eventKey{object: event.InvolvedObject, kind: event.Type, reason: event.Reason, message: event.Message}
	key.object.ResourceVersion = ""
	pauses := &backoff.ExponentialBackOff{
		InitialInterval:     time.Second,
		MaxInterval:         10 * time.Second,
		Multiplier:          2,
		RandomizationFactor: 0.25,
	}
	written, err := backoff.Retry(ctx, func() (*corev1.Event, error) {
		ctx, cancel := context.WithTimeout(ctx, eventTimeout)
		defer cancel()
		last, _ := e.known.Get(key)
		before, _ := last.(*corev1.Event)
		written, err := e.createOrCount(ctx, before, event)
		var away *url.Error // no answer at all
		if err != nil && !errors.As(err, &away) {
			err = backoff.Permanent(err)
		}
		return written, err
	}, backoff.WithBackOff(pauses), backoff.WithMaxTries(eventTries), backoff.WithMaxElapsedTime(0))
	if err != nil {
		return
	}
	e.known.Add(key, &corev1.Event{ // what a repetition needs: the rest of 4,096 Events is megabytes
		ObjectMeta: metav1.ObjectMeta{Namespace: written.Namespace, Name: written.Name}, Count: written.Count,
	}, repeatWithin)
}

// createOrCount counts up the Event that has been written before, if it still exists, and
// makes it otherwise.
func (e *Events) createOrCount(ctx context.Context, before, event *corev1.Event) (*corev1.Event, error) {
	written := &corev1.Event{}
	if before != nil {
		patch, _ := json.Marshal(map[string]any{ // a number and our own time
			"count":         before.Count + 1,
			"lastTimestamp": event.LastTimestamp,
		})
		err := e.client.Patch(types.MergePatchType).Namespace(before.Namespace).Resource("events").Name(before.Name).
			Body(patch).Do(ctx).Into(written)
		if !apierrors.IsNotFound(err) {
			return written, err
		}
	}
	err := e.client.Post().Namespace(event.Namespace).Resource("events").Body(event).Do(ctx).Into(written)
	return written, err
}
