package bench

import (
	"encoding/json"
	"fmt"
	"net"
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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/workloads"
)

// BenchmarkHangingReceivers loses twenty nodes at once. On each are ten pods of one namespace that
// ask for notices; with=true there are also fifty of another namespace, which take connections
// and never answer. Sockets and receivers are real; the API server only takes annotations.
func BenchmarkHangingReceivers(b *testing.B) {
	for _, hostile := range []bool{false, true} {
		b.Run(fmt.Sprintf("with=%t", hostile), func(b *testing.B) {
			for b.Loop() {
				late := measureReceivers(b, hostile)
				b.ReportMetric(late.Seconds(), "s-latest")
			}
		})
	}
}

func measureReceivers(b *testing.B, hostile bool) time.Duration {
	const nodes, perNode, hanging = 20, 10, 50
	hangs, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	defer hangs.Close()
	var mu sync.Mutex
	at := map[string]time.Time{} // by subject
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var event struct{ Subject string }
		if err := json.NewDecoder(r.Body).Decode(&event); err != nil {
			b.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		at[event.Subject] = time.Now()
	}))
	defer receiver.Close()
	asks := func(namespace, name, node string, to net.Addr) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: name, UID: types.UID(namespace + name),
				Annotations: map[string]string{plan.NoticeAnnotation: fmt.Sprint(to.(*net.TCPAddr).Port)},
			},
			Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{PodIP: "127.0.0.1"},
		}
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"Pod","apiVersion":"v1"}`)
	}))
	defer api.Close()
	client, err := rest.RESTClientFor(&rest.Config{Host: api.URL, APIPath: "/api", QPS: -1, ContentConfig: rest.ContentConfig{
		GroupVersion: &schema.GroupVersion{Version: "v1"}, NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
	}})
	must(b, err)
	notifier := workloads.New(workloads.Options{
		On: true, Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Pods: client, Events: noEvents{},
		Answered: func(string, types.UID, plan.When) {}, IsNode: func(netip.Addr) bool { return false }, Registerer: prometheus.NewRegistry(), Logger: zerolog.Nop(),
	})
	began := map[string]time.Time{}
	for i := range nodes {
		in := workloads.Interruption{Node: fmt.Sprint("node-", i), Deadline: time.Now().Add(2 * time.Minute)}
		in.Record.Kind, in.Record.Event = interruption.SpotInterruption, in.Node
		var decisions []plan.Decision
		add := func(pod *corev1.Pod) {
			decisions = append(decisions, plan.Decision{
				Pod:    pod,
				Action: plan.Hold,
				At:     in.Deadline,
				Notice: pod.Annotations[plan.NoticeAnnotation],
			})
		}
		for j := 0; hostile && j < hanging; j++ {
			add(asks("hostile", fmt.Sprint("rank-", i, "-", j), in.Node, hangs.Addr()))
		}
		for j := range perNode {
			pod := asks("shop", fmt.Sprint("pod-", i, "-", j), in.Node, receiver.Listener.Addr())
			add(pod)
			began["shop/"+pod.Name] = time.Now()
		}
		notifier.Notify(b.Context(), in, decisions)
		pause(b, b.Context(), 250*time.Millisecond)
	}
	var late []time.Duration
	for since := time.Now(); len(late) < len(began) && time.Since(since) < time.Minute; pause(b, b.Context(), 10*time.Millisecond) {
		mu.Lock()
		late = nil
		for who, at := range at {
			late = append(late, at.Sub(began[who]))
		}
		mu.Unlock()
	}
	if len(late) != len(began) {
		b.Fatalf("%d of %d pods were notified within a minute", len(late), len(began))
	}
	return slices.Max(late)
}

type noEvents struct{}

func (noEvents) AnnotationMeaningless(string, *corev1.Pod, string) {}

func (noEvents) NamespaceAnnotationMeaningless(string, *corev1.Pod, string) {}
