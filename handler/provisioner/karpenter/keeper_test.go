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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"spot-handler/handler/interruption"
)

// ready brings the claim that was asked for up.
func (c *cluster) ready() {
	c.t.Helper()
	c.condition("Launched", "True", "")
	c.condition("Registered", "True", "")
	c.condition("Initialized", "True", "")
}

// now is the claim as it is, or nil.
func (c *cluster) now() *unstructured.Unstructured {
	c.t.Helper()
	synctest.Wait()
	u, err := c.Tracker().Get(nodeClaimResource, "", claimName)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return u.(*unstructured.Unstructured)
}

// land puts pods on the replacement.
func (f *fakeNodes) land(pods ...*corev1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range pods {
		f.pods = append(f.pods, *p)
	}
}

func (f *fakeNodes) hasEvent(reason string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.events, "NodeClaim/"+claimName+" "+reason)
}

var lasting = set("Never", "spec", "disruption", "consolidateAfter")

// keeping is a cluster whose fallback pool is as changed, with a claim that is Ready.
func keeping(t *testing.T, opts Options, change ...func(*unstructured.Unstructured)) (*cluster, *interruption.Record) {
	t.Helper()
	c, rec := newCluster(t, opts, sourcePool(), fallbackPool(t, change...), sourceNodeClaim()), record()
	c.nodes.put(withRecord(interruptedNode(), rec))
	c.request(&rec)
	c.request(&rec)
	c.ready()
	return c, &rec
}

func (c *cluster) wantProtected(want bool) {
	c.t.Helper()
	u := c.now()
	if u == nil {
		c.t.Fatal("the claim is gone")
	}
	a := u.GetAnnotations()
	c.nodes.mu.Lock()
	cleared := slices.Contains(c.nodes.patches, replacementNode+` {"metadata":{"annotations":{"karpenter.sh/do-not-disrupt":null}}}`)
	c.nodes.mu.Unlock()
	if (a[doNotDisrupt] == "true") != want || (a[ProtectedAnnotation] != "") != want || cleared == want {
		c.t.Errorf("annotations %v, Node cleared: %t; want protected: %t", a, cleared, want)
	}
}

