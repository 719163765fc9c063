package placeholder

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

const (
	instance = "i-0123456789abcdef0"
	space    = "placeholders"
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
		Selector: selector, Namespace: space, Image: "pause", Node: c.node,
		Pods: listing{c.CoreV1().Pods(space)}, Templates: c.CoreV1().PodTemplates(space),
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
	list, err := c.CoreV1().Pods(space).List(c.t.Context(), metav1.ListOptions{})
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

// templates counts the owners. The fake has no garbage collector.
func (c *cluster) templates(want int) {
	c.t.Helper()
	list, err := c.CoreV1().PodTemplates(space).List(c.t.Context(), metav1.ListOptions{})
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
	p, err := c.CoreV1().Pods(space).Get(c.t.Context(), podName(instance, pod.UID), metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	p.Spec.NodeName = node
	if _, err := c.CoreV1().Pods(space).Update(c.t.Context(), p, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	synctest.Wait()
}

// take plays whoever preempts the placeholder of the pod.
func (c *cluster) take(pod *corev1.Pod) {
	c.t.Helper()
	if err := c.CoreV1().Pods(space).Delete(c.t.Context(), podName(instance, pod.UID), metav1.DeleteOptions{}); err != nil {
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

func TestFromNoticeToRelease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		c := newCluster(t, rec, nil)
		a, b, s := owned("a", "ReplicaSet"), owned("b", "ReplicaSet"), owned("s", "StatefulSet")

		r := c.request(&rec, need(a, b, s))
		c.want(r, provisioner.StateRequested, "")
		if r.Backend != "placeholder" || r.Name != "placeholder-"+instance || r.Pool != "life=od" {
			t.Errorf("replacement %+v", r)
		}
		c.held("a", "b", "s")
		c.templates(1)

		// A redelivered notice, or a process that has not seen the record: nothing new.
		before := rec
		before.Replacement = nil
		c.want(c.request(&before, need(a, b, s)), provisioner.StateRequested, "")
		c.held("a", "b", "s")
		if n := c.calls()["create pods"]; n != 3 {
			t.Errorf("%d pods created, want 3", n)
		}

		c.bind(a, "od-1")
		c.want(c.request(&rec, need(a, b, s)), provisioner.StateLaunched, "")
		c.bind(b, "od-1")
		c.bind(s, "od-1")
		if c.notified["node-1"] == 0 {
			t.Error("the node was not notified")
		}
		c.want(c.request(&rec, need(a, b, s)), provisioner.StateReady, "")
		c.held("a", "b", "s")

		// The successor of a ReplicaSet's pod comes when that begins to leave, that of a
		// StatefulSet's when it is gone.
		c.want(c.request(&rec, need(leaving(a), b, leaving(s))), provisioner.StateReady, "")
		c.held("b", "s")
		c.want(c.request(&rec, need(leaving(a), b)), provisioner.StateReady, "")
		c.held("b")
		if n := c.calls()["delete pods"]; n != 2 {
			t.Errorf("%d pods deleted, want 2", n)
		}
		c.want(c.request(&rec, need()), provisioner.StateReady, "")
		c.templates(0) // and with it what is left

		for range 2 {
			if err := c.b.Release(t.Context(), testNode("node-1"), rec); err != nil {
				t.Errorf("Release: %v", err)
			}
		}
	})
}

func TestPodsWithoutAPlaceholder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		c := newCluster(t, rec, nil)
		surged, bare, gone, tied, held := owned("surged", "ReplicaSet"), owned("bare", ""), leaving(owned("gone", "ReplicaSet")), owned("tied", "ReplicaSet"), owned("held", "ReplicaSet")
		tied.Spec.NodeSelector = map[string]string{"life": "spot"}
		held.Labels = map[string]string{Label: "i-other"}
		n := need(surged, bare, gone, tied, held)
		n.Surged = map[types.UID]bool{surged.UID: true}

		r := c.request(&rec, n)
		c.want(r, provisioner.StateUnsupported, "no pod needs a placeholder; placeholders of other nodes are not replaced; "+
			"pods that may not run on nodes of --fallback-selector find no room there; pods without a controller have no successor; "+
			"successors of pods that are leaving ask for themselves; surged pods' successors ask for themselves")
		if calls := c.calls(); len(calls) != 0 {
			t.Errorf("calls %v, want none", calls)
		}
		n.Moving = append(n.Moving, owned("a", "Job"))
		c.want(c.request(&rec, n), provisioner.StateRequested, "")
		c.held("a")

		// What is surged only later has its successor then.
		n.Surged[types.UID("uid-of-a")] = true
		c.want(c.request(&rec, n), provisioner.StateFailed, "no room in time")
	})
}

