package placeholder

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

const (
	instance = "i-0123456789abcdef0"
)

var podResource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

func testNode(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-of-" + name), Labels: map[string]string{corev1.LabelTopologyZone: "zone-a"}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
}

func spot(deadline time.Duration) interruption.Record {
	return interruption.NewRecord(interruption.Notice{
		Kind: interruption.SpotInterruption, Source: interruption.Queue, EventID: "event-1", InstanceID: instance,
		Noticed: time.Now(), Received: time.Now(), Deadline: time.Now().Add(deadline),
	})
}

func rebalance() interruption.Record {
	return interruption.NewRecord(interruption.Notice{
		Kind: interruption.RebalanceRecommendation, Source: interruption.Queue, EventID: "event-1", InstanceID: instance,
		Noticed: time.Now(), Received: time.Now(),
	})
}

// owned is a pod of a controller of the kind; "" is none.
func owned(name, kind string) *corev1.Pod {
	yes := true
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-of-" + name)}}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: list("cpu", "500m")}}}
	if kind != "" {
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "owner", Controller: &yes}}
	}
	return pod
}

func need(pods ...*corev1.Pod) provisioner.Need { return provisioner.Need{Moving: pods} }

// leaving is the pod while it terminates.
func leaving(pod *corev1.Pod) *corev1.Pod {
	pod, now := pod.DeepCopy(), metav1.Now()
	pod.DeletionTimestamp = &now
	return pod
}

// cluster is an API server with the pods and templates of one namespace. What rests on
// a scheduler, a garbage collector or admission is proved on real ones.
type cluster struct {
	*fake.Clientset
	t *testing.T
	b *Backend

	mu       sync.Mutex
	nodes    map[string]*corev1.Node
	notified map[string]int
	log      bytes.Buffer
}

// listing is for the informer, which otherwise takes the fake for a server that ends a
// watch's first list with a bookmark.
type listing struct{ Pods }

func (listing) IsWatchListSemanticsUnSupported() bool { return true }

// behind is a watch that shows each change only after a while, and some never.
type behind struct {
	listing
	by    time.Duration
	never func(pod *corev1.Pod) bool
}

func (p behind) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w, err := p.listing.Watch(ctx, o)
	if err != nil {
		return nil, err
	}
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		if pod, ok := e.Object.(*corev1.Pod); ok && p.never != nil && p.never(pod) {
			return e, false
		}
		time.Sleep(p.by)
		return e, true
	}), nil
}

// newCluster has a Node called node-1 with the record, and a running Backend. It is to
// be called in a synctest bubble.
func newCluster(t *testing.T, rec interruption.Record, change func(*Options), objects ...runtime.Object) *cluster {
	t.Helper()
	selector, err := ParseSelector("life=od")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, Clientset: fake.NewClientset(objects...), nodes: map[string]*corev1.Node{}, notified: map[string]int{}}
	c.PrependReactor("create", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		o := a.(clienttesting.CreateAction).GetObject()
		if m, ok := o.(metav1.Object); ok {
			m.SetUID(types.UID("uid-of-" + m.GetName()))
		}
		return false, nil, nil
	})
	node := testNode("node-1")
	node.Annotations = map[string]string{interruption.Annotation: rec.String()}
	c.nodes["node-1"], c.nodes["od-1"] = node, testNode("od-1")
	opts := Options{
		Selector: selector, Image: "pause", Node: c.node,
		Pods: listing{c.CoreV1().Pods(Namespace)}, Templates: c.CoreV1().PodTemplates(Namespace),
		Notify: func(node string) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.notified[node]++
		},
		Logger: zerolog.New(zerolog.SyncWriter(&c.log)),
	}
	if change != nil {
		change(&opts)
	}
	c.b = New(opts)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	synctest.Wait()
	return c
}

func (c *cluster) node(name string) (*corev1.Node, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.nodes[name]
	return n, ok
}

// request asks once, keeps the answer, and lets the watch come up to date.
func (c *cluster) request(rec *interruption.Record, n provisioner.Need) interruption.Replacement {
	c.t.Helper()
	node, _ := c.node("node-1")
	r, err := c.b.Request(c.t.Context(), node, *rec, n)
	if err != nil {
		c.t.Fatalf("Request: %v", err)
	}
	rec.Replacement = &r
	synctest.Wait()
	return r
}

func (c *cluster) want(r interruption.Replacement, state, reason string) {
	c.t.Helper()
	if r.State != state || !strings.Contains(r.Reason, reason) || (reason == "") != (r.Reason == "") {
		c.t.Errorf("replacement %s (%s), want %s (%s)", r.State, r.Reason, state, reason)
	}
}

// held names the pods whose placeholders there are.
func (c *cluster) held(want ...string) {
	c.t.Helper()
	list, err := c.CoreV1().Pods(Namespace).List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	got := []string{}
	for _, p := range list.Items {
		got = append(got, strings.TrimPrefix(p.Annotations[podAnnotation], "default/"))
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		c.t.Errorf("placeholders of %q, want of %q", got, want)
	}
}

// watching has the watch begin before anything is made, as for a node after the first.
func (c *cluster) watching() {
	c.b.start()
	synctest.Wait()
}

// timesNotified is how often the node was notified until now.
func (c *cluster) timesNotified() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.notified["node-1"]
}

// failing has the next n requests of that verb fail, all of them if n is negative.
func (c *cluster) failing(verb, resource string, n int, err error) {
	var mu sync.Mutex
	c.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		if n == 0 {
			return false, nil, nil
		}
		n--
		return true, nil, err
	})
}

// templates counts the owners. The fake has no garbage collector.
func (c *cluster) templates(want int) {
	c.t.Helper()
	list, err := c.CoreV1().PodTemplates(Namespace).List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	if len(list.Items) != want {
		c.t.Errorf("%d templates, want %d", len(list.Items), want)
	}
}

// bind plays the scheduler.
func (c *cluster) bind(pod *corev1.Pod, node string) {
	c.t.Helper()
	p, err := c.CoreV1().Pods(Namespace).Get(c.t.Context(), podName(instance, pod.UID), metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	p.Spec.NodeName = node
	if _, err := c.CoreV1().Pods(Namespace).Update(c.t.Context(), p, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	synctest.Wait()
}

// twoBound is a cluster with a record, and the placeholders of two pods, which have their places.
func twoBound(t *testing.T) (c *cluster, rec interruption.Record, a, b *corev1.Pod) {
	rec = spot(2 * time.Minute)
	c = newCluster(t, rec, nil)
	a, b = owned("a", "ReplicaSet"), owned("b", "ReplicaSet")
	c.request(&rec, need(a, b))
	c.bind(a, "od-1")
	c.bind(b, "od-1")
	return c, rec, a, b
}

// take plays whoever preempts the placeholder of the pod.
func (c *cluster) take(pod *corev1.Pod) {
	c.t.Helper()
	if err := c.CoreV1().Pods(Namespace).Delete(c.t.Context(), podName(instance, pod.UID), metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
	synctest.Wait()
}

// calls counts requests by verb and resource, but for the watch's own.
func (c *cluster) calls() map[string]int {
	calls := map[string]int{}
	for _, a := range c.Actions() {
		if a.GetVerb() != "watch" && a.GetVerb() != "list" && a.GetVerb() != "update" {
			calls[a.GetVerb()+" "+a.GetResource().Resource]++
		}
	}
	return calls
}

func bubble(t *testing.T, f func(t *testing.T)) { synctest.Test(t, f) }
