package workloads

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func podOf(name string, annotations ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name), Annotations: map[string]string{}}}
	for i := 0; i < len(annotations); i += 2 {
		p.Annotations[annotations[i]] = annotations[i+1]
	}
	p.Status.PodIP = "127.0.0.1"
	return p
}

func asks(pod *corev1.Pod, at time.Time) drain.Decision {
	return drain.Decision{Pod: pod, Notice: pod.Annotations[drain.NoticeAnnotation], At: at}
}

func interrupted(deadline time.Time) Interruption {
	return Interruption{Node: "node-a", Deadline: deadline, Record: interruption.Record{Kind: interruption.SpotInterruption, Event: "event-1", Action: "terminate"}}
}

// api takes patches of pods.
type api struct {
	mu      sync.Mutex
	patches []string
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	a.patches = append(a.patches, r.URL.Path+" "+string(body))
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprint(w, `{"kind":"Pod","apiVersion":"v1"}`)
}

func (a *api) taken() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(slices.Values(a.patches))
}

type meaningless struct{ told []string }

func (m *meaningless) PeersNotNotified(node, gang, reason string) {
	m.told = append(m.told, node+" "+gang+" "+reason)
}

func (m *meaningless) AnnotationMeaningless(_ string, _ *corev1.Pod, text string, _ bool) {
	m.told = append(m.told, text)
}

func newNotifier(t *testing.T, change func(*Options)) (*Notifier, *api) {
	t.Helper()
	a := &api{}
	o := Options{
		On: true, Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Pods: clientOf(t, a), Events: &meaningless{},
		Answered: func(string, types.UID, drain.When) {}, Leaves: func(string, drain.Gang) bool { return false }, IsNode: func(netip.Addr) bool { return false }, Registerer: prometheus.NewRegistry(), Logger: zerolog.Nop(),
	}
	if change != nil {
		change(&o)
	}
	return New(o), a
}

