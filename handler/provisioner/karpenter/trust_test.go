package karpenter

import (
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// Whoever owns a kubelet can have its Node's record name any NodeClaim as the replacement. Nothing
// is done to one that replaces another instance, or none.
func TestAForgedReplacement(t *testing.T) {
	for name, labels := range map[string]map[string]string{
		"another's replacement": {ReplacesLabel: "i-0aaaaaaaaaaaaaaaa"},
		"a claim of Karpenter":  {nodePoolLabel: "spot"},
	} {
		bubble(t, name, func(t *testing.T) {
			theirs := sourceNodeClaim()
			theirs.SetName("theirs")
			theirs.SetLabels(labels)
			theirs.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-launchTimeout))) // it may be given up from now on
			c, rec := newCluster(t, Options{}, sourcePool(), fallbackPool(t), sourceNodeClaim(), theirs), record()
			rec.Replacement = &interruption.Replacement{Backend: provisioner.Karpenter, Name: "theirs", Pool: "spot", State: provisioner.StateRequested}
			c.request(&rec)
			synctest.Wait() // the claims are known
			c.request(&rec)
			if _, err := c.Tracker().Get(nodeClaimResource, "", "theirs"); err != nil {
				t.Errorf("the claim is gone: %v", err)
			}
			if rec.Replacement.Name == "theirs" {
				t.Errorf("replacement %+v, want one of its own", rec.Replacement)
			}
		})
	}
	t.Run("word that it is drained", func(t *testing.T) {
		k := New(Options{}).keeper
		claim := &nodeClaim{}
		claim.Name, claim.Labels = "theirs", map[string]string{ReplacesLabel: "i-0aaaaaaaaaaaaaaaa"}
		k.markDrained("theirs", instance)
		if k.isDrained(claim) {
			t.Error("the claim counts as drained by the word of another node")
		}
		k.markDrained("theirs", "i-0aaaaaaaaaaaaaaaa")
		if !k.isDrained(claim) {
			t.Error("the claim does not count as drained by its own node's word")
		}
	})
}
