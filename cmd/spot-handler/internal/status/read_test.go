package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"spot-handler/handler/interruption"
	"spot-handler/handler/notify"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner/karpenter"
)

// served is a cluster that is read through a real client, and what was asked of it.
type served struct {
	nodes  []*corev1.Node
	pods   map[string][]*corev1.Pod // by node
	events []corev1.Event
	fails  map[string]bool // what cannot be read: nodes, pods, events, poddisruptionbudgets

	mu    sync.Mutex
	asked []string // paths with the field selector, without what does not vary
}

// reader is one of the cluster that remembers no offerings.
func (s *served) reader(t *testing.T) Reader {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	// QPS -1: no limit of the client's own.
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return Reader{
		Nodes:     client.CoreV1().Nodes(),
		Core:      client.CoreV1().RESTClient(),
		Policy:    client.PolicyV1().RESTClient(),
		Dynamic:   dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()),
		Offerings: func(context.Context) (*offerings.Memory, error) { return offerings.New(), nil },
	}
}

func (s *served) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fields := r.URL.Query().Get("fieldSelector")
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	kind := path[len(path)-1]
	s.mu.Lock()
	s.asked = append(s.asked, strings.TrimSpace(r.URL.Path+" "+fields))
	s.mu.Unlock()

	answer := func(o any) { _ = json.NewEncoder(w).Encode(o) }
	w.Header().Set("Content-Type", "application/json")
	if len(path) == 4 && path[2] == "nodes" {
		for _, n := range s.nodes {
			if n.Name == path[3] {
				answer(n)
				return
			}
		}
		http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`, http.StatusNotFound)
		return
	}
	if s.fails[kind] {
		text := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no right to %s","reason":"Forbidden","code":403}`, kind)
		http.Error(w, text, http.StatusForbidden)
		return
	}
	if r.URL.Query().Get("sendInitialEvents") != "" { // as of a server that is too old
		http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`, http.StatusUnprocessableEntity)
		return
	}
	if r.URL.Query().Get("watch") != "" { // nothing changes
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return
	}
	switch kind {
	case "nodes":
		list := corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
		for _, n := range s.nodes {
			list.Items = append(list.Items, *n)
		}
		answer(list)
	case "pods":
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		for _, p := range s.pods[strings.TrimPrefix(fields, "spec.nodeName=")] {
			list.Items = append(list.Items, *p)
		}
		answer(list)
	case "events":
		list := corev1.EventList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "EventList"}}
		for _, e := range s.events { // as the API server selects
			about := "involvedObject.kind=" + e.InvolvedObject.Kind + ",involvedObject.name=" + e.InvolvedObject.Name
			if fields == about || fields == "reason="+e.Reason {
				list.Items = append(list.Items, e)
			}
		}
		answer(list)
	case "poddisruptionbudgets":
		answer(policyv1.PodDisruptionBudgetList{TypeMeta: metav1.TypeMeta{APIVersion: "policy/v1", Kind: "PodDisruptionBudgetList"}})
	default:
		http.NotFound(w, r)
	}
}

// requests are those whose path ends so, sorted.
func (s *served) requests(suffix string) (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.asked {
		path, fields, _ := strings.Cut(a, " ")
		if strings.HasSuffix(path, suffix) {
			list = append(list, fields)
		}
	}
	slices.Sort(list)
	return list
}

func (s *served) list(t *testing.T, r Reader) (got List) {
	t.Helper()
	if err := r.List(t.Context(), func(l List) error { got = l; return nil }); err != nil {
		t.Fatal(err)
	}
	return got
}

// Pods are read on the nodes that are being drained, and on no others: that is a request for each.
func TestListReadsThePodsOfLiveNodes(t *testing.T) {
	s := &served{
		nodes: []*corev1.Node{
			node("draining", "batch", as(interruption.Draining, &interruption.Pods{Total: 3}, nil)),
			node("waiting", "batch", recommended(0, func(*interruption.Record) {})),
			node("drained", "batch", as(interruption.Drained, &interruption.Pods{Total: 1}, nil)),
			{ObjectMeta: metav1.ObjectMeta{Name: "no record"}},
			{ObjectMeta: metav1.ObjectMeta{Name: "unreadable", Annotations: map[string]string{interruption.Annotation: "{"}}},
		},
		pods: map[string][]*corev1.Pod{"draining": {pod(1, running), pod(2, terminating), pod(3, daemon)}},
	}
	got := s.list(t, s.reader(t))
	want := []string{"spec.nodeName=draining", "spec.nodeName=waiting"}
	if asked := s.requests("/pods"); !slices.Equal(asked, want) {
		t.Errorf("pods are read of %q, want %q", asked, want)
	}
	var names []string
	for _, i := range got.Interruptions {
		names = append(names, i.Node)
		if i.Node == "draining" && i.Pods.Total != 3 {
			t.Errorf("pods of the draining node: %+v", i.Pods)
		}
	}
	slices.Sort(names)
	if want := []string{"drained", "draining", "unreadable", "waiting"}; !slices.Equal(names, want) {
		t.Errorf("interruptions of %q, want %q", names, want)
	}
	if len(got.Unread) > 0 {
		t.Errorf("unread: %q", got.Unread)
	}
}

// What cannot be read is named, and what can be is shown all the same.
func TestListSaysWhatItCouldNotRead(t *testing.T) {
	s := &served{fails: map[string]bool{"pods": true}}
	for i := range 5 {
		s.nodes = append(s.nodes, node(fmt.Sprint("node-", 5-i), "batch", as(interruption.Draining, &interruption.Pods{Total: 1}, nil)))
	}
	r := s.reader(t)
	r.Offerings = func(context.Context) (*offerings.Memory, error) {
		return offerings.New(), errors.New("no offerings today")
	}
	got := s.list(t, r)
	if len(got.Interruptions) != 5 {
		t.Errorf("%d interruptions", len(got.Interruptions))
	}
	if len(got.Unread) != 5 || !slices.IsSorted(got.Unread[:3]) || !strings.Contains(got.Unread[0], `"node-1"`) ||
		!strings.Contains(got.Unread[3], "2 more") || got.Unread[4] != "no offerings today" {
		t.Errorf("unread: %q, want three nodes in order, how many more, and the offerings", got.Unread)
	}

	s.fails["nodes"] = true
	err := s.reader(t).List(t.Context(), func(List) error { t.Error("shown without Nodes"); return nil })
	if err == nil || !strings.Contains(err.Error(), "list nodes: ") {
		t.Errorf("error %v", err)
	}
}

// A burst does not end in thousands of requests: the nodes with the nearest deadlines come first.
func TestListReadsThePodsOfSoManyNodes(t *testing.T) {
	s := &served{}
	for i := range mostNodes + 2 {
		s.nodes = append(s.nodes, node(fmt.Sprintf("node-%03d", i), "batch", func(r *interruption.Record) {
			r.Phase, r.Deadline = interruption.Draining, after(1000-i)
		}))
	}
	got := s.list(t, s.reader(t))
	asked := s.requests("/pods")
	if len(asked) != mostNodes || slices.Contains(asked, "spec.nodeName=node-000") || slices.Contains(asked, "spec.nodeName=node-001") {
		t.Errorf("pods of %d nodes are read, the first of them %s", len(asked), asked[0])
	}
	if want := []string{"pods of 2 more nodes, whose deadlines are later"}; !slices.Equal(got.Unread, want) {
		t.Errorf("unread %q, want %q", got.Unread, want)
	}
}

func TestHeldReplacements(t *testing.T) {
	held := func(name string, minutes int, why string) *corev1.Node {
		says, _ := json.Marshal(karpenter.Held{Until: after(60), Why: why})
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name:              name,
			CreationTimestamp: metav1.Time{Time: noon.Add(-time.Duration(minutes) * time.Minute)},
			Annotations:       map[string]string{karpenter.StandsInAnnotation: "batch", karpenter.HeldAnnotation: string(says)},
			OwnerReferences:   []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: "claim-of-" + name}},
		}}
	}
	if got := heldOf(noon, []*corev1.Node{{}}); got != nil {
		t.Errorf("none is held, and %+v is shown", got)
	}
	all := []*corev1.Node{held("b", 60, "calm"), held("c", 136, "calm"), held("a", 60, "calm"), {}}
	got := heldOf(noon, all)
	if got.Replacements != 3 || got.NodeHours != 4.3 {
		t.Errorf("%d replacements for %v hours, want 3 and 4.3", got.Replacements, got.NodeHours)
	}
	var order []string
	for _, h := range got.Oldest {
		order = append(order, h.Node)
	}
	if want := []string{"c", "a", "b"}; !slices.Equal(order, want) {
		t.Errorf("shown as %q, want %q", order, want)
	}
	want := HeldReplacement{
		Node: "c", NodeClaim: "claim-of-c", For: "batch",
		Since: noon.Add(-136 * time.Minute), Until: after(60), Why: "calm",
	}
	if got.Oldest[0] != want {
		t.Errorf("%+v, want %+v", got.Oldest[0], want)
	}
	for i := range mostHeld {
		all = append(all, held(fmt.Sprint("n", i), 180, "calm"))
	}
	if got := heldOf(noon, all); len(got.Oldest) != mostHeld || got.Replacements != mostHeld+3 || got.Oldest[mostHeld-1].Node[0] != 'n' {
		t.Errorf("%d of %d are shown, the last is %s", len(got.Oldest), got.Replacements, got.Oldest[len(got.Oldest)-1].Node)
	}
}

// The status of a node has its own Events in order, and of the refused pods those that were on it.
func TestNodeReadsItsEvents(t *testing.T) {
	about := func(kind, name, reason, text string, at time.Time) corev1.Event {
		e := corev1.Event{Reason: reason, Message: text, LastTimestamp: metav1.Time{Time: at}}
		e.Namespace = metav1.NamespaceDefault
		e.InvolvedObject = corev1.ObjectReference{Kind: kind, Name: name}
		return e
	}
	refused := func(on, podName, uid, text string) corev1.Event {
		e := refusal("shop", "shop", podName, uid, text)
		e.Reason, e.Annotations = notify.ReasonEvictionBlocked, map[string]string{notify.AnnotationNode: on}
		return e
	}
	now := time.Now().UTC()
	s := &served{
		nodes: []*corev1.Node{node("node-1", "batch", func(r *interruption.Record) {
			r.Phase, r.Noticed, r.Received, r.Deadline = interruption.Draining, now, now, now.Add(2*time.Minute)
		})},
		pods: map[string][]*corev1.Pod{"node-1": {pod(1, running), pod(2, running)}},
		events: []corev1.Event{
			about("Node", "node-1", "Second", "b", after(2)), about("Node", "node-1", "First", "a", after(1)),
			about("Node", "node-2", "Other", "c", after(1)), about("Pod", "node-1", "Other", "d", after(1)),
			refused("node-1", "web-1", "uid-1", "needs 2 healthy pods"), refused("node-2", "web-2", "uid-2", "from elsewhere"),
		},
	}
	read := func() (got Node) {
		t.Helper()
		if err := s.reader(t).Node(t.Context(), "node-1", inForce, func(n Node) error { got = n; return nil }); err != nil {
			t.Fatal(err)
		}
		return got
	}
	got := read()
	if len(got.Events) != 2 || got.Events[0].Reason != "First" || got.Events[1].Reason != "Second" {
		t.Errorf("Events %+v", got.Events)
	}
	refusals := map[string]string{}
	for _, p := range got.OnNode {
		refusals[p.Name] = p.Refusal
	}
	if len(refusals) != 2 || refusals["web-1"] != "needs 2 healthy pods" || refusals["web-2"] != "" {
		t.Errorf("refusals %q", refusals)
	}
	if len(got.Unread) > 0 {
		t.Errorf("unread %q", got.Unread)
	}

	for kind, times := range map[string]int{"events": 2, "pods": 1, "poddisruptionbudgets": 1} {
		s.fails = map[string]bool{kind: true}
		got := read()
		if len(got.Unread) != times || !strings.Contains(strings.Join(got.Unread, "\n"), "no right to "+kind) {
			t.Errorf("without %s, unread is %q", kind, got.Unread)
		}
		if got.Record == nil || got.Record.Phase != interruption.Draining {
			t.Errorf("without %s, the record is not shown", kind)
		}
	}

	s.fails = nil
	err := s.reader(t).Node(t.Context(), "gone", inForce, func(Node) error { t.Error("shown"); return nil })
	if err == nil || !strings.Contains(err.Error(), "read node gone: ") {
		t.Errorf("error %v", err)
	}
}

// A node that is over is not surveyed, and no pods are read.
func TestNodeThatIsOverIsNotSurveyed(t *testing.T) {
	s := &served{nodes: []*corev1.Node{node("node-1", "batch", as(interruption.Drained, &interruption.Pods{Total: 1}, nil))}}
	if err := s.reader(t).Node(t.Context(), "node-1", inForce, func(Node) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if asked := s.requests("/pods"); len(asked) > 0 {
		t.Errorf("pods are read: %q", asked)
	}
}

// A recommended node that waits for a slot is shown with those ahead of it: all Nodes are read for that, and only
// then.
func TestNodeReadsItsPeersWhileItWaits(t *testing.T) {
	s := &served{nodes: []*corev1.Node{
		node("node-1", "batch", recommended(5, func(*interruption.Record) {})),
		node("node-2", "batch", recommended(1, func(*interruption.Record) {})),
	}}
	read := func(name string) (got Node) {
		t.Helper()
		if err := s.reader(t).Node(t.Context(), name, inForce, func(n Node) error { got = n; return nil }); err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := read("node-1"); !strings.Contains(got.WaitsFor, "1 ahead of it") {
		t.Errorf("waits for %q, want one ahead of it", got.WaitsFor)
	}
	if got := read("node-2"); !strings.Contains(got.WaitsFor, "0 ahead of it") {
		t.Errorf("the first of the line waits for %q", got.WaitsFor)
	}
	s.asked = nil
	s.nodes[0] = node("node-1", "batch", as(interruption.Draining, nil, nil))
	read("node-1")
	if asked := s.requests("/nodes"); len(asked) > 0 {
		t.Errorf("all Nodes are read %d times", len(asked))
	}
}

// With --watch, the status is shown again until ctx ends, which is no error; an error from showing it is one.
func TestWatchShowsAgain(t *testing.T) {
	s := &served{nodes: []*corev1.Node{node("node-1", "batch", as(interruption.Drained, nil, nil))}}
	r := s.reader(t)
	r.Watch = true
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	times := 0
	err := r.Node(ctx, "node-1", inForce, func(Node) error {
		if times++; times == 2 {
			cancel()
		}
		return nil
	})
	if err != nil || times != 2 {
		t.Errorf("shown %d times: %v", times, err)
	}
	listed := func() int { return len(s.requests("/nodes")) }
	before, lists := listed(), 0
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	if err := r.List(ctx, func(List) error {
		if lists++; lists == 2 {
			before = listed() - before
			cancel()
		}
		return nil
	}); err != nil || lists != 2 || before > 4 { // whether it may, the first list, which is refused as a stream, and the watch
		t.Errorf("shown %d times after %d requests for Nodes: %v", lists, before, err)
	}
	broken := errors.New("the pipe is broken")
	if err := r.Node(t.Context(), "node-1", inForce, func(Node) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
	s.fails = map[string]bool{"nodes": true}
	if err := r.List(t.Context(), func(List) error { return nil }); err == nil || !strings.Contains(err.Error(), "list nodes: ") {
		t.Errorf("watching what is forbidden: %v", err)
	}
}
