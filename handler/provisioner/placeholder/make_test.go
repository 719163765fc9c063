package placeholder

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"spot-handler/handler/provisioner"
)

func TestRefused(t *testing.T) {
	for _, tt := range []struct {
		name, resource string
		err            error
		reason         string
	}{
		{"no permission", "podtemplates", apierrors.NewForbidden(schema.GroupResource{Resource: "podtemplates"}, "", fmt.Errorf("User %q cannot create", "us")), `User "us" cannot create`},
		{"no priority class", "pods", apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "a-name", fmt.Errorf("no PriorityClass")), "no PriorityClass"},
		{"no namespace", "podtemplates", apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, Namespace), `namespaces "spot-handler-placeholders" not found`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				rec := spot(100 * time.Minute)
				c := newCluster(t, rec, nil)
				refusing := true
				c.PrependReactor("create", tt.resource, func(clienttesting.Action) (bool, runtime.Object, error) { return refusing, nil, tt.err })
				a := owned("a", "ReplicaSet")
				reason := "placeholders cannot be made in namespace spot-handler-placeholders: " + tt.reason
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
				time.Sleep(time.Minute)
				c.want(c.request(&rec, need(a)), provisioner.StateRequested, "")
				c.held("a")
			})
		})
	}
}

// What the API server calls wrong would be wrong again: the node goes on without, and nothing is left.
func TestInvalid(t *testing.T) {
	for name, err := range map[string]error{
		"invalid":     apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "a", nil),
		"bad request": apierrors.NewBadRequest("admission webhook says no"),
		"too large":   apierrors.NewRequestEntityTooLargeError("3 MiB"),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				rec := spot(2 * time.Minute)
				c := newCluster(t, rec, nil)
				c.failing("create", "pods", -1, err)
				c.want(c.request(&rec, need(owned("a", "ReplicaSet"))), provisioner.StateFailed, err.Error())
				c.templates(0)
				// Another node's pods might be fine.
				c.failing("create", "pods", 0, nil)
				rec.Replacement = nil
				c.want(c.request(&rec, need(owned("b", "ReplicaSet"))), provisioner.StateFailed, err.Error())
			})
		})
	}
}

// A node has 4 requests under way and all nodes together 16, so that a burst leaves the API server
// free for cordons and for the leader's lease.
func TestRequestsAtATime(t *testing.T) {
	for nodes, want := range map[int]int{1: 4, 2: 8, 8: 16} {
		bubble(t, func(t *testing.T) {
			slow := make(chan struct{})
			var under atomic.Int32
			c := newCluster(t, spot(2*time.Minute), func(o *Options) { o.Pods = slowPods{listing{o.Pods}, slow, &under} })
			var pods []*corev1.Pod
			for i := range 20 {
				pods = append(pods, owned(fmt.Sprint("a-", i), "ReplicaSet"))
			}
			var asked sync.WaitGroup
			for i := range nodes {
				asked.Go(func() {
					rec := spot(2 * time.Minute)
					rec.Instance = fmt.Sprint("i-", i)
					if _, err := c.b.Request(t.Context(), testNode(fmt.Sprint("node-", i)), rec, need(pods...)); err != nil {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
			if got := int(under.Load()); got != want {
				t.Errorf("%d nodes: %d requests at a time, want %d", nodes, got, want)
			}
			close(slow)
			asked.Wait()
			if n := c.calls()["create pods"]; n != 20*nodes {
				t.Errorf("%d nodes: %d placeholders, want %d", nodes, n, 20*nodes)
			}
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
			_ = c.Tracker().Create(podResource, a.(clienttesting.CreateAction).GetObject(), Namespace)
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

// A request that failed halfway is repeated without the placeholders whose place a pod has taken since.
func TestRepeatedRequestMakesNoTakenPlaceholder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		c := newCluster(t, rec, nil)
		n := need(owned("a", "ReplicaSet"), owned("b", "ReplicaSet"))
		a, b := n.Moving[0], n.Moving[1]
		var taken atomic.Bool
		c.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			fails := action.(clienttesting.CreateAction).GetObject().(*corev1.Pod).Name == podName(instance, b.UID) && !taken.Load()
			return fails, nil, apierrors.NewTimeoutError("lost", 1)
		})
		made := func() bool {
			_, err := c.Tracker().Get(podResource, Namespace, podName(instance, a.UID))
			return err == nil
		}
		node, _ := c.node("node-1")
		for range 1000 { // the failure can come before the other request is made, and mostly does
			if _, err := c.b.Request(t.Context(), node, rec, n); err == nil {
				t.Fatal("a request succeeds")
			}
			if synctest.Wait(); made() {
				break
			}
		}
		c.bind(a, "od-1")
		c.take(a)
		taken.Store(true)
		c.request(&rec, n)
		c.held("b")
	})
}

// The PodTemplate is of an earlier Node of the name, or somebody else's.
func TestOwnerOfOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		o := order{node: testNode("node-1"), instance: instance, expires: time.Now().Add(time.Minute)}
		o.node.UID = "an-earlier-one"
		old := New(Options{}).template(o)
		old.Namespace = Namespace
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
		c.mu.Lock()
		c.nodes["node-1"] = testNode("node-1") // the interruption is cancelled
		c.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		c.templates(1)
	})
}
