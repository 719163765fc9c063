package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	restwatch "k8s.io/client-go/rest/watch"
)

// deadEnds stands before a server, and can let the connections that there are die without
// a word: they stay open, and nothing comes through any more.
type deadEnds struct {
	net.Listener
	to string

	mu  sync.Mutex
	cut chan struct{} // closed when the connections that began before are dead
}

func (d *deadEnds) killAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.cut)
	d.cut = make(chan struct{})
}

func (d *deadEnds) serve() {
	for {
		client, err := d.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", d.to)
		if err != nil {
			return
		}
		d.mu.Lock()
		cut := d.cut
		d.mu.Unlock()
		pass := func(to, from net.Conn) {
			buffer := make([]byte, 32<<10)
			for {
				n, err := from.Read(buffer)
				select {
				case <-cut:
					_, _ = io.Copy(io.Discard, from) // swallowed until the client leaves
					return
				default:
				}
				if _, writeErr := to.Write(buffer[:n]); err != nil || writeErr != nil {
					_ = to.Close()
					return
				}
			}
		}
		go pass(server, client)
		go pass(client, server)
	}
}

// newDeadEnds returns the client of the Lease of an API server that knows one Lease, behind connections
// that can die.
func newDeadEnds(t *testing.T) (*deadEnds, resource[*coordinationv1.Lease, *coordinationv1.LeaseList]) {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"spot-handler","resourceVersion":"1"}}`)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	d := &deadEnds{Listener: listener, to: server.Listener.Addr().String(), cut: make(chan struct{})}
	go d.serve()

	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a}}],
clusters: [{name: a, cluster: {server: "https://%s", insecure-skip-tls-verify: true}}]}`, listener.Addr())
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	conf, err := restConfig(settings{kubeconfig: kubeconfig})
	if err != nil {
		t.Fatal(err)
	}
	leases, err := newLeases(conf, "ns")
	if err != nil {
		t.Fatal(err)
	}
	return d, leases
}

// A renewal that hangs, as its connection has died, leaves the next one a new connection:
// the lease is not lost with the API server's host that it was renewed at.
func TestLeaseRequestsLeaveADeadConnection(t *testing.T) {
	connections, leases := newDeadEnds(t)
	get := func(within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		_, err := leases.Get(ctx, leaseName, metav1.GetOptions{})
		return err
	}
	if err := get(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	connections.killAll()
	if err := get(300 * time.Millisecond); err == nil {
		t.Fatal("answered over a dead connection")
	}
	if err := get(10 * time.Second); err != nil { // a dead one would be pinged for longer
		t.Errorf("second attempt after the connection died: %v", err)
	}
}

// A mark asks for nothing but metadata, and needs no more of the answer than whether the Node was written.
func TestMarkReadsNoObject(t *testing.T) {
	status, answer := http.StatusOK, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"node"}}`
	var asked *http.Request
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = fmt.Fprint(w, answer)
	}))
	defer server.Close()
	c, err := connect(&rest.Config{Host: server.URL}, nil)
	if err != nil {
		t.Fatal(err)
	}
	mark := func() error {
		return c.nodes.Mark(t.Context(), "node", types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`))
	}
	if err := mark(); err != nil {
		t.Fatal(err)
	}
	if asked.Method != http.MethodPatch || asked.URL.Path != "/api/v1/nodes/node" || asked.Header.Get("Content-Type") != string(types.MergePatchType) {
		t.Errorf("asked %s %s of type %q", asked.Method, asked.URL, asked.Header.Get("Content-Type"))
	}
	if got := asked.Header.Values("Accept"); !slices.Equal(got, []string{metadataOnly}) {
		t.Errorf("accepts %q, want %q", got, metadataOnly)
	}
	status, answer = http.StatusConflict, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409}`
	if err := mark(); !apierrors.IsConflict(err) {
		t.Errorf("a conflict is %v", err)
	}
}

// Pods are read in protobuf, as the API server has already encoded each event in it for others. A server that answers
// in JSON anyway is understood.
func TestPodsAreReadInProtobuf(t *testing.T) {
	form := runtime.ContentTypeProtobuf
	var accepted []string
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	pod.Name, pod.ManagedFields = "web", []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	list := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{*pod}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		accepted = append(accepted, r.Header.Get("Accept"))
		info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), form)
		if !r.URL.Query().Has("watch") {
			w.Header().Set("Content-Type", form)
			_ = info.Serializer.Encode(list, w)
			return
		}
		w.Header().Set("Content-Type", form+";stream=watch")
		frames := info.StreamSerializer.Framer.NewFrameWriter(w)
		events := restwatch.NewEncoder(streaming.NewEncoder(frames, info.StreamSerializer.Serializer), info.Serializer)
		_ = events.Encode(&apiwatch.Event{Type: apiwatch.Modified, Object: pod})
	}))
	defer server.Close()
	for _, form = range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON} {
		for _, dryRun := range []bool{false, true} {
			c, err := connectDaemon(&rest.Config{Host: server.URL}, settings{dryRun: dryRun})
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.pods.List(t.Context(), metav1.ListOptions{})
			if err != nil || len(got.Items) != 1 || got.Items[0].Name != "web" || got.Items[0].ManagedFields != nil {
				t.Errorf("%s: the list is %+v, %v", form, got, err)
			}
			w, err := c.pods.Watch(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			event := <-w.ResultChan()
			if seen, ok := event.Object.(*corev1.Pod); !ok || event.Type != apiwatch.Modified || seen.Name != "web" || seen.ManagedFields != nil {
				t.Errorf("%s: the event is %+v", form, event)
			}
			w.Stop()
		}
	}
	for _, accept := range accepted {
		if first, _, _ := strings.Cut(accept, ","); first != runtime.ContentTypeProtobuf && first != runtime.ContentTypeProtobuf+";stream=watch" {
			t.Errorf("accepts %q", accept)
		}
	}
}