func TestNotAsked(t *testing.T) {
	for _, tt := range []struct {
		name   string
		rec    func() interruption.Record
		change func(*Options)
		reason string
	}{
		{"no selector", func() interruption.Record { return spot(2 * time.Minute) }, func(o *Options) { o.Selector = Selector{} }, "--fallback-selector is not set"},
		{"no time", func() interruption.Record { return spot(5 * time.Second) }, nil, "no time is left"},
		{"no instance", func() interruption.Record { r := spot(time.Minute); r.Instance = ""; return r }, nil, "the record names no instance"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				rec := tt.rec()
				c := newCluster(t, rec, tt.change)
				c.want(c.request(&rec, need(owned("a", "ReplicaSet"))), provisioner.StateUnsupported, tt.reason)
				if tt.change != nil && len(c.Actions()) != 0 {
					t.Errorf("%d calls of a backend that is off", len(c.Actions()))
				}
			})
		})
	}
}

func TestChooseMakesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		c := newCluster(t, rec, nil)
		r, err := c.b.Choose(t.Context(), testNode("node-1"), rec, need(owned("a", "ReplicaSet")))
		if err != nil {
			t.Fatal(err)
		}
		c.want(r, provisioner.StateRequested, "")
		if calls := c.calls(); len(calls) != 0 {
			t.Errorf("calls %v, want none", calls)
		}
	})
}

func TestTakenPlaceholdersAreNotMadeAnew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		c := newCluster(t, rec, nil)
		a, b := owned("a", "ReplicaSet"), owned("b", "ReplicaSet")
		c.request(&rec, need(a, b))
		c.take(a)
		c.want(c.request(&rec, need(a, b)), provisioner.StateRequested, "")
		c.held("b")
		c.bind(b, "od-1")
		c.want(c.request(&rec, need(a, b)), provisioner.StateReady, "")

		rec = spot(2 * time.Minute)
		c = newCluster(t, rec, nil)
		c.request(&rec, need(a))
		c.take(a)
		c.want(c.request(&rec, need(a)), provisioner.StateFailed, "no room in time")
		c.want(c.request(&rec, need(a)), provisioner.StateFailed, "no room in time")
		c.held()
		c.templates(0)

		// One that had its place has found room; that another pod has come first does not
		// mean that there is less of it.
		rec = spot(2 * time.Minute)
		c = newCluster(t, rec, nil)
		c.request(&rec, need(a))
		c.bind(a, "od-1")
		c.take(a)
		c.want(c.request(&rec, need(a)), provisioner.StateReady, "")
		c.held()

		// But if the pods had to leave before all had theirs, there was no room.
		rec = spot(2 * time.Minute)
		c = newCluster(t, rec, nil)
		c.request(&rec, need(a, b))
		c.bind(a, "od-1")
		c.want(c.request(&rec, need(leaving(a), leaving(b))), provisioner.StateFailed, "no room in time")
	})
}

// A Node that is not Ready, or not known yet, is asked about again.
func TestRoomCountsOnReadyNodesOnly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		c := newCluster(t, rec, nil)
		a := owned("a", "ReplicaSet")
		c.request(&rec, need(a))
		c.bind(a, "od-2")
		c.want(c.request(&rec, need(a)), provisioner.StateLaunched, "")
		c.mu.Lock()
		before := c.notified["node-1"]
		c.nodes["od-2"] = testNode("od-2")
		c.mu.Unlock()
		time.Sleep(again)
		synctest.Wait()
		if c.notified["node-1"] <= before {
			t.Error("not notified again")
		}
		c.want(c.request(&rec, need(a)), provisioner.StateReady, "")
	})
}

