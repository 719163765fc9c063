package workloads

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"path"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"spot-handler/drain"
	"spot-handler/drain/plan"
)

// receivers answer by the path that a pod asks to be notified at.
type receivers struct {
	mu    sync.Mutex
	heard map[string][]time.Time // by kind
}

func (r *receivers) RoundTrip(req *http.Request) (*http.Response, error) {
	kind := path.Base(req.URL.Path)
	r.mu.Lock()
	r.heard[kind] = append(r.heard[kind], time.Now())
	r.mu.Unlock()
	answer := ""
	switch kind {
	case "prompt":
		answer = `{"when":"last"}`
	case "slow":
		time.Sleep(time.Second)
		answer = `{"when":"hold"}`
	case "goes":
		time.Sleep(time.Second)
		answer = `{"when":"now"}`
	case "never":
		<-req.Context().Done()
		return nil, req.Context().Err()
	case "nonsense":
		answer = "now! {"
	case "megabyte":
		answer = `{"when":"now"}` + strings.Repeat(" ", 1<<20)
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(answer)), Request: req}, nil
}

// podsAPI has the pods of one node, without a network, so it runs in fake time: an evicted pod is
// gone after a second. Of all else there is nothing.
type podsAPI struct {
	mu      sync.Mutex
	pods    map[string]*corev1.Pod
	watch   chan []byte
	evicted map[string]time.Time
	patches map[string]int
}

