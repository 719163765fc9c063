package karpenter

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"spot-handler/handler/interruption"
)

// A replacement that never becomes usable is not held, however restless its source pool is: no pod can
// be there.
func TestWhatNeverIsReadyIsNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, rec := newCluster(t, Options{TTL: 10 * time.Minute}, sourcePool(), fallbackPool(t), sourceNodeClaim()), record()
		c.remember()
		c.lose()
		c.nodes.put(withRecord(offered(), rec))
		if _, err := c.p.Request(t.Context(), offered(), rec, need()); err != nil {
			t.Fatal(err)
		}
		c.condition("Launched", "True", "")
		c.condition("Registered", "True", "")
		rec.Phase = interruption.Released
		c.nodes.put(withRecord(offered(), rec))
		for range 6 {
			time.Sleep(5 * time.Minute)
			c.lose()
		}
		if u := c.now(); u != nil {
			t.Errorf("it is there after half an hour, with annotations %v", u.GetAnnotations())
		}
	})
}

func TestHeldUntilCalm(t *testing.T) {
	bubble(t, "losses go on", func(t *testing.T) {
		c := standingIn(t)
		time.Sleep(20 * time.Minute)
		c.wantProtected(true)
		if !c.nodes.hasEvent(reasonHeld) {
			t.Errorf("events %q", c.nodes.events)
		}
		c.lose()
		time.Sleep(DefaultCalm - time.Second)
		c.wantProtected(true)
		c.wantHeldSeconds(50*time.Minute, heldCheck+landingCheck)
		time.Sleep(2 * time.Second)
		c.wantProtected(false)
		c.wantHeldSeconds(50*time.Minute, 2*landingCheck)
		a := c.now().GetAnnotations()
		if c.nodes.warned || len(c.b.keeper.held.counted) != 0 || a[StandsInAnnotation] != "" || !c.nodes.hasEvent(reasonUnprotected) {
			t.Errorf("counted %v, annotations %v, events %q; want nothing left", c.b.keeper.held.counted, a, c.nodes.events)
		}
		if got := c.now().GetLabels()[SettledLabel]; got != settledUsed {
			t.Errorf("settled as %q, want %q", got, settledUsed)
		}
	})
	for kind, counts := range map[string]bool{"m5.large": true, "c5.large": false} {
		bubble(t, "another pool's losses of "+kind, func(t *testing.T) {
			c := standingIn(t)
			time.Sleep(20 * time.Minute)
			other := offered()
			other.Name, other.Labels[nodePoolLabel], other.Labels[corev1.LabelInstanceTypeStable] = "node-2", "other", kind
			c.taken.Note(anotherInstance(other), record())
			time.Sleep(10 * time.Minute)
			c.wantProtected(counts)
			time.Sleep(20 * time.Minute)
			c.wantProtected(false)
		})
	}
	bubble(t, "as long as the pool says", func(t *testing.T) {
		c := standingIn(t)
		c.annotate("spot", CalmAnnotation, "2h")
		time.Sleep(2*time.Hour - 2*landingCheck)
		c.wantProtected(true)
		time.Sleep(2 * landingCheck)
		c.wantProtected(false)
	})
	bubble(t, "switched off meanwhile", func(t *testing.T) {
		c := standingIn(t)
		c.annotate("spot", CalmAnnotation, "0")
		time.Sleep(heldCheck + poolTTL)
		c.wantProtected(false)
	})
	bubble(t, "the pool is gone", func(t *testing.T) {
		c := standingIn(t)
		if err := c.Tracker().Delete(nodePoolResource, "", "spot"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(heldCheck + poolTTL)
		c.wantProtected(false)
	})
	bubble(t, "its pods have gone elsewhere", func(t *testing.T) {
		c := standingIn(t)
		c.nodes.mu.Lock()
		c.nodes.pods = nil
		c.nodes.mu.Unlock()
		time.Sleep(2 * heldCheck)
		c.wantProtected(false)
	})
	bubble(t, "never calm", func(t *testing.T) {
		c := standingIn(t)
		claim := c.now().DeepCopy()
		claim.SetCreationTimestamp(metav1.NewTime(time.Now().Add(30*time.Minute - LongestHold)))
		claim.SetResourceVersion("9")
		if err := c.Tracker().Update(nodeClaimResource, claim, ""); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			c.wantProtected(true)
			c.lose()
			time.Sleep(15*time.Minute + time.Second)
		}
		c.wantProtected(false)
		if !c.nodes.hasEvent(reasonUnprotected) || !c.nodes.warned {
			t.Errorf("events %q, the last a warning: %t", c.nodes.events, c.nodes.warned)
		}
	})
	bubble(t, "its node boots for longer than the notice", func(t *testing.T) {
		c, rec := newCluster(t, Options{TTL: 10 * time.Minute}), record()
		c.remember()
		c.lose()
		if _, err := c.p.Request(t.Context(), offered(), rec, need()); err != nil {
			t.Fatal(err)
		}
		c.condition("Launched", "True", "")
		time.Sleep(3 * time.Minute)
		if a := c.now().GetAnnotations(); a[doNotDisrupt] != "true" {
			t.Errorf("annotations %v, want the protection that its Node will have", a)
		}
		c.condition("Registered", "True", "")
		c.condition("Initialized", "True", "")
		c.nodes.land(pod(), pod())
		time.Sleep(10 * time.Minute)
		c.wantProtected(true)
		time.Sleep(17 * time.Minute)
		c.wantProtected(false)
	})
}

