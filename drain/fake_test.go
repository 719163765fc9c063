package drain

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"spot-handler/drain/narrow"
)

// fakeAPI is as much of an API server as timing rests on: lists and watches of the objects
// in it, and what the test says that requests are answered with. It speaks HTTP without
// a network, so that it runs in fake time. What the real one does is shown in e2e.
type fakeAPI struct {
	mu       sync.Mutex
	version  int
	objects  map[string]object // by path
	watchers []*watcher
	requests []string // all but reads

	answer func(method, path string, body map[string]any) (int, any) // nil: done
	hold   func(r *http.Request) error                               // what a request waits for, or fails of; nil: nothing
	after  func(r *http.Request)                                     // what its answer waits for
	silent bool                                                      // watches show nothing
	narrow bool                                                      // clients read no more than they need
}

type object = map[string]any

type watcher struct {
	prefix string
	query  func(object) bool
	events chan []byte
}

var _ http.RoundTripper = (*fakeAPI)(nil)

func newFakeAPI() *fakeAPI { return &fakeAPI{objects: map[string]object{}} }

// put adds or replaces an object, and shows it to who watches.
func (f *fakeAPI) put(path string, typed any) {
	b, _ := json.Marshal(typed)
	o := object{}
	_ = json.Unmarshal(b, &o)
	f.mu.Lock()
	defer f.mu.Unlock()
	kind := "ADDED"
	if _, ok := f.objects[path]; ok {
		kind = "MODIFIED"
	}
	f.putLocked(kind, path, o)
}

func (f *fakeAPI) putLocked(kind, path string, o object) {
	f.version++
	o["metadata"].(object)["resourceVersion"] = fmt.Sprint(f.version)
	f.objects[path] = o
	f.showLocked(kind, path, o)
}

func (f *fakeAPI) remove(path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o, ok := f.objects[path]; ok {
		delete(f.objects, path)
		f.version++
		f.showLocked("DELETED", path, o)
	}
}

func (f *fakeAPI) showLocked(kind, path string, o object) {
	event, _ := json.Marshal(object{"type": kind, "object": o})
	event = append(event, '\n')
	for _, w := range f.watchers {
		if f.silent {
			break
		}
		if inCollection(path, w.prefix) && w.query(o) {
			w.events <- event
		}
	}
}

// inCollection: /api/v1/pods is all of /api/v1/namespaces/*/pods.
func inCollection(path, collection string) bool {
	dir := path[:strings.LastIndexByte(path, '/')]
	if dir == collection {
		return true
	}
	root, resource := collection[:strings.LastIndexByte(collection, '/')], collection[strings.LastIndexByte(collection, '/'):]
	return strings.HasPrefix(dir, root+"/namespaces/") && strings.HasSuffix(dir, resource)
}

func (f *fakeAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	if f.hold != nil {
		if err := f.hold(r); err != nil {
			return nil, err
		}
	}
	response, err := f.respond(r)
	if f.after != nil {
		f.after(r)
	}
	return response, err
}

func (f *fakeAPI) respond(r *http.Request) (*http.Response, error) {
	body := map[string]any{}
	if r.Body != nil {
		b, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(b, &body)
	}
	reply := func(code int, v any) (*http.Response, error) {
		if s, ok := v.(*metav1.Status); ok {
			s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		}
		b, _ := json.Marshal(v)
		h := http.Header{"Content-Type": {"application/json"}}
		if s, ok := v.(*metav1.Status); ok && s.Details != nil && s.Details.RetryAfterSeconds > 0 {
			h.Set("Retry-After", fmt.Sprint(s.Details.RetryAfterSeconds))
		}
		return &http.Response{StatusCode: code, Header: h, Body: io.NopCloser(bytes.NewReader(b)), Request: r}, nil
	}
	path, query := r.URL.Path, r.URL.Query()
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Method != http.MethodGet {
		f.requests = append(f.requests, r.Method+" "+path)
		if f.answer != nil {
			if code, v := f.answer(r.Method, path, body); code != 0 {
				return reply(code, v)
			}
		}
		return reply(f.writeLocked(r.Method, path, body))
	}
	if o, ok := f.objects[path]; ok {
		return reply(http.StatusOK, o)
	}
	if query.Get("sendInitialEvents") != "" { // as an old server: list instead
		return reply(http.StatusUnprocessableEntity, &metav1.Status{Status: "Failure", Code: 422, Reason: metav1.StatusReasonInvalid})
	}
	if len(strings.Split(path, "/")) > 7 || strings.HasPrefix(path, "/api/v1/namespaces/") && len(strings.Split(path, "/")) == 5 {
		return reply(http.StatusNotFound, &metav1.Status{Status: "Failure", Code: 404, Reason: metav1.StatusReasonNotFound})
	}
	selected := selector(query.Get("fieldSelector"), query.Get("labelSelector"))
	if query.Get("watch") != "" {
		w := &watcher{prefix: path, query: selected, events: make(chan []byte, 1000)}
		f.watchers = append(f.watchers, w)
		from, to := io.Pipe()
		go func() {
			for {
				select {
				case <-r.Context().Done():
					_ = to.CloseWithError(io.EOF)
					return
				case event := <-w.events:
					_, _ = to.Write(event)
				}
			}
		}()
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: from, Request: r}, nil
	}
	items := []object{}
	for at, o := range f.objects {
		if inCollection(at, path) && selected(o) {
			items = append(items, o)
		}
	}
	kind := map[string]string{"pods": "PodList", "poddisruptionbudgets": "PodDisruptionBudgetList"}[path[strings.LastIndexByte(path, '/')+1:]]
	version := "v1"
	if group, ok := strings.CutPrefix(path, "/apis/"); ok {
		version = strings.Join(strings.Split(group, "/")[:2], "/")
	}
	return reply(http.StatusOK, object{"kind": cmp.Or(kind, "List"), "apiVersion": version, "metadata": object{"resourceVersion": fmt.Sprint(f.version)}, "items": items})
}

