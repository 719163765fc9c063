package karpenter

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

func TestRebalancePolicy(t *testing.T) {
	allowed := []string{"ignore", "cordon"}
	synctest.Test(t, func(t *testing.T) {
		var fail error
		var reads atomic.Int32
		value := "cordon"
		client := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
		client.PrependReactor("get", "nodepools", func(clienttesting.Action) (bool, runtime.Object, error) {
			reads.Add(1)
			u := sourcePool()
			u.SetAnnotations(map[string]string{RebalanceAnnotation: value})
			return true, u, fail
		})
		events := &fakeNodes{}
		b := New(Options{Dynamic: client, Events: events})
		defer b.keeper.queue.ShutDown()
		want := func(policy string, known bool, most int32) {
			t.Helper()
			reads.Store(0)
			for range 100 {
				if got, err := b.RebalancePolicy(interruptedNode(), allowed); got != policy || (err == nil) != known {
					t.Fatalf("%q, %v; want %q", got, err, policy)
				}
			}
			if n := reads.Load(); n > most {
				t.Errorf("read %d times, want %d at most", n, most)
			}
		}
		if got, err := b.RebalancePolicy(&corev1.Node{}, allowed); got != "" || err != nil {
			t.Errorf("%q, %v for a node of no pool", got, err)
		}
		fail = errors.New("API server is away")
		want("", false, 1)
		time.Sleep(poolTTL)
		fail = nil
		want("cordon", true, 1)
		value = "ignore"
		want("cordon", true, 0)
		time.Sleep(poolTTL)
		want("ignore", true, 1)
		time.Sleep(poolTTL)
		fail = errors.New("API server is away")
		want("ignore", true, 1) // what was known counts on
		time.Sleep(poolTTL)
		fail, value = nil, "run"
		want("", true, 1)
		time.Sleep(poolTTL)
		want("", true, 1)
		if complaint := []string{"NodePool/spot " + reasonWrongPolicy}; !slices.Equal(events.events, complaint) {
			t.Errorf("Events %v, want %v", events.events, complaint)
		}
		time.Sleep(poolTTL)
		fail = apierrors.NewForbidden(nodePoolResource.GroupResource(), "spot", nil)
		want("", true, 1) // who may not ask has no policies
	})
}

// The pool that is left is never chosen for a node at risk, and one that others have just
// left comes after those that nobody has.
func TestPoolHitLatelyIsNotChosen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mixed := requires(`[{"key":"karpenter.sh/capacity-type","operator":"In","values":["spot","on-demand"]}]`)
		spot := plain(t, "spot", 90, mixed)
		spot.SetAnnotations(nil)
		c := newCluster(t, Options{}, spot, plain(t, "best", 80, mixed), plain(t, "second", 10), sourceNodeClaim())
		at := func(pool, instance string, kind interruption.Kind) interruption.Replacement {
			node, rec := interruptedNode(), record()
			node.Labels[nodePoolLabel], rec.Instance, rec.Kind = pool, instance, kind
			if kind == interruption.RebalanceRecommendation {
				rec.Deadline = nil
			}
			r, err := c.p.Request(t.Context(), node, rec, provisioner.Need{Moving: []*corev1.Pod{pod(container("1", ""))}})
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		if r := at("spot", "i-1", interruption.RebalanceRecommendation); r.Pool != "best" {
			t.Fatalf("replacement %+v, want one in pool best", r)
		}
		at("best", "i-2", interruption.SpotInterruption)
		if r := at("spot", "i-3", interruption.RebalanceRecommendation); r.Pool != "second" {
			t.Errorf("replacement %+v, want one in pool second: best is being left", r)
		}
		if r := at("spot", "i-4", interruption.SpotInterruption); r.Pool == "second" {
			t.Errorf("replacement %+v: on an interruption any will do", r)
		}
		time.Sleep(hitFor)
		if r := at("spot", "i-5", interruption.RebalanceRecommendation); r.Pool != "best" {
			t.Errorf("replacement %+v, want one in pool best, which was left long ago", r)
		}
		// A pool with no other to go to has no replacement.
		for _, name := range []string{"best", "second"} {
			if err := c.Tracker().Delete(nodePoolResource, "", name); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(poolTTL)
		if r := at("spot", "i-6", interruption.RebalanceRecommendation); r.State != provisioner.StateUnsupported || !strings.Contains(r.Reason, "spot is the one that the node is to leave") {
			t.Errorf("replacement %+v, want none", r)
		}
	})
}
