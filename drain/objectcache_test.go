package drain

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"spot-handler/drain/fair"
	"spot-handler/drain/narrow"
	"spot-handler/drain/plan"
)

// A look-up that fails is made again for every node that has asked, although nothing else happens.
func TestLookUpAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		notified := map[string]int{}
		reads := 0
		var cache *objectCache[string]
		ask := func(node string) (string, bool) {
			return cache.get(t.Context(), types.NamespacedName{Name: "shop"}, node)
		}
		cache = newObjectCache("", fair.NewLane(lookupsAtOnce, allCanWait), func(node string) {
			mu.Lock()
			notified[node]++
			mu.Unlock()
			ask(node) // as a plan does
		}, func(ctx context.Context, _ types.NamespacedName) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			if reads++; reads < 3 {
				<-ctx.Done()
				return "", errors.New("too slow")
			}
			return "known", nil
		})
		ask("a")
		time.Sleep(time.Second)
		ask("b")
		time.Sleep(2*(lookupTimeout+lookupRetry) + time.Second)
		synctest.Wait()
		for _, node := range []string{"a", "b"} {
			if value, ok := ask(node); !ok || value != "known" {
				t.Errorf("%s: %q, %t", node, value, ok)
			}
		}
		if nodes := slices.Sorted(maps.Keys(notified)); !slices.Equal(nodes, []string{"a", "b"}) || reads != 3 {
			t.Errorf("%v were notified after %d reads", notified, reads)
		}
	})
}

// What is known stays known while it is read again, however often that fails, and nobody who asks
// waits for it.
func TestKnownWhileReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads, notified := 0, 0 // each is written before the other's goroutines run
		cache := newObjectCache("", fair.NewLane(lookupsAtOnce, allCanWait), func(string) { notified++ }, func(context.Context, types.NamespacedName) (string, error) {
			switch reads++; reads {
			case 1:
				return "before", nil
			case 2:
				return "", errors.New("too busy")
			}
			return "after", nil
		})
		ask := func(want string, known bool) {
			t.Helper()
			if value, ok := cache.get(t.Context(), types.NamespacedName{Name: "shop"}, "node"); value != want || ok != known {
				t.Errorf("%q, %t, want %q, %t", value, ok, want, known)
			}
			synctest.Wait()
		}
		ask("", false)
		ask("before", true)
		time.Sleep(lookupTTL)
		ask("before", true)
		ask("before", true)
		time.Sleep(lookupRetry)
		synctest.Wait()
		ask("before", true)
		ask("after", true)
		if reads != 3 || notified != 3 {
			t.Errorf("%d reads, notified %d times, want 3 of each", reads, notified)
		}
		time.Sleep(2 * lookupTTL)
		ask("", false)
	})
}

// One namespace's thousand claims delay nobody else's, and are not read all at once.
func TestLookUpsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		underWay, most := 0, 0
		cache := newObjectCache("", fair.NewLane(lookupsAtOnce, allCanWait), func(string) {}, func(_ context.Context, name types.NamespacedName) (string, error) {
			mu.Lock()
			underWay++
			most = max(most, underWay)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			underWay--
			mu.Unlock()
			return name.Name, nil
		})
		for i := range 1000 {
			cache.get(t.Context(), types.NamespacedName{Namespace: "crowd", Name: fmt.Sprint(i)}, "node")
		}
		for i := range 100 {
			cache.get(t.Context(), types.NamespacedName{Namespace: fmt.Sprint("other-", i), Name: "a"}, "node")
		}
		time.Sleep(1500 * time.Millisecond)
		if _, ok := cache.get(t.Context(), types.NamespacedName{Namespace: "other-0", Name: "a"}, "node"); !ok {
			t.Error("the first of the others waits for the crowd")
		}
		time.Sleep(10 * time.Second)
		if _, ok := cache.get(t.Context(), types.NamespacedName{Namespace: "other-99", Name: "a"}, "node"); !ok {
			t.Error("the last of the others waits for the crowd")
		}
		time.Sleep(200 * time.Second)
		if _, ok := cache.get(t.Context(), types.NamespacedName{Namespace: "crowd", Name: "999"}, "node"); !ok || most > lookupsAtOnce {
			t.Errorf("%d look-ups at once; the last of the crowd is known: %t", most, ok)
		}
	})
}

