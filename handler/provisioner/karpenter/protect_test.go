package karpenter

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"spot-handler/handler/interruption"
)

// The longer pods are late, the less often we look.
func TestCheckForPodsLessOften(t *testing.T) {
	claim, now := &Claim{}, time.Now()
	for after, want := range map[time.Duration]time.Duration{
		0: landingCheck, 40 * time.Second: landingCheck, 80 * time.Second: 20 * time.Second, time.Hour: laterCheck,
	} {
		claim.Status.Conditions = []metav1.Condition{{Type: "Initialized", Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-after))}}
		if got := claim.nextLanding(now); got != want {
			t.Errorf("after %s the next look is in %s, want %s", after, got, want)
		}
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
		rec.Phase = interruption.Drained
		if err := c.p.Terminate(t.Context(), interruptedNode(), *rec); err != nil {
			t.Fatal(err)
		}
		c.nodes.put(withRecord(interruptedNode(), *rec)) // as the handler does next
		time.Sleep(recordedAfter)
		c.wantProtected(false)
	})
	bubble(t, "with the interruption, without an event", func(t *testing.T) {
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
	bubble(t, "as far as memory knows", func(t *testing.T) {
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
		if a := c.now().GetAnnotations(); a[doNotDisrupt] != "" || a[protectedAnnotation] == "" {
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
		claim := built(t, o)
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

func (c *cluster) wantProtected(want bool) {
	c.t.Helper()
	u := c.now()
	if u == nil {
		c.t.Fatal("the claim is gone")
	}
	a := u.GetAnnotations()
	c.nodes.mu.Lock()
	cleared := slices.Contains(c.nodes.patches, replacementNode+` {"metadata":{"annotations":{"karpenter.sh/do-not-disrupt":null,"spot-handler/stands-in-for":null,"spot-handler/held":null}}}`)
	c.nodes.mu.Unlock()
	if (a[doNotDisrupt] == "true") != want || (a[protectedAnnotation] != "") != want || cleared == want {
		c.t.Errorf("annotations %v, Node cleared: %t; want protected: %t", a, cleared, want)
	}
}

// A write that fails is tried again, and until then the next process finds the claim by its annotations.
func TestProtectionEndsOnceThatIsWritten(t *testing.T) {
	bubble(t, "on the Node", func(t *testing.T) {
		c, rec := keeping(t, Options{TTL: time.Hour})
		c.nodes.fail(errors.New("API server is unreachable"))
		rec.Phase = interruption.Released
		c.nodes.put(withRecord(interruptedNode(), *rec))
		time.Sleep(time.Minute)
		c.wantProtected(true)
		c.nodes.fail(nil)
		time.Sleep(laterCheck)
		c.wantProtected(false)
	})
	bubble(t, "on the claim", func(t *testing.T) {
		c, rec := keeping(t, Options{TTL: time.Hour})
		var broken atomic.Bool
		broken.Store(true)
		c.PrependReactor("patch", "nodeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			return broken.Load(), nil, apierrors.NewServiceUnavailable("starting")
		})
		rec.Phase = interruption.Released
		c.nodes.put(withRecord(interruptedNode(), *rec))
		time.Sleep(time.Minute)
		if a := c.now().GetAnnotations(); a[protectedAnnotation] == "" || c.nodes.hasEvent(reasonUnprotected) {
			t.Errorf("annotations %v, events %q; want it neither done nor said", a, c.nodes.events)
		}
		broken.Store(false)
		time.Sleep(laterCheck)
		c.wantProtected(false)
	})
	bubble(t, "of what is gone", func(t *testing.T) {
		c, rec := keeping(t, Options{TTL: time.Hour})
		c.nodes.fail(apierrors.NewNotFound(corev1.Resource("nodes"), replacementNode))
		rec.Phase = interruption.Released
		c.nodes.put(withRecord(interruptedNode(), *rec))
		time.Sleep(laterCheck)
		if a := c.now().GetAnnotations(); a[protectedAnnotation] != "" {
			t.Errorf("annotations %v, want none of ours: its Node is gone", a)
		}
	})
}
