package karpenter

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"spot-handler/handler/provisioner"
)

func TestBurstReadsThePoolsOnce(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c := newCluster(t, Options{})
		const burst = 90 // the fake's watch panics beyond 100 events that nobody has read
		var wg sync.WaitGroup
		for i := range burst {
			wg.Go(func() {
				node, rec := interruptedNode(), record()
				node.Name, node.OwnerReferences[0].Name = fmt.Sprintf("node-%d", i), fmt.Sprintf("spot-%d", i)
				rec.Instance = fmt.Sprintf("i-%d", i)
				if r, err := c.p.Request(t.Context(), node, rec, need()); err != nil || r.State != provisioner.StateRequested {
					t.Errorf("Request: %+v, %v", r, err)
				}
			})
		}
		wg.Wait()
		count := map[string]int{}
		for _, a := range c.Actions() {
			count[a.GetVerb()+" "+a.GetResource().Resource]++
		}
		if count["list nodepools"] != 1 || count["create nodeclaims"] != burst || count["get nodeclaims"] != burst {
			t.Errorf("calls %v, want 1 read of the pools, and one read and one create of a claim for each of %d", count, burst)
		}
	})
}

// A loss is noted, and then a replacement requested: both need the node's own claim.
func TestOneReadOfTheNodesClaim(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		if _, err := c.b.AsMade(t.Context(), interruptedNode()); err != nil {
			t.Fatal(err)
		}
		c.wantCalls("get nodeclaims")
		c.request(&rec)
		if slices.ContainsFunc(c.Actions(), func(a clienttesting.Action) bool { return a.Matches("get", "nodeclaims") }) {
			t.Error("the claim is read a second time")
		}
		time.Sleep(sourceTTL)
		c.ClearActions()
		if _, err := c.b.AsMade(t.Context(), interruptedNode()); err != nil {
			t.Fatal(err)
		}
		c.wantCalls("get nodeclaims")
	})
}

func TestKarpenterIsNotThere(t *testing.T) {
	absent := apierrors.NewGenericServerResponse(404, "get", nodePoolResource.GroupResource(), "spot", "404 page not found", 0, true)
	forbidden := apierrors.NewForbidden(nodePoolResource.GroupResource(), "spot", errors.New("no RBAC"))
	for name, tt := range map[string]struct {
		verb, resource string
		err            error
		reason         string
	}{
		"not installed":        {"list", "nodepools", absent, "not installed"},
		"no reading of pools":  {"list", "nodepools", forbidden, "the API server forbids it: no RBAC"},
		"no reading of claims": {"get", "nodeclaims", forbidden, "the API server forbids it: no RBAC"},
		"no creating":          {"create", "nodeclaims", apierrors.NewForbidden(nodeClaimResource.GroupResource(), "", errors.New("no RBAC")), "the API server forbids it: no RBAC"},
	} {
		bubble(t, name, func(t *testing.T) {
			c, calls, broken := newCluster(t, Options{}), 0, true
			c.PrependReactor(tt.verb, tt.resource, func(clienttesting.Action) (bool, runtime.Object, error) {
				calls++
				return broken, nil, tt.err
			})
			for i := range 20 {
				rec, node := record(), interruptedNode()
				rec.Instance, node.Name = fmt.Sprintf("i-%d", i), fmt.Sprintf("node-%d", i)
				r, err := c.p.Request(t.Context(), node, rec, need())
				if err != nil {
					t.Fatal(err)
				}
				wantState(t, r, provisioner.StateUnsupported, tt.reason)
			}
			if calls != 1 {
				t.Errorf("%d calls, want 1", calls)
			}
			if lines := strings.Count(c.log.String(), "\n"); lines != 1 {
				t.Errorf("%d log lines, want 1:\n%s", lines, c.log.String())
			}
			c.wantCount("unsupported", 20)
			broken = false
			time.Sleep(recheck)
			rec := record()
			wantState(t, c.request(&rec), provisioner.StateRequested, "")
		})
	}
}