func TestProtectionEnds(t *testing.T) {
	bubble(t, "with the pods", func(t *testing.T) {
		c, _ := keeping(t, Options{TTL: time.Hour})
		c.wantProtected(true)
		c.nodes.land(pod(), ofDaemonSet(pod())) // one of two
		time.Sleep(2 * landingCheck)
		c.wantProtected(true)
		c.nodes.land(pod())
		time.Sleep(landingCheck)
		c.wantProtected(false)
		if !c.nodes.hasEvent(reasonUnprotected) || !c.nodes.hasEvent(reasonReplaces) {
			t.Errorf("events %q", c.nodes.events)
		}
	})
	bubble(t, "with the drain", func(t *testing.T) {
		c, rec := keeping(t, Options{TTL: time.Hour})
		if err := c.p.Release(t.Context(), interruptedNode(), *rec); err != nil {
			t.Fatal(err)
		}
		c.wantProtected(false)
	})
	bubble(t, "with the interruption, told by nobody", func(t *testing.T) {
		c, rec := keeping(t, Options{TTL: time.Hour})
		rec.Phase = interruption.Released
		c.nodes.put(withRecord(interruptedNode(), *rec))
		time.Sleep(landingCheck)
		c.wantProtected(false)
	})
	bubble(t, "not by a cache that is behind", func(t *testing.T) {
		c, rec := newCluster(t, Options{TTL: time.Hour}), record()
		c.nodes.behind = true
		c.request(&rec)
		c.ready()
		time.Sleep(2 * landingCheck)
		c.wantProtected(true)
	})
	bubble(t, "as far as memory tells", func(t *testing.T) {
		var over atomic.Bool
		c, _ := keeping(t, Options{TTL: time.Hour, Node: func(name string) (*corev1.Node, bool) {
			rec := record()
			if over.Load() {
				rec.Phase = interruption.Released
			}
			return withRecord(interruptedNode(), rec), name == "node-1"
		}})
		time.Sleep(2 * landingCheck)
		c.wantProtected(true)
		over.Store(true)
		time.Sleep(landingCheck)
		c.wantProtected(false)
		if c.nodes.gets != 0 {
			t.Errorf("%d times asked for a Node that is known", c.nodes.gets)
		}
	})
	bubble(t, "with the deadline", func(t *testing.T) {
		c, _ := keeping(t, Options{TTL: time.Hour})
		time.Sleep(2*time.Minute - time.Second)
		c.wantProtected(true)
		time.Sleep(3 * time.Second)
		c.wantProtected(false)
	})
	bubble(t, "before the node is there", func(t *testing.T) {
		c, rec := newCluster(t, Options{TTL: time.Hour}), record()
		c.request(&rec)
		c.condition("Launched", "True", "")
		time.Sleep(2*time.Minute + time.Second)
		if a := c.now().GetAnnotations(); a[doNotDisrupt] != "" || a[ProtectedAnnotation] == "" {
			t.Errorf("annotations %v, want the mark alone until the Node is known", a)
		}
		c.condition("Registered", "True", "")
		c.condition("Initialized", "True", "")
		time.Sleep(laterCheck)
		c.wantProtected(false)
	})
	bubble(t, "found by the next process", func(t *testing.T) {
		o := newOrder(t)
		o.until = time.Now().Add(-time.Hour)
		claim := o.build()
		set("uid-1", "metadata", "uid")(claim)
		set([]any{
			map[string]any{"type": "Launched", "status": "True", "lastTransitionTime": time.Now().UTC().Format(time.RFC3339)},
			map[string]any{"type": "Initialized", "status": "True", "lastTransitionTime": time.Now().UTC().Format(time.RFC3339)},
		}, "status", "conditions")(claim)
		set(replacementNode, "status", "nodeName")(claim)
		c := newCluster(t, Options{TTL: time.Hour}, fallbackPool(t), claim)
		c.wantProtected(false)
	})
}

