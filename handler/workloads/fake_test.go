package workloads

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"spot-handler/drain/plan"
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

func asks(pod *corev1.Pod, at time.Time) plan.Decision {
	return plan.Decision{Pod: pod, Notice: pod.Annotations[plan.NoticeAnnotation], At: at}
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

type meaningless struct{ reported []string }

func (m *meaningless) AnnotationMeaningless(_ string, _ *corev1.Pod, text string) {
	m.reported = append(m.reported, text)
}

func newNotifier(t *testing.T, change func(*Options)) (*Notifier, *api) {
	t.Helper()
	a := &api{}
	o := Options{
		On:         true,
		Networks:   []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Pods:       clientOf(t, a),
		Events:     &meaningless{},
		Answered:   func(string, types.UID, plan.When) {},
		IsNode:     func(netip.Addr) bool { return false },
		Registerer: prometheus.NewRegistry(),
		Logger:     zerolog.Nop(),
	}
	if change != nil {
		change(&o)
	}
	return New(o), a
}

// clientOf is a client of an API server with that handler.
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
