package placeholder

import (
	"context"
	"errors"
	"strings"
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

// leftover is a placeholder that an earlier process has made for the node.
func leftover(node, of string, life time.Duration) *corev1.Pod {
	o := order{node: testNode(node), instance: of, expires: time.Now().Add(life)}
	p := New(Options{}).placeholder(o, &corev1.PodTemplate{}, &corev1.Pod{})
	p.Namespace, p.Annotations[podAnnotation] = Namespace, ""
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
		{"expired half a minute ago", func() *corev1.Node { return with(spot(time.Minute), nil) }, -30 * time.Second, "their time is over"},
		{"expired just now: Request says what has become of it", func() *corev1.Node { return with(spot(time.Minute), nil) }, -29 * time.Second, ""},
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
				}, leftover("node-2", instance, tt.life))
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

// Nothing happens when the time of placeholders is over, so their node is told to ask what has become of them; as long
// as they have time, the sweep says nothing.
func TestExpiredPlaceholdersAreAskedAbout(t *testing.T) {
	for life, want := range map[time.Duration]bool{-10 * time.Second: true, time.Hour: false} {
		bubble(t, func(t *testing.T) {
			c := newCluster(t, spot(time.Minute), func(o *Options) {
				known := o.Node
				o.Node = func(name string) (*corev1.Node, bool) {
					if name == "node-2" {
						node, _ := known("node-1")
						node = node.DeepCopy()
						node.Name = name
						return node, true
					}
					return known(name)
				}
			}, leftover("node-2", instance, life))
			synctest.Wait()
			told := func() int {
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.notified["node-2"]
			}
			before := told()
			time.Sleep(12 * time.Second)
			synctest.Wait()
			if got := told() > before; got != want {
				t.Errorf("placeholders that have %s left: their node is told %t", life, got)
			}
		})
	}
}

// The first list is repeated until it has an answer, so that what an earlier process has left is
// found, and that nobody asks for anything is no reason to wait longer.
func TestFirstListFails(t *testing.T) {
	unreachable := apierrors.NewInternalError(errors.New("etcd is unreachable"))
	bubble(t, func(t *testing.T) {
		down := true
		c := newCluster(t, spot(time.Minute), func(o *Options) { o.Pods = unlisted{listing{o.Pods}, &down} }, leftover("node-2", instance, time.Minute))
		time.Sleep(time.Minute)
		down = false
		c.held("")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		c.held()
	})
	bubble(t, func(t *testing.T) {
		rec := spot(time.Minute)
		lists := 0
		c := newCluster(t, rec, func(o *Options) { o.Pods = firstList{listing{o.Pods}, &lists, unreachable} })
		a := owned("a", "ReplicaSet")
		c.request(&rec, need(a))
		c.bind(a, "od-1")
		c.want(c.request(&rec, need(a)), provisioner.StateReady, "")
	})
	bubble(t, func(t *testing.T) {
		lists := 0
		c := newCluster(t, spot(time.Minute), func(o *Options) {
			o.Pods = firstList{listing{o.Pods}, &lists, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no"))}
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		if log := c.log.String(); lists != 1 || strings.Count(log, "placeholders cannot be listed") != 1 {
			t.Errorf("%d lists, and the log says %q; want one of each", lists, log)
		}
	})
}

// firstList fails the first list.
type firstList struct {
	listing
	lists *int
	err   error
}

func (p firstList) List(ctx context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
	if *p.lists++; *p.lists == 1 {
		return nil, p.err
	}
	return p.listing.List(ctx, o)
}

// Without placeholders there is one list and no watch.
func TestIdle(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, spot(time.Minute), nil)
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(c.Actions()); n != 1 {
			t.Errorf("%d requests in an hour, want one list: %v", n, c.Actions())
		}
	})
}

// takesBack removes the node's record. The PodTemplate is to go within 10 s, but the first deletion fails.
func (c *cluster) takesBack() {
	c.t.Helper()
	c.mu.Lock()
	c.nodes["node-1"] = testNode("node-1")
	c.mu.Unlock()
	c.failing("delete", "podtemplates", 1, apierrors.NewInternalError(errors.New("etcd is unreachable")))
	for _, want := range []int{1, 0} {
		time.Sleep(10 * time.Second)
		synctest.Wait()
		c.templates(want)
	}
}

// An operator removes the record, and nobody calls: within 10 s the placeholders are gone. If their PodTemplate
// can't be removed, they stay, as it can only be found through them, and its removal is tried again.
func TestRecordIsRemoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		c := newCluster(t, rec, nil)
		c.request(&rec, need(owned("a", "ReplicaSet"), owned("b", "ReplicaSet")))
		c.takesBack()
		c.held()
	})
}

// The pods could not be made, or the answer about their PodTemplate was lost, and the interruption is cancelled before
// anybody asks again: there is no placeholder that shows the PodTemplate.
func TestPodTemplateWithoutPlaceholdersIsRemoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		c := newCluster(t, rec, nil)
		c.failing("create", "pods", -1, apierrors.NewTimeoutError("lost", 1))
		node, _ := c.node("node-1")
		if _, err := c.b.Request(t.Context(), node, rec, need(owned("a", "ReplicaSet"))); err == nil {
			t.Fatal("no error, want one that makes the caller retry")
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		c.templates(1) // the node is still interrupted
		c.takesBack()
		time.Sleep(time.Minute)
		if n := c.calls()["delete podtemplates"]; n != 2 {
			t.Errorf("%d deletions, want none after the one that succeeded", n)
		}
	})
}

// An operator cancels the interruption, and other pods take the places of its last placeholders before the next sweep.
// A process that took over after they were made finds their PodTemplate, too.
func TestTakenPlaceholdersOfACancelledNode(t *testing.T) {
	for name, process := range map[string]func(c *cluster, rec *interruption.Record, n provisioner.Need){
		"the process that made them": func(*cluster, *interruption.Record, provisioner.Need) {},
		"the next one": func(c *cluster, rec *interruption.Record, n provisioner.Need) {
			c.b.owners.RemoveAll(func(any) bool { return true })
			c.request(rec, n)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c, rec, a, b := twoBound(t)
				process(c, &rec, need(a, b))
				c.take(a)
				c.take(b)
				c.templates(1)
				c.takesBack()
				time.Sleep(time.Minute)
				if n := c.calls()["delete podtemplates"]; n != 2 {
					t.Errorf("%d deletions, want none after the one that succeeded", n)
				}
			})
		})
	}
}
