package karpenter

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
)

// The daemon of a single node ends with it: what is used is settled at once, and what
// others have left behind is found in time.
func TestSingleNodeLooksAfterOthers(t *testing.T) {
	bubble(t, "its own", func(t *testing.T) {
		c, rec := keeping(t, Options{SingleNode: true, TTL: time.Hour}, lasting)
		c.nodes.land(pod())
		rec.Phase = interruption.Drained
		if err := c.p.Terminate(t.Context(), interruptedNode(), *rec); err != nil {
			t.Fatal(err)
		}
		c.nodes.put(withRecord(interruptedNode(), *rec)) // as the handler does next
		time.Sleep(recordedAfter)
		if got := c.now().GetLabels()[SettledLabel]; got != settledUsed {
			t.Errorf("settled as %q, want %q", got, settledUsed)
		}
	})
	bubble(t, "unlaunched of another", func(t *testing.T) {
		claim := built(t, newOrder(t))
		set("uid-1", "metadata", "uid")(claim)
		claim.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-time.Minute)))
		c := newCluster(t, Options{SingleNode: true}, fallbackPool(t), claim)
		time.Sleep(firstSweep)
		if c.now() != nil {
			t.Error("the claim is still there")
		}
	})
}