// Look-ups of several namespaces that all take long leave places for those of others.
func TestSlowLookUpsLeavePlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache := newObjectCache("", fair.NewLane(lookupsAtOnce, allCanWait), func(string) {}, func(ctx context.Context, name types.NamespacedName) (string, error) {
			if name.Namespace != "other" {
				<-ctx.Done()
			}
			return name.Name, ctx.Err()
		})
		for i := range 1000 {
			cache.get(t.Context(), types.NamespacedName{Namespace: fmt.Sprint("slow-", i%5), Name: fmt.Sprint(i)}, "node")
		}
		cache.get(t.Context(), types.NamespacedName{Namespace: "other", Name: "a"}, "node")
		synctest.Wait()
		if _, ok := cache.get(t.Context(), types.NamespacedName{Namespace: "other", Name: "a"}, "node"); !ok {
			t.Error("it waits for those that are slow")
		}
		time.Sleep(time.Hour) // all have ended
	})
}

// However late it is known what a namespace asks for, none of its pods is evicted early before.
func TestNamespaceIsKnownBeforeEviction(t *testing.T) {
	for _, late := range []time.Duration{400 * time.Millisecond, 600 * time.Millisecond, 30 * time.Second} {
		t.Run(late.String(), func(t *testing.T) {
			stage(t, plan.Policy{Strategy: plan.StrategyAtOnce, Margin: 10 * time.Second}, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
				f.put("/api/v1/namespaces/shop", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{plan.WhenAnnotation: "last"}}})
				f.pod(pod("a"))
				from := time.Now()
				f.hold = func(r *http.Request) error {
					if !strings.HasSuffix(r.URL.Path, "/namespaces/shop") || time.Since(from) > late {
						return nil
					}
					select {
					case <-time.After(late - time.Since(from)):
						return nil
					case <-r.Context().Done():
						return r.Context().Err()
					}
				}
			}, func(s *scene) {
				s.until(75 * time.Second)
				if n := s.api.count(http.MethodPost, "/pods/a/eviction"); n != 0 {
					s.Error("evicted early: its namespace asks for the end")
				}
				s.until(85 * time.Second)
				if n := s.api.count(http.MethodPost, "/pods/a/eviction"); n != 1 {
					s.Errorf("%d evictions at its eviction deadline", n)
				}
			})
		})
	}
}

// A namespace with more than is read of it, or with an object of which more is read than there is
// room for, goes without surge, and says so.
func TestTooLargeConstraints(t *testing.T) {
	long := map[string]string{}
	for i := range 10_000 {
		long[fmt.Sprint("l", i)] = "v"
	}
	env := slices.Repeat([]corev1.EnvVar{{Name: "e"}}, 100_000)
	for _, c := range []struct {
		name  string
		count int
		set   func(*appsv1.ReplicaSet)
		want  string
	}{
		{"one of 1.3 MB", 1, func(s *appsv1.ReplicaSet) {
			s.Spec.Template.Spec.Containers = []corev1.Container{{Name: "a", Env: env}}
		}, ""},
		{"ten of 1.3 MB", 10, func(s *appsv1.ReplicaSet) {
			s.Spec.Template.Spec.Containers = []corev1.Container{{Name: "a", Env: env}}
		}, "its namespace has more replicasets than are read"},
		{"a long selector", 1, func(s *appsv1.ReplicaSet) { s.Spec.Selector.MatchLabels = long }, "ReplicaSet set-0 is larger than what is read of one"},
	} {
		t.Run(c.name, func(t *testing.T) {
			api := newFakeAPI()
			for i := range c.count {
				set := &appsv1.ReplicaSet{
					TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSet"},
					ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("set-", i)},
					Spec:       appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}}},
				}
				c.set(set)
				api.put("/apis/apps/v1/namespaces/shop/replicasets/"+set.Name, set)
			}
			client, err := dynamic.NewForConfigAndClient(&rest.Config{Host: "http://fake"}, &http.Client{Transport: narrow.Transport(api)})
			if err != nil {
				t.Fatal(err)
			}
			found, err := readConstraints(client)(t.Context(), types.NamespacedName{Namespace: "shop"})
			if err != nil {
				t.Fatal(err)
			}
			s := surging(plan.DeploymentState{Slots: 1}, webPod("a"))
			s.Constraints["shop"] = found
			if d := plan.Plan(now, s)[0]; d.NoSurge != c.want || d.Surge != (c.want == "") {
				t.Errorf("not surged because %q, want %q", d.NoSurge, c.want)
			}
		})
	}
}
