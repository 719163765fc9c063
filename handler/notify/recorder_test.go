package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"spot-handler/handler/interruption"
)

// eventServer keeps the requests that write Events, and answers as the API server does.
type eventServer struct {
	mu       sync.Mutex
	requests []string // method, path and what distinguishes one Event from another
	gone     bool     // the Events written before have expired
	hangUp   int      // so many requests get no answer
}

func (s *eventServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hangUp > 0 {
		s.hangUp--
		panic(http.ErrAbortHandler)
	}
	body, _ := io.ReadAll(r.Body)
	var event corev1.Event
	if err := json.Unmarshal(body, &event); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, namespace, _ := strings.Cut(r.URL.Path, "/namespaces/")
	namespace, _, _ = strings.Cut(namespace, "/")
	if r.Method == http.MethodPatch {
		s.requests = append(s.requests, fmt.Sprintf("count %d", event.Count))
		if s.gone {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
			return
		}
		event.Name, event.Namespace = path.Base(r.URL.Path), namespace
	} else {
		s.requests = append(s.requests, fmt.Sprintf("%s in %s: %s %s %s/%s", r.Method, namespace, event.Type, event.Reason, event.InvolvedObject.Kind, event.InvolvedObject.Name))
	}
	event.Kind, event.APIVersion = "Event", "v1"
	_ = json.NewEncoder(w).Encode(event)
}

func (s *eventServer) wait(t *testing.T, n int) []string {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		s.mu.Lock()
		got := append([]string(nil), s.requests...)
		s.mu.Unlock()
		if len(got) >= n {
			return got
		}
	}
	t.Fatalf("not %d requests", n)
	return nil
}

func startEvents(t *testing.T, s *eventServer) *Events {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return runEvents(t, &rest.Config{Host: server.URL})
}

func runEvents(t *testing.T, config *rest.Config) *Events {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	config.ContentConfig = rest.ContentConfig{
		GroupVersion: &schema.GroupVersion{Version: "v1"}, NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion(),
	}
	config.QPS = -1
	client, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	events := NewEvents(client, noNode)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { _ = events.Run(ctx); close(ended) }()
	t.Cleanup(func() { stop(); <-ended })
	return events
}

type answers func(*http.Request) (*http.Response, error)

func (f answers) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// However many Events there are about the pods of one namespace, and though a webhook hangs for all
// of them, those on Nodes and in other namespaces are written at once.
func TestEventsOfOneNamespaceDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var written []string
		events := runEvents(t, &rest.Config{Host: "http://api", Transport: answers(func(r *http.Request) (*http.Response, error) {
			if strings.Contains(r.URL.Path, "/hostile/") {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			mu.Lock()
			defer mu.Unlock()
			written = append(written, r.URL.Path)
			return &http.Response{
				StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
				Body: io.NopCloser(strings.NewReader(`{"kind":"Event","apiVersion":"v1"}`)),
			}, nil
		})})
		pod := func(namespace string, i int) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("pod-", i)}}
		}
		for i := range 3 * eventsWaiting {
			events.PodLeft("node-1", pod("hostile", i), "")
			if i%1000 == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		node, rec := interrupted("node-1")
		events.Notify(Canceled(node, rec))
		events.PodLeft("node-1", pod("shop", 0), "")
		time.Sleep(eventQuiet) // it is a burst
		synctest.Wait()
		slices.Sort(written)
		if want := []string{"/v1/namespaces/default/events", "/v1/namespaces/shop/events"}; !slices.Equal(written, want) {
			t.Errorf("written %q, want %q", written, want)
		}
	})
}