func TestUnusedIsReturned(t *testing.T) {
	const ttl = 10 * time.Minute
	over := func(c *cluster, rec *interruption.Record) {
		rec.Phase = interruption.Released
		c.nodes.put(withRecord(interruptedNode(), *rec))
	}
	settled := func(c *cluster) string {
		u := c.now()
		if u == nil {
			return "gone"
		}
		return u.GetLabels()[SettledLabel]
	}
	bubble(t, "unused", func(t *testing.T) {
		c, rec := keeping(t, Options{TTL: ttl}, lasting)
		over(c, rec)
		c.nodes.land(ofDaemonSet(pod()))
		time.Sleep(ttl - time.Second)
		if settled(c) != "" {
			t.Errorf("settled as %q before the time", settled(c))
		}
		time.Sleep(3 * time.Second)
		if settled(c) != "gone" || !c.nodes.hasEvent(reasonUnused) {
			t.Errorf("settled as %q, events %q; want it gone", settled(c), c.nodes.events)
		}
	})
	bubble(t, "used", func(t *testing.T) {
		c, rec := keeping(t, Options{TTL: ttl}, lasting)
		over(c, rec)
		c.nodes.land(pod())
		time.Sleep(ttl + time.Second)
		if settled(c) != settledUsed {
			t.Errorf("settled as %q, want %q", settled(c), settledUsed)
		}
	})
	bubble(t, "used in the last moment", func(t *testing.T) {
		c, rec := keeping(t, Options{TTL: ttl}, lasting)
		over(c, rec)
		c.nodes.behind = true
		c.nodes.land(pod())
		time.Sleep(ttl + time.Second)
		if settled(c) != settledUsed {
			t.Errorf("settled as %q, want %q: the pod that no cache shows yet is there", settled(c), settledUsed)
		}
	})
	bubble(t, "consolidated", func(t *testing.T) {
		c, rec := keeping(t, Options{TTL: ttl})
		over(c, rec)
		time.Sleep(ttl + time.Second)
		if settled(c) != settledEmpty {
			t.Errorf("settled as %q, want %q", settled(c), settledEmpty)
		}
	})
	bubble(t, "boots slowly", func(t *testing.T) {
		c, rec := newCluster(t, Options{TTL: ttl}, sourcePool(), fallbackPool(t, lasting), sourceNodeClaim()), record()
		c.request(&rec)
		c.condition("Launched", "True", "")
		over(c, &rec)
		time.Sleep(ttl + bootLimit - time.Second)
		if settled(c) != "" {
			t.Errorf("settled as %q before it was Ready", settled(c))
		}
		time.Sleep(3 * time.Second)
		if settled(c) != "gone" {
			t.Errorf("settled as %q, want it gone", settled(c))
		}
	})
	bubble(t, "the drain goes on", func(t *testing.T) {
		c, rec := keeping(t, Options{TTL: ttl}, lasting)
		time.Sleep(2 * ttl)
		if settled(c) != "" {
			t.Errorf("settled as %q while pods may come", settled(c))
		}
		over(c, rec)
		time.Sleep(laterCheck + time.Second)
		if settled(c) != "gone" {
			t.Errorf("settled as %q, want it gone", settled(c))
		}
	})
	bubble(t, "never", func(t *testing.T) {
		c, rec := keeping(t, Options{}, lasting)
		over(c, rec)
		time.Sleep(24 * time.Hour)
		if settled(c) != "" {
			t.Errorf("settled as %q with a TTL of zero", settled(c))
		}
	})
	bubble(t, "forbidden", func(t *testing.T) {
		c, rec := keeping(t, Options{TTL: ttl}, lasting)
		c.PrependReactor("delete", "nodeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(nodeClaimResource.GroupResource(), claimName, errors.New("no RBAC"))
		})
		over(c, rec)
		time.Sleep(ttl + time.Hour)
		synctest.Wait()
		if n := strings.Count(c.log.String(), "not looked after"); n != 1 {
			t.Errorf("said %d times, want once:\n%s", n, c.log.String())
		}
	})
}

// The daemon of a single node ends with it: what is used is settled at once, and what
// others have left behind is found in time.
func TestSingleNodeLooksAfterOthers(t *testing.T) {
	bubble(t, "its own", func(t *testing.T) {
		c, rec := keeping(t, Options{SingleNode: true, TTL: time.Hour}, lasting)
		c.nodes.land(pod())
		if err := c.p.Release(t.Context(), interruptedNode(), *rec); err != nil {
			t.Fatal(err)
		}
		if got := c.now().GetLabels()[SettledLabel]; got != settledUsed {
			t.Errorf("settled as %q, want %q", got, settledUsed)
		}
	})
	bubble(t, "unlaunched of another", func(t *testing.T) {
		claim := newOrder(t).build()
		set("uid-1", "metadata", "uid")(claim)
		claim.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-time.Minute)))
		c := newCluster(t, Options{SingleNode: true}, fallbackPool(t), claim)
		time.Sleep(firstSweep)
		if c.now() != nil {
			t.Error("the claim is still there")
		}
	})
}

// A claim that is never launched halts Karpenter, also when its node is not reconciled
// any more.
func TestUnlaunchedIsDeletedByWhoeverSeesIt(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		c.request(&rec)
		time.Sleep(launchTimeout + orphanGrace - time.Second)
		if c.now() == nil {
			t.Fatal("deleted before its node's reconciliation had its time")
		}
		time.Sleep(2 * time.Second)
		if c.now() != nil || !c.nodes.hasEvent(reasonNotLaunched) {
			t.Errorf("the claim is still there, or nobody was told: %q", c.nodes.events)
		}
	})
}
