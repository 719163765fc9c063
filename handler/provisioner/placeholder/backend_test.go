package placeholder

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

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

		// The replacement pod of a ReplicaSet's pod comes when that begins to leave, that of a
		// StatefulSet's when it is gone.
		c.want(c.request(&rec, need(leaving(a), b, leaving(s))), provisioner.StateReady, "")
		c.held("b", "s")
		c.want(c.request(&rec, need(leaving(a), b)), provisioner.StateReady, "")
		c.held("b")
		if n := c.calls()["delete pods"]; n != 2 {
			t.Errorf("%d pods deleted, want 2", n)
		}
		c.want(c.request(&rec, need()), provisioner.StateReady, "")
		c.templates(0) // and with it the remaining placeholders
	})
}

// When the drain is over the rest goes, however often that is asked for. A replacement that another
// backend makes is none of its business.
func TestTerminate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		c := newCluster(t, rec, nil)
		c.request(&rec, need(owned("a", "ReplicaSet")))
		terminate := func(rec interruption.Record) error { return c.b.Terminate(t.Context(), testNode("node-1"), rec) }

		other := rec
		other.Replacement = &interruption.Replacement{Backend: provisioner.ASG, Name: rec.Replacement.Name, State: provisioner.StateReady}
		if err := terminate(other); err != nil {
			t.Error(err)
		}
		c.templates(1)

		unreachable := apierrors.NewInternalError(errors.New("etcd is unreachable"))
		c.failing("delete", "podtemplates", 1, unreachable)
		if err := terminate(rec); !errors.Is(err, unreachable) {
			t.Errorf("%v, want the API server's error", err)
		}
		c.templates(1)

		for range 2 {
			if err := terminate(rec); err != nil {
				t.Error(err)
			}
			c.templates(0)
		}
		if log := c.log.String(); log != "" {
			t.Errorf("the log says %q", log)
		}
	})
}

// Without the permission they end by themselves, so the drain goes on, and the log says it once.
func TestTerminateIsForbidden(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		c := newCluster(t, rec, nil)
		c.request(&rec, need(owned("a", "ReplicaSet")))
		c.failing("delete", "podtemplates", -1, apierrors.NewForbidden(schema.GroupResource{Resource: "podtemplates"}, "a", errors.New("no")))
		for range 3 {
			if err := c.b.Terminate(t.Context(), testNode("node-1"), rec); err != nil {
				t.Error(err)
			}
		}
		if log := c.log.String(); strings.Count(log, "placeholders not removed: they end by themselves") != 1 {
			t.Errorf("the log says %q, want it once", log)
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
			"pods that cannot run on nodes of --fallback-selector find no room there; pods without a controller have no replacement pod; "+
			"replacement pods of pods that are leaving ask for themselves; surged pods' replacement pods ask for themselves")
		if calls := c.calls(); len(calls) != 0 {
			t.Errorf("calls %v, want none", calls)
		}
		n.Moving = append(n.Moving, owned("a", "Job"))
		c.want(c.request(&rec, n), provisioner.StateRequested, "")
		c.held("a")

		// What is surged only later has its replacement pod then.
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
		{"no time", func() interruption.Record { return spot(9 * time.Second) }, nil, "there is no time to make room"},
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

// Ten seconds are enough to ask, and without a deadline placeholders wait as long as Cluster
// Autoscaler does for a node. The API server's own clock ends them then.
func TestHowLongPlaceholdersWait(t *testing.T) {
	for _, tt := range []struct {
		name string
		rec  func() interruption.Record
		want time.Duration
	}{
		{"just enough time", func() interruption.Record { return spot(10 * time.Second) }, 10 * time.Second},
		{"until the deadline", func() interruption.Record { return spot(2 * time.Minute) }, 2 * time.Minute},
		{"a deadline that is far away", func() interruption.Record { return spot(time.Hour) }, 15 * time.Minute},
		{"no deadline", rebalance, 15 * time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				rec, from := tt.rec(), time.Now()
				c := newCluster(t, rec, nil)
				c.want(c.request(&rec, need(owned("a", "ReplicaSet"))), provisioner.StateRequested, "")
				p, err := c.CoreV1().Pods(Namespace).Get(t.Context(), podName(instance, "uid-of-a"), metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if got := *p.Spec.ActiveDeadlineSeconds; got != int64(tt.want/time.Second) {
					t.Errorf("active deadline %d s, want %v", got, tt.want)
				}
				if got, want := p.Annotations[expiresAnnotation], from.Add(tt.want).UTC().Format(time.RFC3339); got != want {
					t.Errorf("expires at %s, want %s", got, want)
				}
			})
		})
	}
}

// In a process of one node the others are not known, and only its own placeholders are
// looked at.
func TestSingleNode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		c := newCluster(t, rec, func(o *Options) { o.SingleNode = "node-1" }, leftover("node-2", "i-other", time.Hour))
		synctest.Wait()
		a := owned("a", "ReplicaSet")
		c.request(&rec, need(a))
		c.bind(a, "od-unknown")
		c.want(c.request(&rec, need(a)), provisioner.StateReady, "")
		time.Sleep(20 * time.Second)
		synctest.Wait()
		c.held("", "a") // the other node's is none of its business
	})
}

// slowPods are made when the channel is closed.
type slowPods struct {
	listing
	slow  chan struct{}
	under *atomic.Int32 // requests that have begun
}

func (p slowPods) Create(ctx context.Context, pod *corev1.Pod, o metav1.CreateOptions) (*corev1.Pod, error) {
	p.under.Add(1)
	<-p.slow
	return p.listing.Create(ctx, pod, o)
}

// While the API server is slow to make the placeholders of a burst, not all who ask wait
// for it: they are workers, with other nodes to see to.
func TestBurstDoesNotHoldAllWhoAsk(t *testing.T) {
	bubble(t, func(t *testing.T) {
		slow := make(chan struct{})
		c := newCluster(t, spot(2*time.Minute), func(o *Options) { o.Pods = slowPods{listing{o.Pods}, slow, new(atomic.Int32)} })
		const nodes, atATime = 16, 8
		var mu sync.Mutex
		answers := map[string]interruption.Replacement{}
		ask := func(i int) {
			node, rec := testNode(fmt.Sprint("node-", i)), spot(2*time.Minute)
			rec.Instance = fmt.Sprint("i-", i)
			r, err := c.b.Request(t.Context(), node, rec, need(owned("a", "ReplicaSet")))
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			answers[node.Name] = r
		}
		for i := range nodes {
			go ask(i)
		}
		time.Sleep(500 * time.Millisecond)
		mu.Lock()
		if len(answers) != nodes-atATime {
			t.Errorf("%d of %d are held, want %d", nodes-len(answers), nodes, atATime)
		}
		later := maps.Clone(answers)
		mu.Unlock()
		close(slow)
		synctest.Wait()
		for name, r := range later {
			c.mu.Lock()
			notified := c.notified[name]
			c.mu.Unlock()
			if r.State != provisioner.StateRequested || r.Name != "" || notified == 0 {
				t.Errorf("%s: %+v, notified %d times; want it Requested, without a name, and to be asked again", name, r, notified)
			}
			var i int
			if _, err := fmt.Sscanf(name, "node-%d", &i); err != nil {
				t.Fatal(err)
			}
			ask(i)
		}
		for name, r := range answers {
			if r.State != provisioner.StateRequested || r.Name == "" {
				t.Errorf("%s: %+v, want it Requested", name, r)
			}
		}
	})
}
