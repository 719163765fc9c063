package karpenter

import (
	"context"
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

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

// The sweep of a leader asks until it is answered: that there is no Karpenter, or that it may not
// ask, is an answer.
func TestSweepAsksUntilItIsAnswered(t *testing.T) {
	for name, tt := range map[string]struct {
		err   error
		lists int
	}{
		"no such API": {apierrors.NewGenericServerResponse(404, "list", nodeClaimResource.GroupResource(), "", "", 0, true), 1},
		"forbidden":   {apierrors.NewForbidden(nodeClaimResource.GroupResource(), "", nil), 1},
		"slow":        {errors.New("etcd is slow"), 7},
	} {
		bubble(t, name, func(t *testing.T) {
			c := newCluster(t, Options{})
			lists := 0
			c.PrependReactor("list", "nodeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
				lists++
				return true, nil, tt.err
			})
			ctx, cancel := context.WithTimeout(t.Context(), 6*sweepRetry+sweepRetry/2)
			defer cancel()
			c.b.sweep(ctx)
			if lists != tt.lists {
				t.Errorf("%d lists, want %d", lists, tt.lists)
			}
		})
	}
}
