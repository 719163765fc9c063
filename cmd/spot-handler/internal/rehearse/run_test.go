package rehearse

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"spot-handler/cmd/spot-handler/internal/plan"
	"spot-handler/e2e/patched"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
	"spot-handler/handler/nodes"
)

var resource = schema.GroupResource{Resource: "nodes"}

// cluster is the Nodes API, and a daemon that answers to what is written there.
type cluster struct {
	mu      sync.Mutex
	nodes   map[string]*corev1.Node
	version int
	watcher *watch.FakeWatcher

	began  map[string]time.Time
	daemon func(node *corev1.Node, rec interruption.Record) // with mu held; nil: there is none
}

var _ Nodes = (*cluster)(nil)

func newCluster(names ...string) *cluster {
	c := &cluster{nodes: map[string]*corev1.Node{}, watcher: watch.NewFakeWithChanSize(1000, false), began: map[string]time.Time{}}
	for _, name := range names {
		c.put(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		})
	}
	return c
}

func (c *cluster) put(n *corev1.Node) {
	c.version++
	n.ResourceVersion = strconv.Itoa(c.version)
	c.nodes[n.Name] = n
	c.watcher.Modify(n.DeepCopy())
}

func (c *cluster) List(context.Context, metav1.ListOptions) (*corev1.NodeList, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(c.version)}}
	for _, n := range c.nodes {
		list.Items = append(list.Items, *n.DeepCopy())
	}
	return list, nil
}

func (c *cluster) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if o.SendInitialEvents != nil {
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, "", nil) // as an old server: list instead
	}
	return c.watcher, nil
}

func (c *cluster) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n, ok := c.nodes[name]; ok {
		return n.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(resource, name)
}

func (c *cluster) Patch(_ context.Context, name string, kind types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*corev1.Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	after, err := patched.Node(c.nodes[name], kind, data)
	switch {
	case err != nil && kind == types.JSONPatchType:
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, name, nil)
	case err != nil:
		return nil, err
	}
	c.put(after)
	answer := after.DeepCopy()
	if rec, err := nodes.Record(after); err == nil {
		if _, known := c.began[name]; !known {
			c.began[name] = time.Now()
		}
		if c.daemon != nil {
			c.daemon(after, rec)
		}
	}
	return answer, nil
}

// later plays the daemon's change of a node after some time.
func (c *cluster) later(d time.Duration, name string, change func(*corev1.Node)) {
	time.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		n := c.nodes[name].DeepCopy()
		change(n)
		c.put(n)
	})
}

func write(n *corev1.Node, rec interruption.Record) {
	n.Annotations = map[string]string{interruption.Annotation: rec.String()}
}

// ended is the record once its drain is over.
func ended(rec interruption.Record, phase interruption.Phase) interruption.Record {
	now := time.Now()
	rec.Phase, rec.Ended = phase, now
	return rec
}

func undone(n *corev1.Node) { n.Annotations, n.Spec = nil, corev1.NodeSpec{} }

// drains is a daemon that needs so long, and then puts the node back.
func (c *cluster) drains(d time.Duration) {
	c.daemon = func(node *corev1.Node, rec interruption.Record) {
		if node.Annotations[interruption.CancelAnnotation] == "true" {
			c.later(time.Second, node.Name, undone)
			return
		}
		if rec.Phase != interruption.Noticed {
			return
		}
		c.later(time.Second, node.Name, func(n *corev1.Node) {
			rec.Phase = interruption.Draining
			write(n, rec)
		})
		c.later(d, node.Name, func(n *corev1.Node) {
			if nodes.HasRecord(n) {
				write(n, ended(rec, interruption.Drained))
			}
		})
		c.later(d+5*time.Second, node.Name, undone)
	}
}

func rehearsalOf(c *cluster, change func(*Options)) *Rehearsal {
	o := Options{
		Loss: plan.Loss{Kind: interruption.SpotInterruption, Deadline: time.Minute},
		Rules: func(*corev1.Node, bool) (interruption.Rules, error) {
			return interruption.Rules{Rebalance: interruption.RebalanceReplace}, nil
		},
	}
	if change != nil {
		change(&o)
	}
	return New(c, o, time.Now())
}

func (c *cluster) wantUnmarked(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, n := range c.nodes {
		if n.Annotations[interruption.Annotation] != "" || n.Spec.Unschedulable || len(n.Spec.Taints) > 0 {
			t.Errorf("node %s is marked: %v, %v", name, n.Annotations, n.Spec)
		}
	}
}

func nobody(string) {}

func TestMassInterruptionIsSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster("a", "b", "c", "d")
		defer c.watcher.Stop()
		c.drains(20 * time.Second)
		began := time.Now()
		err := rehearsalOf(c, func(o *Options) { o.Over = 30 * time.Second }).Run(t.Context(), []string{"a", "b", "c"}, nobody)
		if err != nil {
			t.Error(err)
		}
		for i, name := range []string{"a", "b", "c"} {
			if after := c.began[name].Sub(began).Round(time.Second); after != time.Duration(i)*15*time.Second {
				t.Errorf("node %s begins after %s", name, after)
			}
		}
		if len(c.began) != 3 || time.Since(began) < 55*time.Second || time.Since(began) > 57*time.Second {
			t.Errorf("%d nodes in %s, want 3 in 55 s", len(c.began), time.Since(began))
		}
		c.wantUnmarked(t)
	})
}

func TestCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster("a", "b")
		defer c.watcher.Stop()
		c.drains(40 * time.Second)
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		began := time.Now()
		err := rehearsalOf(c, func(o *Options) { o.Over = 20 * time.Second }).Run(ctx, []string{"a", "b"}, nobody)
		if !errors.Is(err, ErrCancelled) || strings.Contains(err.Error(), "node") {
			t.Errorf("%v, want it cancelled and no more to say", err)
		}
		if len(c.began) != 1 || time.Since(began) > 15*time.Second {
			t.Errorf("%d nodes in %s", len(c.began), time.Since(began))
		}
		c.wantUnmarked(t)
	})
}

// A daemon that ends before it has undone anything is waited for, but not for ever.
func TestCancelledAndNeverUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster("a")
		defer c.watcher.Stop()
		c.daemon = func(node *corev1.Node, rec interruption.Record) {
			if rec.Phase == interruption.Noticed && node.Annotations[interruption.CancelAnnotation] == "" {
				rec.Phase = interruption.Draining
				c.later(time.Second, node.Name, func(n *corev1.Node) { write(n, rec) })
			}
		}
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		began := time.Now()
		var said []string
		err := rehearsalOf(c, nil).Run(ctx, []string{"a"}, func(text string) { said = append(said, text) })
		if !errors.Is(err, ErrCancelled) || !strings.Contains(err.Error(), "has not put it back within 1m0s") {
			t.Error(err)
		}
		if took := time.Since(began); took < 70*time.Second || took > 71*time.Second {
			t.Errorf("it took %s, want a minute after the cancellation", took)
		}
		if len(said) != 1 || !strings.Contains(said[0], "cancelled") {
			t.Errorf("%q was said", said)
		}
	})
}

// The daemon does nothing, or something else than it should.
func TestWhatCanGoWrong(t *testing.T) {
	for name, tt := range map[string]struct {
		daemon func(c *cluster, node *corev1.Node, rec interruption.Record)
		change func(*Options)
		within time.Duration // or up to two seconds less
		want   string
		marked bool
	}{
		"nobody takes it up": {nil, nil, 21 * time.Second, "nobody has begun", false},
		"interrupted by EC2": {func(c *cluster, node *corev1.Node, rec interruption.Record) {
			c.later(3*time.Second, node.Name, func(n *corev1.Node) {
				rec.Source, rec.Event = interruption.Queue, "event-1"
				write(n, rec)
			})
		}, nil, 4 * time.Second, "interrupted by EC2", true},
		"a recommendation without end": {func(c *cluster, node *corev1.Node, _ interruption.Record) {
			if node.Annotations[interruption.CancelAnnotation] == "true" {
				c.later(time.Second, node.Name, undone)
			}
		}, func(o *Options) { o.Kind = interruption.RebalanceRecommendation }, 62 * time.Second, "", false},
		"deleted": {func(c *cluster, node *corev1.Node, rec interruption.Record) {
			c.later(9*time.Second, node.Name, func(n *corev1.Node) {
				write(n, ended(rec, interruption.Released))
				n.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			})
		}, func(o *Options) { o.Release = true }, 10 * time.Second, "", true},
		"detached and terminated": {func(c *cluster, node *corev1.Node, rec interruption.Record) {
			rec.Replacement = &interruption.Replacement{Backend: "asg", Name: "workers", State: "Launched", Detached: true}
			c.later(9*time.Second, node.Name, func(n *corev1.Node) { write(n, ended(rec, interruption.Released)) })
		}, func(o *Options) { o.Release = true }, 10 * time.Second, "", true},
		"left in its group": {func(c *cluster, node *corev1.Node, rec interruption.Record) {
			c.later(9*time.Second, node.Name, func(n *corev1.Node) { write(n, ended(rec, interruption.Released)) })
		}, func(o *Options) { o.Release = true }, 40 * time.Second, "spot-handler/cancel=true", true},
		"not released": {func(c *cluster, node *corev1.Node, rec interruption.Record) {
			c.later(9*time.Second, node.Name, func(n *corev1.Node) { write(n, ended(rec, interruption.Drained)) })
		}, func(o *Options) { o.Release = true }, 40 * time.Second, "--release-node", true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster("a")
				defer c.watcher.Stop()
				if tt.daemon != nil {
					c.daemon = func(node *corev1.Node, rec interruption.Record) { tt.daemon(c, node, rec) }
				}
				began := time.Now()
				err := rehearsalOf(c, tt.change).Run(t.Context(), []string{"a"}, nobody)
				if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
					t.Errorf("%v, want %q", err, tt.want)
				}
				if took := time.Since(began); took > tt.within || took < tt.within-2*time.Second {
					t.Errorf("took %s, want about %s", took, tt.within)
				}
				if !tt.marked {
					c.wantUnmarked(t)
				}
			})
		})
	}
}