// In a process of one node the others are not known, and only its own placeholders are
// looked at.
func TestSingleNode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		c := newCluster(t, rec, func(o *Options) { o.SingleNode = "node-1" }, left("node-2", "i-other", time.Hour))
		synctest.Wait()
		a := owned("a", "ReplicaSet")
		c.request(&rec, need(a))
		c.bind(a, "od-unknown")
		c.want(c.request(&rec, need(a)), provisioner.StateReady, "")
		time.Sleep(2 * sweepEvery)
		synctest.Wait()
		c.held("", "a") // the other node's is none of its business
	})
}

func TestNoRoomInTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := rebalance()
		c := newCluster(t, rec, nil)
		a, b := owned("a", "ReplicaSet"), owned("b", "ReplicaSet")
		c.request(&rec, need(a, b))
		c.bind(a, "od-1")
		time.Sleep(patience - time.Minute)
		c.want(c.request(&rec, need(a, b)), provisioner.StateLaunched, "")
		c.mu.Lock()
		before := c.notified["node-1"]
		c.mu.Unlock()
		time.Sleep(time.Minute + sweepEvery)
		synctest.Wait()
		if c.notified["node-1"] <= before {
			t.Error("not notified that the time is over")
		}
		c.want(c.request(&rec, need(a, b)), provisioner.StateFailed, "no room in time for 1 of 2 placeholders")
		c.templates(0)
	})
}

// left is a placeholder that an earlier process has made for the node.
func left(node, of string, life time.Duration) *corev1.Pod {
	o := order{node: testNode(node), instance: of, expires: time.Now().Add(life)}
	p := New(Options{}).placeholder(o, &corev1.PodTemplate{}, &corev1.Pod{})
	p.Namespace, p.Annotations[podAnnotation] = space, ""
	p.UID = types.UID(of + node)
	return p
}

func TestLeftovers(t *testing.T) {
	with := func(rec interruption.Record, change func(*interruption.Record)) *corev1.Node {
		n := testNode("node-2")
		if change != nil {
			change(&rec)
		}
		n.Annotations = map[string]string{interruption.Annotation: rec.String()}
		return n
	}
	for _, tt := range []struct {
		name   string
		node   func() *corev1.Node // of the leftover; nil is gone
		life   time.Duration
		reason string // "": it stays
	}{
		{"node gone", func() *corev1.Node { return nil }, time.Minute, "the node is gone"},
		{"not interrupted", func() *corev1.Node { return testNode("node-2") }, time.Minute, "the node is not interrupted any more"},
		{"another instance", func() *corev1.Node {
			return with(spot(time.Minute), func(r *interruption.Record) { r.Instance = "i-new" })
		}, time.Minute, "the node is another instance"},
		{"drained", func() *corev1.Node {
			return with(spot(time.Minute), func(r *interruption.Record) { r.Phase = interruption.Drained })
		}, time.Minute, "the drain is over"},
		{"failed", func() *corev1.Node {
			return with(spot(time.Minute), func(r *interruption.Record) {
				r.Replacement = &interruption.Replacement{Backend: "placeholder", Name: "x", State: provisioner.StateFailed}
			})
		}, time.Minute, "the replacement has failed"},
		{"by another provisioner now", func() *corev1.Node {
			return with(spot(time.Minute), func(r *interruption.Record) {
				r.Replacement = &interruption.Replacement{Backend: "asg", Name: "x", State: provisioner.StateReady}
			})
		}, time.Minute, "another provisioner makes the replacement"},
		{"asked after another provisioner", func() *corev1.Node {
			return with(spot(time.Minute), func(r *interruption.Record) {
				r.Replacement = &interruption.Replacement{Backend: "asg", State: provisioner.StateUnsupported}
			})
		}, time.Minute, ""},
		{"expired", func() *corev1.Node { return with(spot(time.Minute), nil) }, -time.Minute, "their time is over"},
		{"interrupted, record not written yet", func() *corev1.Node { return with(spot(time.Minute), nil) }, time.Minute, ""},
		{"record unreadable", func() *corev1.Node {
			n := testNode("node-2")
			n.Annotations = map[string]string{interruption.Annotation: "{"}
			return n
		}, time.Minute, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := newCluster(t, spot(time.Minute), func(o *Options) {
					node, known := tt.node(), o.Node
					o.Node = func(name string) (*corev1.Node, bool) {
						if name == "node-2" {
							return node, node != nil
						}
						return known(name)
					}
				}, left("node-2", instance, tt.life))
				synctest.Wait()
				if tt.reason == "" {
					c.held("")
				} else {
					c.held()
				}
				if log := c.log.String(); !strings.Contains(log, tt.reason) || (tt.reason == "") != (log == "") {
					t.Errorf("the log says %q, want %q", log, tt.reason)
				}
			})
		})
	}
}

