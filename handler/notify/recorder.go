package notify

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	smithytime "github.com/aws/smithy-go/time"
	"github.com/cenkalti/backoff/v5"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

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

	// eventTries is how often an Event is tried while the API server is away, and eventTimeout how
	// long each time: an admission webhook can hang for 30 s.
	eventTries   = 12
	eventTimeout = 10 * time.Second
)

// recorder writes Events, those of one object one after the other. What is written in one namespace
// delays neither the Events of another nor those on Nodes. client-go has one, whose merging of patches
// brings the schemas of OpenAPI: 32.6 MiB resident on every spot node instead of 30.3, where
// at most 32 are the goal. It also keeps 2,000 Events waiting at most, fewer than a burst of a
// thousand nodes has.
type recorder struct {
	client  rest.Interface     // of core/v1
	waiting chan *corev1.Event // for run

	nodes, pods line // nodes is for all that has no namespace

	mu    sync.Mutex
	known map[eventKey]*corev1.Event // as last written
}

// line holds Events that wait, in the chan or in the lane.
type line struct {
	*fair.Lane
	waiting atomic.Int64
	newest  atomic.Int64 // when the last was noted, in nanoseconds
}

// lineOf is where Events wait that are about an object of the namespace.
func (r *recorder) lineOf(namespace string) *line {
	if namespace == "" {
		return &r.nodes
	}
	return &r.pods
}

// eventKey is what makes two Events the same one, repeated.
type eventKey struct {
	object                corev1.ObjectReference
	kind, reason, message string
}

func newRecorder(client rest.Interface) *recorder {
	return &recorder{
		client: client, waiting: make(chan *corev1.Event, eventsWaiting), known: map[eventKey]*corev1.Event{},
		nodes: line{Lane: fair.NewLane(1, 3*eventsWaiting)}, pods: line{Lane: fair.NewLane(4, eventsWaiting)}, // one that is alone has a third
	}
}

// record notes an Event about a Node, a pod or what a reference names. It never blocks.
func (r *recorder) record(object runtime.Object, annotations map[string]string, warning bool, reason, message string) {
	kind := corev1.EventTypeNormal
	if warning {
		kind = corev1.EventTypeWarning
	}
	now := metav1.Now()
	about := referenceTo(object)
	namespace := about.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", about.Name, now.UnixNano()), Namespace: namespace, Annotations: annotations},
		InvolvedObject: about, Type: kind, Reason: reason, Message: interruption.Clip(message),
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: component}, ReportingController: component,
	}
	in := r.lineOf(about.Namespace)
	in.newest.Store(now.UnixNano())
	select {
	case r.waiting <- event:
		in.waiting.Add(1)
	default: // the record on the Node is what counts
	}
}

func referenceTo(object runtime.Object) corev1.ObjectReference {
	switch o := object.(type) {
	case *corev1.ObjectReference:
		return *o
	case *corev1.Node:
		return corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion}
	case *corev1.Pod:
		return corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion}
	}
	return corev1.ObjectReference{} // there are no Events about others; the API server would refuse it
}

// run writes what is noted until ctx ends.
func (r *recorder) run(ctx context.Context) {
	defer r.nodes.Wait()
	defer r.pods.Wait()
	for number := 0; ; number++ {
		select {
		case <-ctx.Done():
			return
		case event := <-r.waiting:
			about := event.InvolvedObject
			in := r.lineOf(about.Namespace)
			if !in.Do(ctx, fair.Task{
				Tenant: about.Namespace, Who: cmp.Or(about.UID, types.UID(about.Name)), What: strconv.Itoa(number),
				Run: func() {
					in.waiting.Add(-1)
					if in.yield(ctx, event.FirstTimestamp.Time) {
						r.write(ctx, event)
					}
				},
			}) {
				in.waiting.Add(-1)
			}
		}
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
func (r *recorder) write(ctx context.Context, event *corev1.Event) {
	key := eventKey{object: event.InvolvedObject, kind: event.Type, reason: event.Reason, message: event.Message}
	key.object.ResourceVersion = ""
	pauses := &backoff.ExponentialBackOff{InitialInterval: time.Second, MaxInterval: 10 * time.Second, Multiplier: 2, RandomizationFactor: 0.25}
	written, err := backoff.Retry(ctx, func() (*corev1.Event, error) {
		ctx, cancel := context.WithTimeout(ctx, eventTimeout)
		defer cancel()
		r.mu.Lock()
		before := r.known[key]
		r.mu.Unlock()
		written, err := r.createOrCount(ctx, before, event)
		var away *url.Error // no answer at all
		if err != nil && !errors.As(err, &away) {
			err = backoff.Permanent(err)
		}
		return written, err
	}, backoff.WithBackOff(pauses), backoff.WithMaxTries(eventTries), backoff.WithMaxElapsedTime(0))
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= eventsKept {
		clear(r.known) // those that repeat themselves are made once more
	}
	r.known[key] = &corev1.Event{ // what a repetition needs: the rest of 4,096 Events is megabytes
		ObjectMeta: metav1.ObjectMeta{Namespace: written.Namespace, Name: written.Name}, Count: written.Count, LastTimestamp: written.LastTimestamp,
	}
}

// createOrCount counts up the Event that has been written before, if it still exists, and
// makes it otherwise.
func (r *recorder) createOrCount(ctx context.Context, before, event *corev1.Event) (*corev1.Event, error) {
	written := &corev1.Event{}
	if before != nil && event.LastTimestamp.Sub(before.LastTimestamp.Time) < repeatWithin {
		patch, err := json.Marshal(map[string]any{"count": before.Count + 1, "lastTimestamp": event.LastTimestamp})
		if err != nil {
			return nil, err
		}
		err = r.client.Patch(types.MergePatchType).Namespace(before.Namespace).Resource("events").Name(before.Name).Body(patch).Do(ctx).Into(written)
		if !apierrors.IsNotFound(err) {
			return written, err
		}
	}
	err := r.client.Post().Namespace(event.Namespace).Resource("events").Body(event).Do(ctx).Into(written)
	return written, err
}
