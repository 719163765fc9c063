package karpenter

import (
	"testing"

	clienttesting "k8s.io/client-go/testing"

	"spot-handler/handler/provisioner"
)

// In the daemon of one node the watch shows that node's replacement alone.
func TestWatchOfOneInstance(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c, rec := newCluster(t, Options{SingleNode: true}), record()
		c.request(&rec)
		for _, a := range c.Actions() {
			if w, ok := a.(clienttesting.WatchActionImpl); ok {
				if got, want := w.GetWatchRestrictions().Labels.String(), ReplacesLabel+"="+instance+",!"+SettledLabel; got != want {
					t.Errorf("watch selects %q, want %q", got, want)
				}
				return
			}
		}
		t.Error("no watch")
	})
}

func TestSlim(t *testing.T) {
	claim := built(t, newOrder(t))
	set([]any{map[string]any{"type": "Launched", "status": "True"}, map[string]any{"type": "Drifted", "status": "True"}}, "status", "conditions")(claim)
	s := decodeClaim(claim).slim()
	if s.Name != claimName || s.state() != provisioner.StateLaunched || s.Labels[ReplacesLabel] != instance || s.Annotations[NodeAnnotation] != "node-1" {
		t.Errorf("slim claim %+v lacks what is asked of it", s)
	}
	if len(s.Spec.Requirements)+len(s.Spec.Resources.Requests)+len(s.Status.Capacity) != 0 {
		t.Errorf("slim claim %+v holds more than is asked of it", s)
	}
	set("x", "status", "conditions")(claim)
	if got := decodeClaim(claim).slim(); got.state() != provisioner.StateRequested {
		t.Errorf("hostile claim: %+v; want one that is not launched", got)
	}
}
