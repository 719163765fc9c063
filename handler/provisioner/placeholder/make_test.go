package placeholder

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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
		c.templates(1)
	})
}
