package observe

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"spot-handler/handler/interruption"
)

// What an interrupted node leads to is watched too: its pods, and the workloads of their namespace.
// What the API server refuses is said once, and what it does not have is no news.
func TestWatch(t *testing.T) {
	s := newScene()
	rec := interruption.Record{Kind: interruption.SpotInterruption, Event: "e", Instance: "i-0123456789abcdef0", Noticed: noticed, Received: noticed, Phase: interruption.Draining}
	s.bare.Annotations = map[string]string{interruption.Annotation: rec.String()}
	list := func(kind, version string, items ...any) any {
		return map[string]any{"kind": kind, "apiVersion": version, "metadata": map[string]any{"resourceVersion": "1"}, "items": items}
	}
	pods := list("PodList", "v1", s.new("web-1", "lost-1", true))
	answers := map[string]any{
		"/api/v1/nodes": list("NodeList", "v1", s.bare), "/api/v1/events": list("EventList", "v1"), "/api/v1/pods": pods, "/api/v1/namespaces/default/pods": pods,
		"/apis/apps/v1/namespaces/default/deployments": list("DeploymentList", "apps/v1", map[string]any{
			"kind": "Deployment", "apiVersion": "apps/v1", "metadata": map[string]any{"namespace": "default", "name": "web"},
			"spec": map[string]any{"replicas": 2, "selector": map[string]any{"matchLabels": map[string]any{"app": "web"}}},
		}),
		"/apis/apps/v1/namespaces/default/statefulsets": list("StatefulSetList", "apps/v1"),
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer, known := answers[r.URL.Path]
		refuse := func(code int32, reason metav1.StatusReason) {
			w.WriteHeader(int(code))
			answer = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: code, Reason: reason, Message: string(reason)}
		}
		switch {
		case strings.HasSuffix(r.URL.Path, "/poddisruptionbudgets"), strings.HasSuffix(r.URL.Path, "/replicasets"):
			refuse(http.StatusForbidden, metav1.StatusReasonForbidden)
		case !known: // such as NodeClaims
			refuse(http.StatusNotFound, metav1.StatusReasonNotFound)
		case r.URL.Query().Get("sendInitialEvents") != "": // which it does not know
			refuse(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		case r.URL.Query().Get("watch") != "":
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer server.Close()
	client := func(path, group string) rest.Interface {
		c, err := rest.UnversionedRESTClientFor(&rest.Config{Host: server.URL, APIPath: path, QPS: -1, ContentConfig: rest.ContentConfig{
			GroupVersion: &schema.GroupVersion{Group: group, Version: "v1"}, NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
		}})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	untyped, err := dynamic.NewForConfig(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	o, ready := New(time.Now()), false
	c := Cluster{Core: client("/api", ""), Policy: client("/apis", "policy"), Dynamic: untyped}
	if err := c.Watch(ctx, o, func() { ready = true; cancel() }); err != nil || !ready {
		t.Fatalf("ready %v, %v", ready, err)
	}
	r := o.Recording(time.Now())
	if len(r.Nodes) != 1 || len(r.Nodes[0].Pods) != 1 || len(r.Workloads) != 1 {
		t.Fatalf("want a node, its pod and its workload: %+v", r)
	}
	if w := r.Workloads[0]; w.Name != "deployment/web" || w.Fewest != 1 || w.Missing != 0 || w.Samples[0].Desired != 2 {
		t.Errorf("%+v, want one of two pods, as before", w)
	}
	var unread []string
	for _, text := range r.Unread {
		what, _, _ := strings.Cut(text, ":")
		unread = append(unread, what)
	}
	slices.Sort(unread)
	if diff := cmp.Diff([]string{"PDBs of namespace default", "replicasets of namespace default"}, unread); diff != "" {
		t.Errorf("unread (-want +got):\n%s", diff)
	}
}

// Watches that never know what there is are waited for no longer than ctx.
func TestWaitSynced(t *testing.T) {
	known := make(chan struct{})
	close(known)
	w := &watcher{syncing: []<-chan struct{}{known}}
	if !w.waitSynced(t.Context()) {
		t.Error("all watches know what there is")
	}
	w.syncing = append(w.syncing, make(chan struct{}))
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if w.waitSynced(ctx) {
		t.Error("one watch does not know what there is")
	}
}
