package notify

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"spot-handler/handler/interruption"
)

// Every Event of ours has annotations.
func TestAnnotations(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 2, 0, 0, time.UTC)
	rec := interruption.NewRecord(interruption.Notice{
		Kind: interruption.SpotInterruption, Source: interruption.Queue, EventID: "event-1", InstanceID: "i-1",
		Action: interruption.ActionTerminate, Deadline: at,
	})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:        "node-a",
		Labels:      map[string]string{corev1.LabelInstanceTypeStable: "m5.large", corev1.LabelTopologyZone: "eu-west-1a"},
		Annotations: map[string]string{interruption.Annotation: rec.String()},
	}}
	whole := map[string]string{
		"spot-handler/kind": "spot-interruption", "spot-handler/source": "queue", "spot-handler/action": "terminate",
		"spot-handler/event-id": "event-1", "spot-handler/deadline": "2026-01-01T00:02:00Z", "spot-handler/instance-id": "i-1",
		"spot-handler/instance-type": "m5.large", "spot-handler/availability-zone": "eu-west-1a",
	}
	pod := map[string]string{"spot-handler/node": "node-a", "spot-handler/kind": "spot-interruption", "spot-handler/source": "queue"}
	unreadable := node.DeepCopy()
	unreadable.Annotations[interruption.Annotation] = "{"

	events := written(t, func(string) (*corev1.Node, bool) { return node, true }, func(e *Events) {
		e.Notify(Noticed(node, rec))
		e.Notify(Replaced(node, ReasonReplacementRequested, interruption.Replacement{}))
		e.Notify(Replaced(node, ReasonNoReplacement, interruption.Replacement{}))
		e.Notify(Ended(node, ReasonDrained, interruption.Pods{}, 0))
		e.Notify(Canceled(node, rec))
		e.Notify(Unreadable(unreadable, errors.New("no record")))
		e.EvictionBlocked("node-a", &corev1.Pod{}, "")
		e.EvictionForced("node-a", &corev1.Pod{}, "")
		e.PodLeft("node-a", &corev1.Pod{}, "")
	})

	want := map[string]map[string]string{
		NoticeReason(rec.Kind): whole, ReasonReplacementRequested: whole, ReasonNoReplacement: whole, ReasonDrained: whole, ReasonCanceled: whole,
		ReasonRecordUnreadable: {"spot-handler/instance-type": "m5.large", "spot-handler/availability-zone": "eu-west-1a"},
		ReasonEvictionBlocked:  pod, ReasonEvictionForced: pod, ReasonPodLeft: pod,
	}
	about := map[string]map[string]string{}
	for _, event := range events {
		about[event.Reason] = event.Annotations
	}
	if diff := cmp.Diff(want, about); diff != "" {
		t.Errorf("annotations by reason (-want +got):\n%s", diff)
	}
}

// An Event about a pod says that its node's interruption is rehearsed, and the reason that it gives
// is found again.
func TestPodsOfARehearsal(t *testing.T) {
	node, rec := interrupted("node-a")
	rec.Source = interruption.Rehearsal
	node.Annotations[interruption.Annotation] = rec.String()
	for source, said := range map[interruption.Source]string{
		interruption.Rehearsal: "rehearsal: cannot leave interrupted node node-a yet: budget db: needs 3",
		"":                     "cannot leave interrupted node node-a yet: budget db: needs 3",
	} {
		event := written(t, func(string) (*corev1.Node, bool) { return node, source == interruption.Rehearsal }, func(e *Events) {
			e.EvictionBlocked("node-a", &corev1.Pod{}, "budget db: needs 3")
		})[0]
		if event.Message != said || Refusal(event) != "budget db: needs 3" || event.Annotations[annotationSource] != string(source) {
			t.Errorf("%q, for the reason %q, with %v; want %q", event.Message, Refusal(event), event.Annotations, said)
		}
	}
}

// written are the Events that are written about what is said.
func written(t *testing.T, node func(string) (*corev1.Node, bool), say func(*Events)) (list []*corev1.Event) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		events := runEvents(t, &rest.Config{Host: "http://api", Transport: answers(func(r *http.Request) (*http.Response, error) {
			event := &corev1.Event{}
			if err := json.NewDecoder(r.Body).Decode(event); err != nil {
				return nil, err
			}
			mu.Lock()
			defer mu.Unlock()
			list = append(list, event)
			return &http.Response{
				StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
				Body: io.NopCloser(strings.NewReader(`{"kind":"Event","apiVersion":"v1"}`)),
			}, nil
		})})
		events.node = node
		say(events)
		synctest.Wait()
	})
	return list
}

// An annotation of the namespace is not the pod's to put right.
func TestWhoseAnnotationIsMeaningless(t *testing.T) {
	for want, tell := range map[string]func(*Events, string, *corev1.Pod, string){
		`annotation of the namespace is ignored: "x" is no number`: (*Events).NamespaceAnnotationMeaningless,
		`annotation is ignored: "x" is no number`:                  (*Events).AnnotationMeaningless,
	} {
		event := written(t, noNode, func(e *Events) { tell(e, "node-a", &corev1.Pod{}, `"x" is no number`) })[0]
		if event.Message != want || event.Reason != ReasonMeaningless || event.Type != corev1.EventTypeWarning {
			t.Errorf("%s %s: %q, want %q", event.Type, event.Reason, event.Message, want)
		}
	}
}

// An Event is about a pod only if it says so in the pod's own namespace: others can claim its UID.
func TestAbout(t *testing.T) {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID = "shop", "web-1", "uid-1"
	about := func() *corev1.Event {
		e := &corev1.Event{InvolvedObject: corev1.ObjectReference{Namespace: "shop", Name: "web-1", UID: "uid-1"}}
		e.Namespace = "shop"
		return e
	}
	if !About(about(), pod) {
		t.Error("the pod's own Event is not about it")
	}
	for name, change := range map[string]func(*corev1.Event){
		"in another namespace":        func(e *corev1.Event) { e.Namespace = "other" },
		"about another namespace":     func(e *corev1.Event) { e.InvolvedObject.Namespace = "other" },
		"about another pod":           func(e *corev1.Event) { e.InvolvedObject.Name = "web-2" },
		"about an earlier one of its": func(e *corev1.Event) { e.InvolvedObject.UID = "uid-0" },
	} {
		e := about()
		if change(e); About(e, pod) {
			t.Errorf("one %s counts", name)
		}
	}
}

// A node that is to return to spot isn't interrupted: nobody is warned.
func TestNoticeOfAReturn(t *testing.T) {
	node, rec := interrupted("node-a")
	rec.Kind, rec.Source = interruption.RebalanceRecommendation, interruption.Return
	if n := Noticed(node, rec); n.Reason != ReasonReturns || n.Warning || n.Stage != Notice {
		t.Errorf("%+v", n)
	}
}
