package drain

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/drain/plan"
)

// Of many nodes at once, the next is watched when one has its plan or its drain has ended, or
// after a moment.
func TestOpenings(t *testing.T) {
	const nodes, atOnce = 320, 32
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		var mu sync.Mutex
		var listed []string
		api.hold = func(r *http.Request) error {
			node, ok := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "spec.nodeName=")
			mu.Lock()
			defer mu.Unlock()
			if r.URL.Query().Has("sendInitialEvents") && ok {
				t.Error("a watch that begins with the pods: the API server goes through those of all nodes")
			}
			if ok && !slices.Contains(listed, node) {
				listed = append(listed, node)
			}
			return nil
		}
		s := &scene{T: t, api: api, events: &podEvents{}, atOnce: 4}
		s.d = s.drainer(holding, func(string) {})
		go func() { _ = s.d.Run(t.Context()) }()
		want := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(listed) != want {
				t.Errorf("%s: the pods of %d nodes are listed, want %d", when, len(listed), want)
			}
		}
		for i := range nodes { // cancelled nodes are watched, and not planned
			s.d.Set(fmt.Sprint("node-", i), plan.Wanted{Goal: plan.Cancel})
		}
		want("at first", atOnce)
		mu.Lock()
		first := slices.Clone(listed)
		mu.Unlock()
		for _, node := range first[:10] {
			for range 2 { // a further plan makes no further place
				s.d.inbox.put(func(time.Time) { s.d.cluster.Planned(node) })
			}
		}
		want("with 10 plans", atOnce+10)
		s.d.Remove(first[10])
		want("with a drain that has ended", atOnce+11)
		time.Sleep(time.Second)
		want("after a moment", 2*atOnce+11)
		time.Sleep(nodes / atOnce * time.Second)
		want("in the end", nodes)
	})
}

// Nodes whose pods take long to list, as a tenant's are so large, hold up the drains of other nodes for
// seconds at most.
func TestSlowNodes(t *testing.T) {
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		f.pod(pod("a", onNode("other")))
		f.hold = func(r *http.Request) error {
			if !strings.Contains(r.URL.RawQuery, "slow") {
				return nil
			}
			<-r.Context().Done()
			return r.Context().Err()
		}
	}, func(s *scene) {
		for i := range 64 {
			s.look(fmt.Sprint("slow-", i), s.in)
		}
		s.look("other", s.in)
		s.pass(7 * time.Second)
		if view, ok := s.look("other", s.in); !ok || len(view.Moving) != 1 {
			s.Error("it still waits for those that are slow")
		}
	})
}

// A namespace's objects that take long to look up delay those of no other. They are not looked up all at once.
func TestSlowLookUps(t *testing.T) {
	var mu sync.Mutex
	underWay, most := 0, 0
	stage(t, surgePolicy, 120*time.Second, plan.PendingCapacity, func(f *fakeAPI) {
		f.gone("a")
		for i := range 200 {
			p := webPod(fmt.Sprint("crowd-", i), inNamespace("crowd"), withClaim(fmt.Sprint("data-", i)))
			p.APIVersion, p.Kind, p.Spec.NodeName = "v1", "Pod", "node-a"
			f.put("/api/v1/namespaces/crowd/pods/"+p.Name, p)
		}
		surgeScene(1)(f)
		f.hold = func(r *http.Request) error {
			if !strings.Contains(r.URL.Path, "/namespaces/crowd/persistentvolumeclaims/") {
				return nil
			}
			mu.Lock()
			underWay++
			most = max(most, underWay)
			mu.Unlock()
			<-r.Context().Done()
			mu.Lock()
			underWay--
			mu.Unlock()
			return r.Context().Err()
		}
	}, func(s *scene) {
		s.pass(time.Second)
		if s.labels("a")[plan.SurgedLabel] == nil {
			s.Error("it still waits for those that are slow")
		}
		mu.Lock()
		defer mu.Unlock()
		if most == 0 || most > 16 {
			s.Errorf("%d look-ups of one namespace at once, want a third of 48 at most", most)
		}
	})
}