func (a *podsAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	reply := func(code int, v any) (*http.Response, error) {
		b, err := json.Marshal(v)
		return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(b)), Request: r}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	ofPods := r.URL.Path == "/api/v1/pods"
	switch name := path.Base(strings.TrimSuffix(r.URL.Path, "/eviction")); {
	case r.URL.Query().Get("sendInitialEvents") != "": // as an old server: list instead
		return reply(http.StatusUnprocessableEntity, metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity,
		})
	case r.Method == http.MethodPost:
		a.evicted[name] = time.Now()
		time.AfterFunc(time.Second, func() { a.show("DELETED", name, func(*corev1.Pod) {}) })
		return reply(http.StatusCreated, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess})
	case r.Method == http.MethodPatch:
		a.patches[name]++
		var patch struct{ Metadata metav1.ObjectMeta }
		if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
			return nil, err
		}
		go a.show("MODIFIED", name, func(p *corev1.Pod) {
			for k, v := range patch.Metadata.Annotations {
				metav1.SetMetaDataAnnotation(&p.ObjectMeta, k, v)
			}
		})
		return reply(http.StatusOK, a.pods[name])
	case r.URL.Query().Get("watch") != "":
		from, to := io.Pipe()
		events := a.watch
		if !ofPods {
			events = nil
		}
		go func() {
			for {
				select {
				case <-r.Context().Done():
					_ = to.CloseWithError(io.EOF)
					return
				case event := <-events:
					_, _ = to.Write(event)
				}
			}
		}()
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: from, Request: r}, nil
	case ofPods:
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
		for _, p := range a.pods {
			list.Items = append(list.Items, *p)
		}
		return reply(http.StatusOK, list)
	case path.Dir(r.URL.Path) == "/api/v1/namespaces":
		return reply(http.StatusOK, corev1.Namespace{TypeMeta: metav1.TypeMeta{Kind: "Namespace", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return reply(http.StatusOK, metav1.List{TypeMeta: metav1.TypeMeta{Kind: "List", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}})
}

// show changes a pod and notifies who watches.
func (a *podsAPI) show(what, name string, change func(*corev1.Pod)) {
	a.mu.Lock()
	pod := a.pods[name].DeepCopy()
	change(pod)
	if a.pods[name] = pod; what == "DELETED" {
		delete(a.pods, name)
	}
	a.mu.Unlock()
	event, _ := json.Marshal(map[string]any{"type": what, "object": pod})
	a.watch <- append(event, '\n')
}

// clientThrough is a client of the API server at the other end of the transport.
func clientThrough(t *testing.T, api http.RoundTripper, gv schema.GroupVersion, path string) rest.Interface {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), policyv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	client, err := rest.RESTClientFor(&rest.Config{Host: "http://api", Transport: api, QPS: -1, APIPath: path, ContentConfig: rest.ContentConfig{
		GroupVersion: &gv, NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// forgiving takes the Events of a drain, which this is not about.
type forgiving struct{}

func (forgiving) EvictionBlocked(string, *corev1.Pod, string)       {}
func (forgiving) EvictionForced(string, *corev1.Pod, string)        {}
func (forgiving) PodLeft(string, *corev1.Pod, string)               {}
func (forgiving) AnnotationMeaningless(string, *corev1.Pod, string) {}

func (forgiving) NamespaceAnnotationMeaningless(string, *corev1.Pod, string) {}

// drained is what became of a node's pods.
type drained struct {
	heard   map[string][]time.Time   // by kind
	evicted map[string]time.Duration // since the notice
	moved   []string                 // latest starts that some plan had elsewhere
	patches map[string]int
}

const perKind = 100

var kinds = []string{"prompt", "slow", "never", "nonsense", "megabyte", "goes", "silent"}

// graceOfPod differs from pod to pod, from 5 to 54 s.
func graceOfPod(i int) int64 { return int64(5 + i%50) }

// drainCrowd drains a node of seven hundred pods, and notifies them if they ask.
func drainCrowd(t *testing.T, ask bool) (found drained) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		noticed := time.Now()
		deadline := noticed.Add(2 * time.Minute)
		latest := func(i int) time.Time { return deadline.Add(-10*time.Second - time.Duration(graceOfPod(i))*time.Second) }
		api := &podsAPI{pods: map[string]*corev1.Pod{}, watch: make(chan []byte, 10000), evicted: map[string]time.Time{}, patches: map[string]int{}}
		number := map[string]int{}
		for _, kind := range kinds {
			for i := range perKind {
				name := fmt.Sprintf("%s-%d", kind, i)
				pod := podOf(name)
				pod.Kind, pod.APIVersion, pod.Status.Phase, pod.Status.PodIP = "Pod", "v1", corev1.PodRunning, "10.0.0.1"
				pod.Spec.TerminationGracePeriodSeconds = new(graceOfPod(i))
				if ask && kind != "silent" {
					pod.Annotations[plan.NoticeAnnotation] = "80/" + kind
				}
				api.pods[name], number[name] = pod, i
			}
		}
		objects, err := dynamic.NewForConfig(&rest.Config{Host: "http://api", Transport: api, QPS: -1})
		if err != nil {
			t.Fatal(err)
		}
		pods := clientThrough(t, api, corev1.SchemeGroupVersion, "/api")
		wake := make(chan struct{}, 1)
		drainer := drain.New(drain.Options{
			Pods: pods, Budgets: clientThrough(t, api, policyv1.SchemeGroupVersion, "/apis"), Dynamic: objects,
			Policy: plan.Policy{Strategy: plan.StrategyHold, Margin: 10 * time.Second}, Events: forgiving{},
			Notify: func(string) {
				select {
				case wake <- struct{}{}:
				default:
				}
			},
			Registerer: prometheus.NewRegistry(), Logger: zerolog.Nop(),
		})
		done := make(chan struct{})
		go func() { defer close(done); _ = drainer.Run(t.Context()) }()
		all := &receivers{heard: map[string][]time.Time{}}
		notifier := New(Options{
			On: true, Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Pods: pods, Answered: drainer.Answer, Events: forgiving{},
			IsNode:     func(netip.Addr) bool { return false },
			Registerer: prometheus.NewRegistry(), Logger: zerolog.Nop(),
		})
		notifier.client = &http.Client{Transport: all}

		in := plan.NodeState{Taint: corev1.Taint{Key: "x"}, Deadline: deadline, Capacity: plan.PendingCapacity}
		ask := func(goal plan.Goal) (plan.Status, bool) {
			drainer.Set("node-a", plan.Wanted{NodeState: in, Goal: goal})
			return drainer.Status(t.Context(), "node-a")
		}
		for ended := false; !ended; {
			next := time.NewTimer(5 * time.Minute)
			if status, ok := ask(plan.Look); ok {
				for _, d := range status.Plan {
					if want := latest(number[d.Pod.Name]); !d.At.Equal(want) {
						found.moved = append(found.moved, fmt.Sprintf("%s by %s", d.Pod.Name, d.At.Sub(want)))
					}
				}
				before := time.Now()
				notifier.Notify(t.Context(), interrupted(deadline), status.Plan)
				if took := time.Since(before); took > 0 {
					t.Errorf("the drain has waited %s for pods to be notified", took)
				}
				status, _ = ask(plan.Drain)
				if ended = status.Moved && status.Total > 0; !status.Next.IsZero() {
					next.Reset(time.Until(status.Next))
				}
			}
			if !ended {
				select {
				case <-wake:
				case <-next.C:
				}
			}
			if time.Since(noticed) > 3*time.Minute {
				t.Fatal("the drain does not end")
			}
		}
		api.mu.Lock()
		defer api.mu.Unlock()
		found.heard, found.patches, found.evicted = all.heard, api.patches, map[string]time.Duration{}
		for name, at := range api.evicted {
			found.evicted[name] = at.Sub(noticed)
		}
	})
	return found
}

// Whether and how pods answer moves no start by a moment, but that of a pod that wants to go now.
// All that ask are notified in the same second, however long some of them take. Pods that did not ask
// cost nothing.
func TestReceiversMoveNoStart(t *testing.T) {
	with, without := drainCrowd(t, true), drainCrowd(t, false)
	if len(with.moved)+len(without.moved) > 0 {
		t.Errorf("latest starts that moved: %q", append(with.moved, without.moved...))
	}
	if len(without.heard)+len(without.patches) > 0 {
		t.Errorf("pods that did not ask heard, or were patched: %v, %v", without.heard, without.patches)
	}
	if len(without.evicted) != len(kinds)*perKind {
		t.Errorf("%d evicted, want all", len(without.evicted))
	}
	for name, at := range without.evicted {
		kind, _, _ := strings.Cut(name, "-")
		if kind == "goes" {
			if with.evicted[name] != with.evicted["goes-0"] || with.evicted[name] > 2*time.Second {
				t.Errorf("%s wanted to go now, and was evicted after %s", name, with.evicted[name])
			}
			continue
		}
		if with.evicted[name] != at {
			t.Errorf("%s was evicted after %s, and after %s where nobody asks", name, with.evicted[name], at)
		}
		if want := 110*time.Second - time.Duration(graceOfPod(0))*time.Second; strings.HasSuffix(name, "-0") && at != want {
			t.Errorf("%s was evicted after %s, want %s", name, at, want)
		}
	}
	first := with.heard["prompt"][0]
	for _, kind := range kinds {
		heard, attempts := with.heard[kind], map[string]int{"never": 2, "silent": 0}
		want, ok := attempts[kind]
		if !ok {
			want = 1
		}
		if len(heard) != want*perKind {
			t.Errorf("%d POSTs to those that are %s, want %d each", len(heard), kind, want)
		}
		for _, at := range heard[:min(len(heard), perKind)] {
			if !at.Equal(first) {
				t.Fatalf("of those that are %s one heard %s after the first", kind, at.Sub(first))
			}
		}
	}
	for name, n := range with.patches {
		if n != 1 || strings.HasPrefix(name, "silent-") {
			t.Errorf("%s was patched %d times", name, n)
		}
	}
}