// writeLocked does what a request asks for: an eviction or a deletion has the pod
// terminate, a patch merges labels and annotations.
func (f *fakeAPI) writeLocked(method, path string, body object) (int, any) {
	at := strings.TrimSuffix(path, "/eviction")
	at = strings.TrimSuffix(at, "/status")
	o, ok := f.objects[at]
	if !ok {
		return http.StatusNotFound, &metav1.Status{Status: "Failure", Code: 404, Reason: metav1.StatusReasonNotFound}
	}
	changed := object{}
	b, _ := json.Marshal(o)
	_ = json.Unmarshal(b, &changed)
	meta := changed["metadata"].(object)
	switch method {
	case http.MethodPost, http.MethodDelete:
		meta["deletionTimestamp"] = time.Now().UTC().Format(time.RFC3339)
	case http.MethodPatch:
		patch, _ := body["metadata"].(object)
		for _, key := range []string{"labels", "annotations"} {
			merged, _ := meta[key].(object)
			if merged == nil {
				merged = object{}
			}
			change, _ := patch[key].(object)
			for k, v := range change {
				if merged[k] = v; v == nil {
					delete(merged, k)
				}
			}
			meta[key] = merged
		}
	}
	f.putLocked("MODIFIED", at, changed)
	return http.StatusCreated, &metav1.Status{Status: "Success"}
}

func selector(field, label string) func(object) bool {
	byLabel, _ := labels.Parse(label)
	return func(o object) bool {
		meta := o["metadata"].(object)
		set := labels.Set{}
		found, _ := meta["labels"].(object)
		for k, v := range found {
			set[k] = fmt.Sprint(v)
		}
		if !byLabel.Matches(set) {
			return false
		}
		if name, ok := strings.CutPrefix(field, "metadata.name="); ok {
			return meta["name"] == name
		}
		if node, ok := strings.CutPrefix(field, "spec.nodeName="); ok {
			return o["spec"].(object)["nodeName"] == node
		}
		return true
	}
}

// count is how many requests there were that end so.
func (f *fakeAPI) count(method, suffix string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(f.requests), func(r string) bool {
		return !strings.HasPrefix(r, method+" ") || !strings.HasSuffix(r, suffix)
	}))
}

// pod puts a pod on its node, or on node-a.
func (f *fakeAPI) pod(p *corev1.Pod) {
	p.APIVersion, p.Kind, p.Spec.NodeName = "v1", "Pod", cmp.Or(p.Spec.NodeName, "node-a")
	f.put("/api/v1/namespaces/shop/pods/"+p.Name, p)
}

func (f *fakeAPI) gone(name string) { f.remove("/api/v1/namespaces/shop/pods/" + name) }

// change changes a pod that is there.
func (f *fakeAPI) change(name string, change func(object)) {
	path := "/api/v1/namespaces/shop/pods/" + name
	changed := f.copyOf(path)
	change(changed)
	f.put(path, changed)
}

// copyOf is a copy of an object that is there.
func (f *fakeAPI) copyOf(path string) object {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := object{}
	b, _ := json.Marshal(f.objects[path])
	_ = json.Unmarshal(b, &o)
	return o
}

// terminate has a pod begin to end.
func (f *fakeAPI) terminate(name string) {
	f.change(name, func(pod object) {
		pod["metadata"].(object)["deletionTimestamp"] = time.Now().UTC().Format(time.RFC3339)
	})
}

func (f *fakeAPI) budget(b *policyv1.PodDisruptionBudget) {
	b.APIVersion, b.Kind = "policy/v1", "PodDisruptionBudget"
	f.put("/apis/policy/v1/namespaces/shop/poddisruptionbudgets/"+b.Name, b)
}

// refuseEvictions is an answer: a budget allows none of them.
func refuseEvictions(_, path string, _ map[string]any) (int, any) {
	if strings.HasSuffix(path, "/eviction") {
		return http.StatusTooManyRequests, refusal(0)
	}
	return 0, nil
}

// refusal is what the API server says for a budget.
func refusal(retryAfter int32) *metav1.Status {
	return &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: "no",
		Details: &metav1.StatusDetails{RetryAfterSeconds: retryAfter, Causes: []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause, Message: "needs 10"}}},
	}
}

func (f *fakeAPI) config() *rest.Config {
	c := &rest.Config{Host: "http://api", Transport: f, QPS: -1}
	if f.narrow {
		c.Transport = narrow.Transport(f)
	}
	return c
}

func (f *fakeAPI) client(t *testing.T, gv schema.GroupVersion) rest.Interface {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, policyv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	c := f.config()
	c.GroupVersion, c.APIPath = &gv, "/apis"
	if gv.Group == "" {
		c.APIPath = "/api"
	}
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func (f *fakeAPI) dynamic(t *testing.T) dynamic.Interface {
	client, err := dynamic.NewForConfig(f.config())
	if err != nil {
		t.Fatal(err)
	}
	return client
}
