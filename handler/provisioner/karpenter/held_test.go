package karpenter

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"spot-handler/handler/interruption"
)

// The part of a pool that is held is a metric: one of a pool with three spot nodes.
func TestHeldShare(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		r := newReturning(t, spotPool("m5.large", "m6i.large"), fallbackPool(t))
		time.Sleep(heldCheck)
		registry := prometheus.NewRegistry()
		registry.MustRegister(r.b.keeper.held.shares(func(pool string) int { return len(pool) - 1 }))
		got := map[string]float64{}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				got[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
		if want := map[string]float64{"": 0, "spot": 0.25}; !maps.Equal(got, want) {
			t.Errorf("shares %v, want %v", got, want)
		}
	})
}

// All that may go back are recommended at once: the line of recommended nodes says how many move at a time, as
// after EC2's own recommendations.
func TestManyGoBackInLine(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		const count = 4
		var mu sync.Mutex // several are recommended at the same time
		recommended := map[string]bool{}
		c := newCluster(t, Options{
			TTL: 10 * time.Minute,
			Return: func(_ context.Context, n interruption.Notice) (interruption.Verdict, error) {
				mu.Lock()
				defer mu.Unlock()
				recommended[n.EventID] = true
				return interruption.Accepted, nil
			},
			Node: func(name string) (*corev1.Node, bool) {
				return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, true
			},
		}, append(claimsHeld(t, count), spotPool("m5.large"), fallbackPool(t))...)
		c.remember()
		c.nodes.land(pod())
		time.Sleep(DefaultCalm - time.Second)
		synctest.Wait()
		if len(recommended) != 0 {
			t.Fatalf("%v are recommended before their time", recommended)
		}
		time.Sleep(heldCheck)
		synctest.Wait()
		if len(recommended) != count {
			t.Errorf("%d of %d are recommended a minute later: %v", len(recommended), count, recommended)
		}
	})
}

// A held replacement that Karpenter reboots has no pods meanwhile, and isn't initialized, but comes back: it is neither
// left to Karpenter nor recommended until then.
func TestRebootingComesBack(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		r := newReturning(t, spotPool("m5.large"), fallbackPool(t))
		condition := func(kind, status, reason string) func(*unstructured.Unstructured) {
			return func(u *unstructured.Unstructured) {
				list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
				list = slices.DeleteFunc(list, func(c any) bool { return c.(map[string]any)["type"] == kind })
				list = append(list, map[string]any{
					"type": kind, "status": status, "reason": reason, "lastTransitionTime": time.Now().UTC().Format(time.RFC3339),
				})
				set(list, "status", "conditions")(u)
			}
		}
		r.patchClaim(claimName, condition("Rebooting", "True", "RebootIssued"))
		r.patchClaim(claimName, condition("Initialized", "Unknown", "Rebooting"))
		r.nodes.land()
		time.Sleep(3 * time.Hour)
		claim := r.claim(claimName)
		if claim == nil || claim.GetAnnotations()[StandsInAnnotation] == "" || len(r.notices) > 0 {
			t.Fatalf("while it reboots: %v, and it is recommended %d times", claim, len(r.notices))
		}
		r.patchClaim(claimName, condition("Initialized", "True", "Initialized"))
		r.patchClaim(claimName, condition("Rebooting", "False", "RebootSucceeded"))
		r.nodes.land(pod())
		time.Sleep(2 * heldCheck)
		if len(r.notices) != 1 {
			t.Errorf("it is recommended %d times once it is back, want once", len(r.notices))
		}
	})
}