// A namespace with more than is read of it, or with an object of which more is read than there is
// room for, goes without surge, and says so.
func TestTooLargeConstraints(t *testing.T) {
	long := map[string]string{}
	for i := range 10_000 {
		long[fmt.Sprint("l", i)] = "v"
	}
	env := slices.Repeat([]corev1.EnvVar{{Name: "e"}}, 100_000)
	large := func(s *appsv1.ReplicaSet) {
		s.Spec.Template.Spec.Containers = []corev1.Container{{Name: "a", Env: env}}
	}
	for _, c := range []struct {
		name  string
		count int
		set   func(*appsv1.ReplicaSet)
		want  string
	}{
		{"one of 1.3 MB", 1, large, ""},
		{"ten of 1.3 MB", 10, large, "its namespace has more replicasets than are read"},
		{"a long selector", 1, func(s *appsv1.ReplicaSet) { s.Spec.Selector.MatchLabels = long }, "ReplicaSet set-0 is larger than what is read of one"},
	} {
		t.Run(c.name, func(t *testing.T) {
			stage(t, surgePolicy, 120*time.Second, plan.PendingCapacity, func(f *fakeAPI) {
				surgeScene(1)(f)
				f.narrow = true
				for i := range c.count {
					set := &appsv1.ReplicaSet{
						TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSet"},
						ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("set-", i)},
						Spec:       appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}}},
					}
					c.set(set)
					f.put("/apis/apps/v1/namespaces/shop/replicasets/"+set.Name, set)
				}
			}, func(s *scene) {
				if d := s.now().Plan[0]; d.NoSurge != c.want || d.Surge != (c.want == "") {
					t.Errorf("not surged because %q, want %q", d.NoSurge, c.want)
				}
			})
		})
	}
}

// A drain ends while a request is under way: what it was granted stays, and nothing else is done.
func TestForgottenWhileARequestIsUnderWay(t *testing.T) {
	stage(t, surgePolicy, 0, plan.PendingCapacity, func(f *fakeAPI) {
		surgeScene(1)(f)
		f.hold = func(r *http.Request) error {
			if r.Method == http.MethodPatch {
				time.Sleep(time.Second)
			}
			return nil
		}
	}, func(s *scene) {
		s.change(func(in *plan.NodeState) { in.Capacity = plan.ReadyCapacity })
		s.pass(100 * time.Millisecond)
		s.end()
		s.d.Remove("node-a")
		s.pass(5 * time.Second)
		if s.labels("a")[plan.SurgedLabel] == nil {
			s.Fatal("not surged: nothing was under way")
		}
		s.pass(time.Minute)
		if n := s.api.count("POST", "/eviction"); n != 0 {
			s.Errorf("%d evictions of a node that is not drained", n)
		}
	})
}

// Nothing is asked of a Drainer whose Run has ended, and nothing waits for it.
func TestAfterTheEnd(t *testing.T) {
	stage(t, holding, 2*time.Minute, plan.PendingCapacity, pods("a"), func(s *scene) {
		s.end()
		if _, ok := s.look("node-a", s.in); ok {
			s.Error("it knows a node's pods")
		}
		if left := s.cancel("node-a", time.Second); left != nil {
			s.Errorf("left %v", left)
		}
		if n := s.d.blockedPods() + s.d.overlong(); n != 0 {
			s.Errorf("%v pods are counted", n)
		}
	})
}

// A node without pods is done with its first plan. When its drain ends with that, so do its watches: thousands of
// such nodes must not keep one each.
func TestWatchesEndWithTheDrain(t *testing.T) {
	var mu sync.Mutex
	var watches []context.Context
	underWay := func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, ctx := range watches {
			if ctx.Err() == nil {
				n++
			}
		}
		return n
	}
	stage(t, surgePolicy, 2*time.Minute, plan.PendingCapacity, func(f *fakeAPI) {
		surgeScene(1)(f)
		f.hold = func(r *http.Request) error {
			if r.URL.Query().Get("watch") != "" {
				mu.Lock()
				defer mu.Unlock()
				watches = append(watches, r.Context())
			}
			return nil
		}
	}, func(s *scene) {
		with := underWay()
		s.look("empty", s.in)
		s.pass(time.Second)
		if n := underWay(); n != with+1 {
			s.Errorf("%d watches with an empty node, and %d without", n, with)
		}
		if status, ok := s.drain("empty", s.in); !ok || !status.Done {
			s.Errorf("%+v, %t; want it done with its first plan", status, ok)
		}
		s.finish("empty")
		s.pass(time.Second)
		if n := underWay(); n != with {
			s.Errorf("%d watches after its drain, want %d", n, with)
		}
		s.end()
		if n := underWay(); n != 0 {
			s.Errorf("%d watches after Run", n)
		}
	})
}