// An Event that repeats itself is counted up, one that differs is another, and one that
// the API server has forgotten is made once more.
func TestEventsAreCounted(t *testing.T) {
	s := &eventServer{}
	events := startEvents(t, s)
	node, rec := interrupted("node-1")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1"}}
	for _, version := range []string{"1", "2", "2"} { // of the Node, which is the same all the same
		node.ResourceVersion = version
		events.Notify(Canceled(node, rec))
	}
	s.wait(t, 3)
	events.EvictionBlocked("node-1", pod, "a budget")
	events.EvictionBlocked("node-1", pod, "another budget")
	s.wait(t, 5)
	s.mu.Lock()
	s.gone = true
	s.mu.Unlock()
	events.About(&corev1.ObjectReference{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: "claim-1"}, corev1.EventTypeWarning, "Unused", "text")
	events.Notify(Canceled(node, rec))
	want := []string{
		"POST in default: Normal InterruptionCanceled Node/node-1", "count 2", "count 3",
		"POST in shop: Warning EvictionBlocked Pod/web-1", "POST in shop: Warning EvictionBlocked Pod/web-1",
		"POST in default: Warning Unused NodeClaim/claim-1",
		"count 4", "POST in default: Normal InterruptionCanceled Node/node-1",
	}
	if got := s.wait(t, len(want)); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("requests\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// An Event is counted up if it repeats itself within 10 minutes; later it is made again, as the API server might have
// forgotten it.
func TestLateRepetitionIsAnotherEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var got []string
		events := runEvents(t, &rest.Config{Host: "http://api", Transport: answers(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, r.Method)
			return &http.Response{
				StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
				Body: io.NopCloser(strings.NewReader(`{"kind":"Event","apiVersion":"v1","metadata":{"namespace":"default","name":"x"},"count":1}`)),
			}, nil
		})})
		node, rec := interrupted("node-1")
		for _, wait := range []time.Duration{0, 10*time.Minute - time.Second, 10*time.Minute - time.Second, 10*time.Minute + time.Second} {
			time.Sleep(wait)
			events.Notify(Canceled(node, rec))
			synctest.Wait()
		}
		if want := []string{"POST", "PATCH", "PATCH", "POST"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// An API server that is unreachable for a moment loses no Event.
func TestEventsWaitForTheServer(t *testing.T) {
	s := &eventServer{hangUp: 1}
	events := startEvents(t, s)
	node, rec := interrupted("node-1")
	events.Notify(Canceled(node, rec))
	s.wait(t, 1)
}

// An answer is final, whatever it says: the next Event is not kept waiting. Without one it is tried again.
func TestEventsTakeNoForAnAnswer(t *testing.T) {
	for name, tt := range map[string]struct {
		code int // 0: no answer
		want int
	}{"forbidden": {http.StatusForbidden, 1}, "broken": {http.StatusInternalServerError, 1}, "none": {0, 12}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked atomic.Int64
				events := runEvents(t, &rest.Config{Host: "http://api", Transport: answers(func(r *http.Request) (*http.Response, error) {
					asked.Add(1)
					if tt.code == 0 {
						return nil, errors.New("connection refused")
					}
					return &http.Response{StatusCode: tt.code, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
				})})
				events.Notify(Canceled(interrupted("node-1")))
				time.Sleep(10 * time.Minute)
				if got := int(asked.Load()); got != tt.want {
					t.Errorf("asked %d times, want %d", got, tt.want)
				}
			})
		})
	}
}

// An Event whose write hangs is tried again after 10 s; the process ends no earlier than its writes.
func TestEventThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries []time.Duration
		began := time.Now()
		events := runEvents(t, &rest.Config{Host: "http://api", Transport: answers(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			tries = append(tries, time.Since(began))
			return nil, r.Context().Err()
		})})
		events.Notify(Canceled(interrupted("node-1")))
		time.Sleep(11 * time.Second)
		if len(tries) != 1 || tries[0] != 10*time.Second {
			t.Errorf("given up after %s, want 10 s", tries)
		}
	})
}

// Nobody waits for Events: those that are too many are dropped.
func TestEventsNeverBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := runEvents(t, &rest.Config{Host: "http://api", Transport: answers(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})})
		for i := range 4100 {
			events.Notify(Canceled(interrupted(fmt.Sprint("node-", i))))
		}
		if n := events.nodes.waiting.Load(); n < 3999 || n > 4001 {
			t.Errorf("%d wait, want about 4000", n)
		}
	})
}

