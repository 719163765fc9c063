package karpenter

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"spot-handler/handler/interruption"
)

func TestRebalancePolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fail error
		var reads atomic.Int32
		value := "cordon"
		client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{nodePoolResource: "NodePoolList"})
		client.PrependReactor("list", "nodepools", func(clienttesting.Action) (bool, runtime.Object, error) {
			reads.Add(1)
			if fail != nil {
				return true, nil, fail
			}
			u := sourcePool()
			u.SetAnnotations(map[string]string{RebalanceAnnotation: value})
			return true, &unstructured.UnstructuredList{Items: []unstructured.Unstructured{*u}}, nil
		})
		events := &fakeNodes{}
		b := New(Options{Dynamic: client, Events: events})
		defer b.keeper.queue.ShutDown()
		want := func(policy interruption.RebalancePolicy, known bool, most int32) {
			t.Helper()
			reads.Store(0)
			for range 100 {
				if got, err := b.RebalancePolicy(interruptedNode()); got != policy || (err == nil) != known {
					t.Fatalf("%q, %v; want %q", got, err, policy)
				}
			}
			if n := reads.Load(); n > most {
				t.Errorf("read %d times, want %d at most", n, most)
			}
		}
		if got, err := b.RebalancePolicy(&corev1.Node{}); got != "" || err != nil {
			t.Errorf("%q, %v for a node of no pool", got, err)
		}
		fail = errors.New("API server is unreachable")
		want("", false, 1)
		time.Sleep(poolTTL)
		fail = nil
		want("cordon", true, 1)
		value = "ignore"
		want("cordon", true, 0)
		time.Sleep(poolTTL)
		want("ignore", true, 1)
		time.Sleep(poolTTL)
		fail = errors.New("API server is unreachable")
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
		want("", true, 1) // who is not allowed to ask has no policies
	})
}
