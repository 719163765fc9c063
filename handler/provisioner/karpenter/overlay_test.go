package karpenter

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"spot-handler/handler/offerings"
)

// overlays are the names of all there are.
func (c *cluster) overlays() (names []string) {
	c.t.Helper()
	list, err := c.Tracker().List(nodeOverlayResource, nodeOverlayResource.GroupVersion().WithKind("NodeOverlay"), "")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, u := range list.(*unstructured.UnstructuredList).Items {
		names = append(names, u.GetName())
	}
	slices.Sort(names)
	return names
}

func (c *cluster) wantOverlays(want ...string) {
	c.t.Helper()
	time.Sleep(overlaysEvery)
	synctest.Wait()
	if got := c.overlays(); !slices.Equal(got, want) {
		c.t.Errorf("overlays %q, want %q", got, want)
	}
}

// An offering that was lost has an overlay for as long as it is avoided, whichever pools have lost it.
// What an earlier process has left is found, and goes when it is not needed, but not before it is known
// what that process has lost. Overlays of others are left alone.
func TestLostOfferingsLookDearer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours := map[string]string{"app.kubernetes.io/managed-by": "spot-handler"}
		c := newCluster(t, Options{RaisePrices: true})
		kept, gone := "spot-handler-m5.large-eu-west-1b", "spot-handler-m5.large-eu-west-1a"
		for name, labels := range map[string]map[string]string{kept: ours, gone: ours, "theirs": nil} {
			u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay"}}
			u.SetName(name)
			u.SetLabels(labels)
			if err := c.Tracker().Create(nodeOverlayResource, u, ""); err != nil {
				t.Fatal(err)
			}
		}
		c.lose()
		c.wantOverlays(gone, kept, "theirs")
		if calls := c.calls(); calls != nil {
			t.Errorf("calls %q before it is known what was lost", calls)
		}
		c.remember()
		c.wantOverlays(kept, "theirs")
		c.wantCalls("delete nodeoverlays")

		for _, pool := range []string{"spot", "other"} {
			node := offered()
			node.Name, node.Labels[nodePoolLabel], node.Labels[corev1.LabelInstanceTypeStable] = pool, pool, "c5.large"
			c.taken.Note(node, record())
		}
		created := "spot-handler-c5.large-eu-west-1b"
		c.wantOverlays(created, kept, "theirs")
		c.wantCalls("create nodeoverlays")
		got, err := c.Tracker().Get(nodeOverlayResource, "", created)
		if err != nil {
			t.Fatal(err)
		}
		spec, err := json.Marshal(got.(*unstructured.Unstructured).Object["spec"])
		want := `{"priceAdjustment":"+50%","requirements":[` +
			`{"key":"node.kubernetes.io/instance-type","operator":"In","values":["c5.large"]},` +
			`{"key":"topology.kubernetes.io/zone","operator":"In","values":["eu-west-1b"]},` +
			`{"key":"karpenter.sh/capacity-type","operator":"In","values":["spot"]}],"weight":10000}`
		if err != nil || string(spec) != want {
			t.Errorf("spec %s, %v, want %s", spec, err, want)
		}

		time.Sleep(offerings.Lately)
		c.wantOverlays("theirs")
		c.wantCalls("delete nodeoverlays", "delete nodeoverlays")
	})
}

// A name that no object can have is left out, and so is what would be too many. One that the API server
// refuses does not stop the others, and is tried again.
func TestOverlaysAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, Options{RaisePrices: true})
		c.remember()
		refused := true
		c.PrependReactor("create", "nodeoverlays", func(a clienttesting.Action) (bool, runtime.Object, error) {
			name := a.(clienttesting.CreateAction).GetObject().(metav1.Object).GetName()
			return refused && strings.Contains(name, "t10."), nil, errors.New("refused")
		})
		lose := func(kind string) {
			node := offered()
			node.Name, node.Labels[corev1.LabelInstanceTypeStable] = kind, kind
			c.taken.Note(node, record())
		}
		lose("a_b")
		for i := range 2 * maxOverlays {
			lose(fmt.Sprintf("t%02d.large", i))
		}
		time.Sleep(overlaysEvery)
		synctest.Wait()
		if n := len(c.overlays()); n != maxOverlays-1 || !strings.Contains(c.log.String(), `create NodeOverlay \"spot-handler-t10.large-eu-west-1b\": refused`) {
			t.Errorf("%d overlays, want %d and a log of the one that was refused:\n%s", n, maxOverlays-1, &c.log)
		}
		refused = false
		time.Sleep(recheck)
		synctest.Wait()
		if n := len(c.overlays()); n != maxOverlays {
			t.Errorf("%d overlays, want %d", n, maxOverlays)
		}
	})
}

// Karpenter before 1.7 has no overlays, and RBAC may forbid them. Neither is worth a warning.
func TestWithoutOverlays(t *testing.T) {
	for name, err := range map[string]error{
		"no such API": apierrors.NewGenericServerResponse(404, "list", nodeOverlayResource.GroupResource(), "", "", 0, true),
		"forbidden":   apierrors.NewForbidden(nodeOverlayResource.GroupResource(), "", nil),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, Options{RaisePrices: true})
				lists := 0
				c.PrependReactor("list", "nodeoverlays", func(clienttesting.Action) (bool, runtime.Object, error) { lists++; return true, nil, err })
				c.remember()
				time.Sleep(time.Hour)
				if lists != 1 {
					t.Errorf("%d lists while nothing is lost, want 1", lists)
				}
				c.lose()
				time.Sleep(2*recheck + 2*overlaysEvery)
				if lists != 4 || strings.Contains(c.log.String(), "warn") {
					t.Errorf("%d lists, want 4 and no warning:\n%s", lists, &c.log)
				}
				c.wantOverlays()
			})
		})
	}
}