// clientOf is a client of an API server that answers so.
func clientOf(t *testing.T, api http.Handler) rest.Interface {
	t.Helper()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	client, err := rest.RESTClientFor(&rest.Config{Host: server.URL, APIPath: "/api", ContentConfig: rest.ContentConfig{
		GroupVersion: &schema.GroupVersion{Version: "v1"}, NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: never", what)
		}
	}
}

// Whatever a pod answers, it is heard within two attempts, and only a clear word counts.
func TestAnswers(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"when":"now"}`) }))
	t.Cleanup(elsewhere.Close)
	say := func(status int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status); fmt.Fprint(w, text) }
	}
	for name, tt := range map[string]struct {
		handler  http.HandlerFunc
		when     drain.When
		result   string
		attempts int
	}{
		"nothing":         {say(204, ""), "", resultDelivered, 1},
		"white space":     {say(200, " \n"), "", resultDelivered, 1},
		"an empty object": {say(200, "{}"), "", resultDelivered, 1},
		"now":             {say(200, `{"when":"now"}`), drain.WhenNow, resultAnswered, 1},
		"hold":            {say(202, `{"when":"hold","why":"busy"}`), drain.WhenHold, resultAnswered, 1},
		"last":            {say(200, `{"when": "last"}`), drain.WhenLast, resultAnswered, 1},
		"another word":    {say(200, `{"when":"never"}`), "", resultUnusable, 1},
		"no JSON":         {say(200, `OK`), "", resultUnusable, 1},
		"two answers":     {say(200, `{"when":"now"}{"when":"last"}`), "", resultUnusable, 1},
		"4 KiB":           {say(200, `{"when":"now"}`+strings.Repeat(" ", longestAnswer-len(`{"when":"now"}`))), drain.WhenNow, resultAnswered, 1},
		"a byte more":     {say(200, `{"when":"now"}`+strings.Repeat(" ", longestAnswer+1-len(`{"when":"now"}`))), "", resultUnusable, 1},
		"a megabyte":      {say(200, `{"when":"now"}`+strings.Repeat(" ", 1<<20)), "", resultUnusable, 1},
		"not found":       {say(404, `{"when":"now"}`), "", resultRefused, 1},
		"not well":        {say(503, `{"when":"now"}`), "", resultFailed, 2},
		"elsewhere": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		}, "", resultRefused, 1},
		"never": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "", resultFailed, 2},
		"never to the end": {func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, `{"when":`)
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, "", resultUnusable, 1},
		"a megabyte before": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) }, "", resultFailed, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			attempts := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				attempts++
				mu.Unlock()
				_, _ = io.ReadAll(r.Body) // or the server does not see that the client has gone
				tt.handler(w, r)
			}))
			defer server.Close()
			notifier, _ := newNotifier(t, nil)
			notifier.timeout = time.Second
			target, err := url.Parse(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			when, result, _ := notifier.post(t.Context(), target, []byte("{}"))
			mu.Lock()
			defer mu.Unlock()
			if when != tt.when || result != tt.result || attempts != tt.attempts {
				t.Errorf("%q, %s after %d attempts, want %q, %s after %d", when, result, attempts, tt.when, tt.result, tt.attempts)
			}
		})
	}
}

// What an operator sets up for the way to the API server and to AWS says nothing about pods.
func TestNoProxy(t *testing.T) {
	if transport := newClient().Transport.(*http.Transport); transport.Proxy != nil {
		t.Error("pods are told through a proxy")
	}
}

// A pod is notified at the IP in its status, and no annotation leads anywhere else.
func TestTarget(t *testing.T) {
	for _, tt := range []struct {
		annotation, ip string
		change         func(*Options, *corev1.Pod)
		want           string // empty: nowhere
	}{
		{"8080", "10.1.2.3", nil, "http://10.1.2.3:8080/"},
		{"8080/", "10.1.2.3", nil, "http://10.1.2.3:8080/"},
		{"1/spot/notice?to=me", "fd00::7", nil, "http://[fd00::7]:1/spot/notice?to=me"},
		{"65535//example.com/x", "10.1.2.3", nil, "http://10.1.2.3:65535//example.com/x"},
		{"80/@example.com:81/%2e%2e", "10.1.2.3", nil, "http://10.1.2.3:80/@example.com:81/%2e%2e"},
		{"0", "10.1.2.3", nil, ""},
		{"65536", "10.1.2.3", nil, ""},
		{"+80", "10.1.2.3", nil, ""},
		{"080", "10.1.2.3", nil, ""},
		{"http", "10.1.2.3", nil, ""},
		{"80@example.com/x", "10.1.2.3", nil, ""},
		{"80:81", "10.1.2.3", nil, ""},
		{"80?x", "10.1.2.3", nil, ""},
		{"80/\r\nHost: x", "10.1.2.3", nil, ""},
		{"80/#x", "10.1.2.3", nil, ""},
		{"80/" + strings.Repeat("x", longestPath+1), "10.1.2.3", nil, ""},
		{"80", "example.com", nil, ""},
		{"80", "127.0.0.1", nil, ""},
		{"80", "::ffff:127.0.0.1", nil, ""},
		{"80", "::1", nil, ""},
		{"80", "0.0.0.0", nil, ""},
		{"80", "169.254.169.254", nil, ""},
		{"80", "fd00:ec2::254", nil, ""},
		{"80", "fd00:ec2::23", nil, ""},
		{"80", "fd00:ec3::23", nil, "http://[fd00:ec3::23]:80/"},
		{"80", "64:ff9b::a9fe:a9fe", nil, ""},
		{"80", "64:ff9b:1::a9fe:a9fe", nil, ""},
		{"80", "64:ff9b:1:a9fe:a9:fe00::", nil, ""},
		{"80", "::a9fe:a9fe", nil, ""},
		{"80", "::ffff:169.254.169.254", nil, ""},
		{"80", "::ffff:0:a9fe:a9fe", nil, ""},
		{"80", "2002:a9fe:a9fe::1", nil, ""},
		{"80", "::ffff:10.1.2.3", nil, "http://10.1.2.3:80/"},
		{"80", "64:ff9b::a01:203", func(o *Options, _ *corev1.Pod) { o.Networks = []netip.Prefix{netip.MustParsePrefix("64:ff9b::/96")} }, "http://[64:ff9b::a01:203]:80/"},
		{"80", "10.9.9.9", nil, ""},
		{"80", "::ffff:10.9.9.9", nil, ""},
		{"80", "10.9.9.9", func(o *Options, _ *corev1.Pod) { o.Networks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} }, ""},
		{"80", "10.9.9.9", func(o *Options, p *corev1.Pod) {
			p.Spec.HostNetwork, o.Networks = true, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		}, "http://10.9.9.9:80/"},
		{"80", "fe80::1%eth0", nil, ""},
		{"80", "224.0.0.1", nil, ""},
		{"80", "10.1.2.3", func(o *Options, _ *corev1.Pod) { o.Networks = []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")} }, ""},
		{"80", "10.2.2.3", func(o *Options, _ *corev1.Pod) { o.Networks = []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")} }, "http://10.2.2.3:80/"},
		{"80", "10.1.2.3", func(_ *Options, p *corev1.Pod) { p.Spec.HostNetwork = true }, ""},
		{"80", "10.1.2.3", func(o *Options, p *corev1.Pod) {
			p.Spec.HostNetwork, o.Networks = true, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		}, "http://10.1.2.3:80/"},
	} {
		pod := podOf("a")
		pod.Status.PodIP = tt.ip
		notifier, _ := newNotifier(t, func(o *Options) {
			o.Networks, o.IsNode = nil, func(addr netip.Addr) bool { return addr == netip.MustParseAddr("10.9.9.9") }
			if tt.change != nil {
				tt.change(o, pod)
			}
		})
		got, err := notifier.target(pod, tt.annotation)
		if text := fmt.Sprint(got); err == nil && text != tt.want || err != nil && tt.want != "" {
			t.Errorf("%s at %s: %s, %v, want %q", tt.annotation, tt.ip, text, err, tt.want)
		}
	}
}

// Nobody is notified at an address that Services have, unless that is named; where their networks
// cannot be read, they are read again.
func TestAddressesOfServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{at: map[string]time.Time{}, services: []string{"10.0.0.0/16", "fd00:1::/112"}, failures: 1}
		notifier := n.notifier(t, func(o *Options) { o.Networks = nil })
		for _, tt := range []struct {
			ip   string
			want bool
		}{{"10.0.0.1", false}, {"10.0.0.1", true}, {"10.1.0.1", false}, {"fd00:1::1", true}, {"fd00:2::1", false}} {
			if got := notifier.ofService(t.Context(), tt.ip); got != tt.want {
				t.Errorf("%s of a Service: %t, want %t", tt.ip, got, tt.want)
			}
			time.Sleep(notifier.services.Lifetime(io.EOF) + 1)
		}
		if n.lists != 2 {
			t.Errorf("%d requests, want one that fails and one that is kept", n.lists)
		}
		named := n.notifier(t, func(o *Options) { o.Networks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} })
		if named.ofService(t.Context(), "10.0.0.1") {
			t.Error("a network that is named is refused")
		}
		pod := in("shop", "a", "node-a", "")
		pod.Status.PodIP = "10.0.0.1"
		notifier.Notify(t.Context(), interrupted(time.Now().Add(time.Minute)), []drain.Decision{asks(pod, time.Now())})
		notifier.Wait()
		if heard := n.taken(); len(heard) > 0 {
			t.Errorf("a Service has got %q", heard)
		}
	})
}

// A pod is notified once, and again only when its time gets shorter, or, if it asks, when its new
// home is ready.
func TestNews(t *testing.T) {
	deadline := noon.Add(2 * time.Minute)
	at := deadline.Add(-40 * time.Second)
	notifier, _ := newNotifier(t, nil)
	a, b := podOf("a", drain.NoticeAnnotation, "80"), podOf("b", drain.NoticeAnnotation, "80", drain.NoticeReplacementAnnotation, "true")
	in := interrupted(time.Time{})
	for i, step := range []struct {
		change func()
		at     time.Time
		a, b   string
	}{
		{func() {}, time.Time{}, typeNotice, typeNotice},
		{func() {}, time.Time{}, "", ""},
		{func() { in.Deadline = deadline }, at, typeNotice, typeNotice},
		{func() {}, at.Add(-shift), "", ""},
		{func() {}, at.Add(-shift - time.Second), typeNotice, typeNotice},
		{func() { in.Deadline = deadline.Add(time.Minute) }, at.Add(time.Minute), "", ""},
		{func() { in.Ready = true }, at, "", typeReplacementReady},
		{func() {}, at, "", ""},
		{func() { in.Deadline = deadline.Add(-time.Second) }, at, typeNotice, typeNotice},
	} {
		step.change()
		if got := notifier.news(in, asks(a, step.at)); got != step.a {
			t.Errorf("step %d: a is told %q, want %q", i, got, step.a)
		}
		if got := notifier.news(in, asks(b, step.at)); got != step.b {
			t.Errorf("step %d: b is told %q, want %q", i, got, step.b)
		}
	}
}

// A notice is a CloudEvent with all that a pod has to know; its id depends on what it says alone.
func TestEvent(t *testing.T) {
	deadline := noon.Add(2 * time.Minute)
	in := interrupted(deadline)
	in.Replacement = "Requested"
	risk := interrupted(time.Time{})
	risk.Record.Kind, risk.Record.Action = interruption.RebalanceRecommendation, ""
	pod := podOf("a", drain.NoticeAnnotation, "80")
	clamped := asks(pod, deadline.Add(-40*time.Second))
	clamped.Grace = new(int64(7))
	const head = `{"specversion":"1.0","id":"event-1/uid-a/%s","source":"/spot-handler/nodes/node-a",` +
		`"type":"%s","subject":"shop/a","time":"2026-01-01T12:00:00Z","datacontenttype":"application/json","data":{%s}}`
	const spot = `"kind":"spot-interruption","action":"terminate","node":"node-a",`
	for _, tt := range []struct {
		what     string
		in       Interruption
		decision drain.Decision
		id, data string
	}{
		{typeNotice, in, asks(pod, deadline.Add(-40*time.Second)), "spot-handler.notice/1767268920/1767268880",
			spot + `"deadline":"2026-01-01T12:02:00Z","evictBy":"2026-01-01T12:01:20Z","gracePeriodSeconds":30,"replacement":"Requested"`},
		{typeNotice, in, clamped, "spot-handler.notice/1767268920/1767268880",
			spot + `"deadline":"2026-01-01T12:02:00Z","evictBy":"2026-01-01T12:01:20Z","gracePeriodSeconds":7,"replacement":"Requested"`},
		{typeNotice, risk, asks(pod, time.Time{}), "spot-handler.notice/0/0",
			`"kind":"rebalance-recommendation","node":"node-a","gracePeriodSeconds":30,"replacement":"None"`},
		{typeCanceled, in, asks(pod, time.Time{}), "spot-handler.canceled/1767268920/0",
			spot + `"gracePeriodSeconds":30,"replacement":"Requested"`},
	} {
		got, err := json.Marshal(newEvent(noon, tt.in, tt.what, tt.decision))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fmt.Sprintf(head, tt.id, tt.what, tt.data), string(got)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// Whatever can arrive stands in the manual.
func TestManualNamesWhatArrives(t *testing.T) {
	text, err := os.ReadFile("../../deploy/docs/workloads.md")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{typeNotice, typeReplacementReady, typeCanceled, typePeerNotice, typePeerCanceled}
	data := reflect.TypeFor[eventData]()
	for i := range data.NumField() {
		name, _, _ := strings.Cut(data.Field(i).Tag.Get("json"), ",")
		names = append(names, name)
	}
	for _, name := range names {
		if !strings.Contains(string(text), "\n| `"+name+"` |") {
			t.Errorf("the manual has no row for %s", name)
		}
	}
}

// A pod is notified, answers, carries the annotations, and is notified when it was all for nothing; a pod
// that did not ask, or that is gone, is not. A new process that has notified nobody goes by the
// annotations.
func TestTellAndCallOff(t *testing.T) {
	var mu sync.Mutex
	var heard []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var event cloudEvent
		if err := json.NewDecoder(r.Body).Decode(&event); err != nil || r.Header.Get("Content-Type") != contentType || r.Method != http.MethodPost {
			t.Errorf("%s of %s: %v", r.Method, r.Header.Get("Content-Type"), err)
		}
		mu.Lock()
		heard = append(heard, event.Subject+" "+event.Type+" "+r.URL.Path)
		mu.Unlock()
		fmt.Fprint(w, `{"when":"last"}`)
	}))
	t.Cleanup(server.Close)
	port := server.URL[strings.LastIndexByte(server.URL, ':')+1:]
	answers := make(chan string, 10)
	notifier, api := newNotifier(t, func(o *Options) {
		o.Answered = func(node string, pod types.UID, when drain.When) {
			answers <- node + " " + string(pod) + " " + string(when)
		}
	})
	deadline := noon.Add(2 * time.Minute)
	in := interrupted(deadline)
	a, files := podOf("a", drain.NoticeAnnotation, port+"/bye"), podOf("files", drain.NoticeAnnotation, drain.NoticeFiles)
	silent := podOf("silent")
	wrong := podOf("wrong", drain.NoticeAnnotation, "http")
	plan := []drain.Decision{asks(a, deadline.Add(-40*time.Second)), asks(files, time.Time{}), asks(silent, noon), asks(wrong, noon)}
	for range 3 {
		notifier.Notify(t.Context(), in, plan)
	}
	if got, want := <-answers, "node-a uid-a last"; got != want {
		t.Errorf("answer %q, want %q", got, want)
	}
	eventually(t, "annotations", func() bool { return len(api.taken()) == 3 })
	wantPatches := []string{
		`/api/v1/namespaces/shop/pods/a {"metadata":{"annotations":{"spot-handler/deadline":"2026-01-01T12:02:00Z","spot-handler/evict-by":"2026-01-01T12:01:20Z"},"uid":"uid-a"}}`,
		`/api/v1/namespaces/shop/pods/files {"metadata":{"annotations":{"spot-handler/deadline":"2026-01-01T12:02:00Z","spot-handler/evict-by":null},"uid":"uid-files"}}`,
		`/api/v1/namespaces/shop/pods/wrong {"metadata":{"annotations":{"spot-handler/deadline":"2026-01-01T12:02:00Z","spot-handler/evict-by":"2026-01-01T12:00:00Z"},"uid":"uid-wrong"}}`,
	}
	if diff := cmp.Diff(wantPatches, api.taken()); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
	if told := notifier.opts.Events.(*meaningless).told; len(told) != 1 || !strings.Contains(told[0], `"http", want PORT or PORT/PATH`) {
		t.Errorf("people are told %q", told)
	}

	another, apiOfAnother := newNotifier(t, nil) // has notified nobody
	a.Annotations[drain.DeadlineAnnotation] = "2026-01-01T12:02:00Z"
	another.Canceled(t.Context(), in, []*corev1.Pod{a, files, silent})
	eventually(t, "removal of annotations", func() bool { return len(apiOfAnother.taken()) == 1 })
	if want := `/api/v1/namespaces/shop/pods/a {"metadata":{"annotations":{"spot-handler/deadline":null,"spot-handler/evict-by":null},"uid":"uid-a"}}`; apiOfAnother.taken()[0] != want {
		t.Errorf("patch %s, want %s", apiOfAnother.taken()[0], want)
	}
	eventually(t, "the word that it is called off", func() bool { mu.Lock(); defer mu.Unlock(); return len(heard) == 2 })
	if want := []string{"shop/a spot-handler.notice /bye", "shop/a spot-handler.canceled /bye"}; !slices.Equal(heard, want) {
		t.Errorf("heard %q, want %q", heard, want)
	}
	if len(answers) > 0 {
		t.Errorf("an answer to a cancellation counts: %s", <-answers)
	}
}