func TestRefused(t *testing.T) {
	for _, tt := range []struct {
		name, resource string
		err            error
		reason         string
	}{
		{"no permission", "podtemplates", apierrors.NewForbidden(schema.GroupResource{Resource: "podtemplates"}, "", fmt.Errorf("User %q cannot create", "us")), `User "us" cannot create`},
		{"no priority class", "pods", apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "a-name", fmt.Errorf("no PriorityClass")), "no PriorityClass"},
		{"no namespace", "podtemplates", apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, space), `namespaces "placeholders" not found`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				rec := spot(100 * time.Minute)
				c := newCluster(t, rec, nil)
				refusing := true
				c.PrependReactor("create", tt.resource, func(clienttesting.Action) (bool, runtime.Object, error) { return refusing, nil, tt.err })
				a := owned("a", "ReplicaSet")
				reason := "placeholders cannot be made in namespace placeholders: " + tt.reason
				for range 20 { // as many nodes of a burst
					rec.Replacement = nil
					if r := c.request(&rec, need(a)); r.State != provisioner.StateUnsupported || r.Reason != reason {
						t.Errorf("replacement %+v, want Unsupported: %s", r, reason)
					}
				}
				if n := c.calls()["create "+tt.resource]; n != 1 {
					t.Errorf("asked %d times within a minute, want once", n)
				}
				if n := strings.Count(c.log.String(), "\n"); n != 1 {
					t.Errorf("said %d times: %s", n, c.log.String())
				}
				c.templates(0)
				refusing = false
				time.Sleep(recheck)
				c.want(c.request(&rec, need(a)), provisioner.StateRequested, "")
				c.held("a")
			})
		})
	}
}

// An answer that was lost is asked for again, and makes nothing twice.
func TestLostAnswers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		c := newCluster(t, rec, nil)
		lost := 2
		var mu sync.Mutex
		c.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			if lost == 0 {
				return false, nil, nil
			}
			lost--
			_ = c.Tracker().Create(podResource, a.(clienttesting.CreateAction).GetObject(), space)
			return true, nil, apierrors.NewTimeoutError("lost", 1)
		})
		n := need(owned("a", "ReplicaSet"), owned("b", "ReplicaSet"), owned("c", "ReplicaSet"))
		for range 5 {
			node, _ := c.node("node-1")
			if r, err := c.b.Request(t.Context(), node, rec, n); err == nil {
				rec.Replacement = &r
				break
			}
			synctest.Wait()
		}
		if rec.Replacement == nil {
			t.Fatal("never asked with success")
		}
		c.held("a", "b", "c")
		for _, pod := range n.Moving {
			c.bind(pod, "od-1")
		}
		c.want(c.request(&rec, n), provisioner.StateReady, "")
	})
}

// The PodTemplate is of an earlier Node of the name, or somebody else's.
func TestOwnerOfOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		o := order{node: testNode("node-1"), instance: instance, expires: time.Now().Add(time.Minute)}
		o.node.UID = "an-earlier-one"
		old := New(Options{}).template(o)
		old.Namespace = space
		c := newCluster(t, rec, nil, old)
		node, _ := c.node("node-1")
		if r, err := c.b.Request(t.Context(), node, rec, need(owned("a", "ReplicaSet"))); err == nil {
			t.Errorf("replacement %+v, want an error until the garbage is collected", r)
		}
		c.held()

		foreign := old.DeepCopy()
		foreign.Labels = nil
		c = newCluster(t, rec, nil, foreign)
		c.want(c.request(&rec, need(owned("a", "ReplicaSet"))), provisioner.StateFailed, "exists and is not ours")
		c.templates(1)
	})
}