// The next process knows from the claims what it has to hold, and gives back one a minute.
func TestGivenBackOneByOne(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		const count = 4
		objects := append(claimsHeld(t, count), oneOffering(), fallbackPool(t))
		time.Sleep(10 * time.Minute) // nobody leads
		c := newCluster(t, Options{TTL: time.Hour}, objects...)
		c.nodes.land(pod())
		time.Sleep(time.Hour)
		c.wantHeld(count) // nothing is known of earlier losses
		c.lose()
		c.remember()
		time.Sleep(DefaultCalm - time.Second)
		c.wantHeld(count)
		time.Sleep(2 * landingCheck)
		for want := count - 1; want >= 0; want-- {
			c.wantHeld(want)
			time.Sleep(heldCheck)
		}
	})
}

// However often the pool loses nodes, and though its losses are not known, all are given back when they
// are as old as they can be, and not one a minute.
func TestLongestHold(t *testing.T) {
	for name, known := range map[string]bool{"losses go on": true, "losses are not known": false} {
		bubble(t, name, func(t *testing.T) {
			const count = 4
			objects := append(claimsHeld(t, count), oneOffering(), fallbackPool(t))
			ends := time.Now().Add(LongestHold)
			c := newCluster(t, Options{TTL: time.Hour}, objects...)
			c.nodes.land(pod())
			if known {
				c.remember()
			}
			for time.Until(ends) > 0 {
				c.wantHeld(count)
				c.lose()
				time.Sleep(15 * time.Minute)
			}
			time.Sleep(landingCheck)
			c.wantHeld(0)
		})
	}
}

// Where an operator goes over to processes of one node each, these give back what was held.
func TestSingleNodeHoldsNothing(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		objects := append(claimsHeld(t, 2), oneOffering(), fallbackPool(t))
		time.Sleep(10 * time.Minute)
		c := newCluster(t, Options{SingleNode: true, TTL: time.Hour}, objects...)
		c.nodes.land(pod())
		c.wantHeld(2)
		time.Sleep(firstSweep)
		c.wantHeld(0)
		if patches := strings.Join(c.nodes.patches, " "); !strings.Contains(patches, replacementNode+" ") || !strings.Contains(patches, StandsInAnnotation) {
			t.Errorf("patches of Nodes %q, want the replacement's", patches)
		}
	})
}

// An operator ends a hold by removing either of our annotations. Nothing is left, and nothing counts.
func TestHoldEndedByHand(t *testing.T) {
	for _, key := range []string{StandsInAnnotation, protectedAnnotation} {
		bubble(t, key, func(t *testing.T) {
			c := standingIn(t)
			claim := c.now().DeepCopy()
			a := claim.GetAnnotations()
			delete(a, key)
			claim.SetAnnotations(a)
			claim.SetResourceVersion("9")
			if err := c.Tracker().Update(nodeClaimResource, claim, ""); err != nil {
				t.Fatal(err)
			}
			time.Sleep(heldCheck)
			c.wantProtected(false)
			a = c.now().GetAnnotations()
			if len(c.b.keeper.held.counted) != 0 || a[StandsInAnnotation]+a[protectedAnnotation] != "" {
				t.Errorf("counted %v, annotations %v, want nothing left", c.b.keeper.held.counted, a)
			}
			time.Sleep(10 * time.Minute)
			if got := c.now().GetLabels()[SettledLabel]; got != settledUsed {
				t.Errorf("settled as %q, want %q", got, settledUsed)
			}
		})
	}
}

