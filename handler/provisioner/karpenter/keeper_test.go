package karpenter

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"spot-handler/handler/interruption"
)

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
	bubble(t, "never initialized", func(t *testing.T) { // a startup taint stays, and Karpenter consolidates no such node
		c, rec := newCluster(t, Options{TTL: ttl}, sourcePool(), fallbackPool(t), sourceNodeClaim()), record()
		c.nodes.put(withRecord(interruptedNode(), rec))
		c.request(&rec)
		c.condition("Launched", "True", "")
		c.condition("Registered", "True", "")
		over(c, &rec)
		time.Sleep(15*time.Minute + ttl - time.Second)
		if settled(c) != "" {
			t.Errorf("settled as %q before it had its time", settled(c))
		}
		time.Sleep(laterCheck)
		if settled(c) != "gone" || !c.nodes.hasEvent(reasonUnused) {
			t.Errorf("settled as %q, events %q; want it gone", settled(c), c.nodes.events)
		}
	})
	bubble(t, "never initialized, and a pod is there", func(t *testing.T) { // which tolerates all taints
		c, rec := newCluster(t, Options{TTL: ttl}, sourcePool(), fallbackPool(t), sourceNodeClaim()), record()
		c.request(&rec)
		c.condition("Launched", "True", "")
		c.condition("Registered", "True", "")
		c.nodes.land(pod())
		over(c, &rec)
		time.Sleep(time.Hour)
		if settled(c) != settledUsed {
			t.Errorf("settled as %q, want %q", settled(c), settledUsed)
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
			t.Errorf("the claim is still there, or no Event was written: %q", c.nodes.events)
		}
	})
}