// What is cancelled is the rehearsal, never what EC2 has announced in the meantime.
func TestOnlyTheRehearsalIsCancelled(t *testing.T) {
	c := newCluster("a")
	r := rehearsalOf(c, nil)
	node, err := r.begin(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	rec, _ := r.record(node)
	rec.Source = interruption.Queue
	patch := marks.Progress(node, rec)
	if node, err = c.Patch(t.Context(), "a", patch.Type, patch.Data, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = r.cancel(t.Context(), "a")
	undone, undoErr := r.takeBack(t.Context(), "a")
	if now, _ := c.Get(t.Context(), "a", metav1.GetOptions{}); err != nil || undoErr != nil || undone || now.ResourceVersion != node.ResourceVersion {
		t.Errorf("%v, %v, undone %t: %v", err, undoErr, undone, now.Annotations)
	}
}

// A node whose rehearsal is over, or being undone, or not this one, is returned as it is: there is nothing to cancel.
func TestNothingToCancel(t *testing.T) {
	for name, change := range map[string]func(r *Rehearsal, n *corev1.Node, rec interruption.Record){
		"released": func(_ *Rehearsal, n *corev1.Node, rec interruption.Record) {
			write(n, ended(rec, interruption.Released))
		},
		"cancelled": func(_ *Rehearsal, n *corev1.Node, rec interruption.Record) {
			write(n, rec)
			n.Annotations[interruption.CancelAnnotation] = "true"
		},
		"another rehearsal's": func(_ *Rehearsal, n *corev1.Node, rec interruption.Record) { rec.Event = "another"; write(n, rec) },
	} {
		c := newCluster("a")
		r := rehearsalOf(c, nil)
		node, err := r.begin(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		rec, _ := r.record(node)
		n := node.DeepCopy()
		change(r, n, rec)
		c.put(n)
		after, err := r.cancel(t.Context(), "a")
		if err != nil || after == nil || after.ResourceVersion != n.ResourceVersion {
			t.Errorf("%s: %v, %+v; want the node as it is", name, err, after)
		}
	}
}

// The rehearsal is cancelled while its record is being written, and nobody knows whether that has succeeded: it has, so
// it is undone.
func TestCancelledWhileItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster("a")
		defer c.watcher.Stop()
		c.daemon = func(node *corev1.Node, _ interruption.Record) {
			if node.Annotations[interruption.CancelAnnotation] == "true" {
				c.later(time.Second, node.Name, undone)
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		r := rehearsalOf(c, nil)
		r.nodes = &unanswered{cluster: c, then: stop}
		began := time.Now()
		if err := r.Run(ctx, []string{"a"}, nobody); !errors.Is(err, ErrCancelled) || strings.Contains(err.Error(), "node") {
			t.Errorf("%v, want it cancelled and no more to say", err)
		}
		if len(c.began) != 1 || time.Since(began) > 5*time.Second {
			t.Errorf("%d nodes begun, over after %s", len(c.began), time.Since(began))
		}
		c.wantUnmarked(t)
	})
}

// unanswered is a cluster that carries out the first write, and whose answer is lost.
type unanswered struct {
	*cluster
	then func()
}

func (u *unanswered) Patch(ctx context.Context, name string, kind types.PatchType, data []byte, o metav1.PatchOptions, sub ...string) (*corev1.Node, error) {
	node, err := u.cluster.Patch(ctx, name, kind, data, o, sub...)
	if then := u.then; then != nil {
		u.then = nil
		then()
		return nil, context.Canceled
	}
	return node, err
}

func TestAgainst(t *testing.T) {
	c := newCluster("a")
	for want, change := range map[string]func(*corev1.Node){
		"":          func(*corev1.Node) {},
		"not Ready": func(n *corev1.Node) { n.Status.Conditions = nil },
		"deleted":   func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{Time: time.Now()} },
		"already": func(n *corev1.Node) {
			write(n, interruption.NewRecord(interruption.Notice{Kind: interruption.SpotInterruption}))
		},
	} {
		n := c.nodes["a"].DeepCopy()
		change(n)
		if _, got := rehearsalOf(c, nil).Judge(n, time.Now()); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestShare(t *testing.T) {
	node := func(name string, phase interruption.Phase) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if phase != "" {
			rec := interruption.NewRecord(interruption.Notice{Kind: interruption.SpotInterruption})
			rec.Phase = phase
			write(n, rec)
		}
		return n
	}
	all := []*corev1.Node{node("draining", interruption.Draining), node("drained", interruption.Drained)}
	for i := range 28 {
		all = append(all, node(fmt.Sprint("node-", i), ""))
	}
	for percent, want := range map[int]int{0: 1, 3: 1, 10: 3, 100: 30} {
		if n, most := Share(all, all[2:4], percent); n != 3 || most != want {
			t.Errorf("%d%%: %d, at most %d; want 3, at most %d", percent, n, most, want)
		}
	}
}