// What is not on demand, what Karpenter leaves where it is, and what replaces no spot instance that
// EC2 takes, is protected as long as its pods are on their way, if at all.
func TestNotHeld(t *testing.T) {
	nothing := func(*unstructured.Unstructured) {}
	for name, tt := range map[string]struct {
		source, fallback func(*unstructured.Unstructured)
		lost             func(*corev1.Node, *interruption.Record)
		single           bool
		held             bool
	}{
		"an on-demand replacement": {held: true},
		"of a recommended node": {held: true, lost: func(_ *corev1.Node, r *interruption.Record) {
			r.Kind, r.Deadline = interruption.RebalanceRecommendation, time.Time{}
		}},
		"consolidated late":      {held: true, fallback: set("1h", "spec", "disruption", "consolidateAfter")},
		"an annotation of noise": {held: true, source: set("soon", "metadata", "annotations", CalmAnnotation)},
		"switched off":           {source: set("0s", "metadata", "annotations", CalmAnnotation)},
		"never consolidated":     {fallback: lasting},
		"consolidated if empty":  {fallback: set("WhenEmpty", "spec", "disruption", "consolidationPolicy")},
		"a spot replacement":     {fallback: spotOnly},
		"of an on-demand node":   {lost: func(n *corev1.Node, _ *interruption.Record) { n.Labels[capacityTypeLabel] = onDemand }},
		"of a node in a rehearsal": {lost: func(_ *corev1.Node, r *interruption.Record) {
			r.Source = interruption.Rehearsal
		}},
		"of a node under maintenance":       {lost: func(_ *corev1.Node, r *interruption.Record) { r.Kind = interruption.ScheduledEvent }},
		"by the process of one node":        {single: true},
		"in a pool that protects by itself": {fallback: set("true", "spec", "template", "metadata", "annotations", doNotDisrupt)},
	} {
		bubble(t, name, func(t *testing.T) {
			for _, f := range []*func(*unstructured.Unstructured){&tt.source, &tt.fallback} {
				if *f == nil {
					*f = nothing
				}
			}
			source, node, rec := sourcePool(), offered(), record()
			tt.source(source)
			if tt.lost != nil {
				tt.lost(node, &rec)
			}
			c := newCluster(t, Options{SingleNode: tt.single, Rebalance: interruption.RebalanceFallback}, source, fallbackPool(t, tt.fallback), sourceNodeClaim())
			c.remember()
			r, err := c.p.Request(t.Context(), node, rec, need())
			if err != nil {
				t.Fatal(err)
			}
			u, err := c.Tracker().Get(nodeClaimResource, "", r.Name)
			if err != nil {
				t.Fatal(err)
			}
			a := u.(*unstructured.Unstructured).GetAnnotations()
			if (a[StandsInAnnotation] == "spot") != tt.held || tt.held && (a[doNotDisrupt] == "" || a[protectedAnnotation] == "") {
				t.Errorf("annotations %v, want it held: %t", a, tt.held)
			}
		})
	}
}

func TestCalmAnnotation(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c := newCluster(t, Options{})
		for value, want := range map[string]time.Duration{
			"": DefaultCalm, "0": 0, "0s": 0, "90s": 90 * time.Second, "24h": LongestHold,
			"24h1s": -1, "-1s": -1, "soon": -1, "30": -1, "1e9h": -1, strings.Repeat("9", 200_000): -1, "\x1b[31m5m": -1,
		} {
			pool := decodePool(sourcePool())
			pool.Annotations[CalmAnnotation] = value
			before := len(c.nodes.events)
			got := c.b.calmOf(pool)
			c.b.calmOf(pool)
			complaints := len(c.nodes.events) - before
			if want < 0 && (got != DefaultCalm || complaints != 1) || want >= 0 && (got != want || complaints != 0) {
				t.Errorf("%.20q is %s with %d complaints, want %s", value, got, complaints, want)
			}
		}
		if log := c.log.String(); strings.Contains(log, "\x1b") || len(log) > 20<<10 || !slices.Contains(c.nodes.events, "NodePool/spot "+reasonWrongCalm) {
			t.Errorf("events %q, %d bytes of log", c.nodes.events, len(log))
		}
	})
}

// A replacement on which no pod has landed is held while its node is drained: they might still come.
func TestHeldWhileItsNodeIsDrained(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c, rec := newCluster(t, Options{TTL: 10 * time.Minute}, sourcePool(), fallbackPool(t), sourceNodeClaim()), record()
		c.remember()
		c.lose()
		rec.Phase = interruption.Draining
		c.nodes.put(withRecord(offered(), rec))
		if _, err := c.p.Request(t.Context(), offered(), rec, need()); err != nil {
			t.Fatal(err)
		}
		c.ready()
		time.Sleep(6 * time.Minute)
		c.wantProtected(true)
		rec.Phase = interruption.Released
		c.nodes.put(withRecord(offered(), rec))
		time.Sleep(2 * heldCheck)
		c.wantProtected(false)
	})
}