// A kubelet that has its Node's record change ten times a second gets 60 Events, and then one every
// 30 s. Another Node's are written as if it were alone.
func TestEventsOfOneNodeDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		written := map[string]int{}
		events := runEvents(t, &rest.Config{Host: "http://api", Transport: answers(func(r *http.Request) (*http.Response, error) {
			body, _ := io.ReadAll(r.Body)
			mu.Lock()
			defer mu.Unlock()
			for _, name := range []string{"hostile", "other"} {
				if strings.Contains(string(body), `"name":"`+name+`"`) {
					written[name]++
				}
			}
			return &http.Response{
				StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
				Body: io.NopCloser(strings.NewReader(`{"kind":"Event","apiVersion":"v1"}`)),
			}, nil
		})})
		node, rec := interrupted("hostile")
		for i := range 600 {
			rec.Kind = interruption.Kind(fmt.Sprint("kind-", i)) // so it is another Event
			events.Notify(Canceled(node, rec))
			if i == 300 {
				events.Notify(Canceled(interrupted("other")))
			}
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			mu.Lock()
			if i > 300 && written["other"] != 1 {
				t.Fatalf("%d Events of the other Node after 100 ms, want 1", written["other"])
			}
			mu.Unlock()
		}
		if n := written["hostile"]; n != 60+1 {
			t.Errorf("%d Events of one Node in a minute, want 60 and one every 30 s", n)
		}
		if n := events.nodes.waiting.Load(); n != 0 {
			t.Errorf("%d Events count as waiting once all are written", n)
		}
	})
}

// One Event on Nodes is written at a time, and four on pods: Events are less important than evictions.
func TestEventsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var onNodes, onPods atomic.Int64
		events := runEvents(t, &rest.Config{Host: "http://api", Transport: answers(func(r *http.Request) (*http.Response, error) {
			at := &onPods
			if strings.Contains(r.URL.Path, "/default/") {
				at = &onNodes
			}
			at.Add(1)
			defer at.Add(-1)
			<-r.Context().Done()
			return nil, r.Context().Err()
		})})
		for i := range 20 {
			events.Notify(Canceled(interrupted(fmt.Sprint("node-", i))))
			events.PodLeft("node-1", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("shop-", i), Name: "pod"}}, "")
		}
		time.Sleep(eventPatience + 5*time.Second) // however long it is a burst
		synctest.Wait()
		if onNodes.Load() != 1 || onPods.Load() != 4 {
			t.Errorf("%d on Nodes and %d on pods at a time, want 1 and 4", onNodes.Load(), onPods.Load())
		}
	})
}

func noNode(string) (*corev1.Node, bool) { return nil, false }

// interrupted is a Node with the record of a spot interruption.
func interrupted(name string) (*corev1.Node, interruption.Record) {
	r := interruption.NewRecord(interruption.Notice{
		Kind: interruption.SpotInterruption, Source: interruption.Queue, EventID: "event-1", InstanceID: "i-0123456789abcdef0",
		Noticed: time.Now(), Received: time.Now(), Deadline: time.Now().Add(2 * time.Minute),
	})
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Annotations: map[string]string{interruption.Annotation: r.String()},
		Labels: map[string]string{corev1.LabelTopologyZone: "eu-west-1a"},
	}}, r
}

// The Events of a burst wait until it is over, but not for ever; a single one does not wait.
func TestEventsYieldToABurst(t *testing.T) {
	const now, second, ms = 0, time.Second, time.Millisecond
	for name, tt := range map[string]struct {
		waiting     int
		newest, age time.Duration
		want        time.Duration
	}{
		"a single one":        {0, now, now, 0},
		"a few":               {31, now, now, 0},
		"in a burst":          {32, now, second, 100 * ms},
		"it might be over":    {32, 50 * ms, second, 50 * ms},
		"it is over":          {32, 100 * ms, second, 0},
		"it goes on for long": {4000, now, 10 * second, 0},
		"nearly so":           {4000, now, 10*second - ms, ms},
	} {
		if got := yieldFor(tt.waiting, tt.newest, tt.age); max(0, got) != tt.want {
			t.Errorf("%s: waits %s, want %s", name, got, tt.want)
		}
	}
}
