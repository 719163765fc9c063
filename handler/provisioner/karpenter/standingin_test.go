package karpenter

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
)

// noConfigMaps is where a memory finds nothing.
type noConfigMaps struct{}

var _ offerings.ConfigMaps = noConfigMaps{}

func (noConfigMaps) Get(context.Context, string, metav1.GetOptions) (*corev1.ConfigMap, error) {
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, offerings.ConfigMap)
}

func (noConfigMaps) Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*corev1.ConfigMap, error) {
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, offerings.ConfigMap)
}

// remember keeps the memory until the test ends.
func (c *cluster) remember() {
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.taken.Keep(ctx, noConfigMaps{}, func() []*corev1.Node { return nil }, zerolog.Nop())
	}()
	c.t.Cleanup(func() { cancel(); <-done })
	synctest.Wait()
}

// offered is the interrupted node with the labels of an offering.
func offered() *corev1.Node {
	node := interruptedNode()
	node.Labels[corev1.LabelInstanceTypeStable], node.Labels[capacityTypeLabel] = "m5.large", spot
	return node
}

// lose has EC2 take a node of the source pool.
func (c *cluster) lose() {
	rec := record()
	c.taken.Note(anotherInstance(offered()), rec)
}

// oneOffering is the source pool with the offering of [offered] alone.
func oneOffering() *unstructured.Unstructured {
	u := sourcePool()
	requires(`[{"key":"node.kubernetes.io/instance-type","operator":"In","values":["m5.large"]},
		{"key":"topology.kubernetes.io/zone","operator":"In","values":["eu-west-1b"]}]`)(u)
	return u
}

// standingIn is a cluster with a replacement on which its pods are, held for the source pool. The way back is
// left to Karpenter.
func standingIn(t *testing.T, change ...func(*unstructured.Unstructured)) *cluster {
	t.Helper()
	c, rec := newCluster(t, Options{TTL: 10 * time.Minute}, oneOffering(), fallbackPool(t, change...), sourceNodeClaim()), record()
	c.remember()
	c.lose()
	c.nodes.put(withRecord(offered(), rec))
	if _, err := c.p.Request(t.Context(), offered(), rec, need()); err != nil {
		t.Fatal(err)
	}
	c.ready()
	c.nodes.land(pod(), pod())
	time.Sleep(landingCheck)
	c.wantProtected(true)
	rec.Phase = interruption.Released
	c.nodes.put(withRecord(offered(), rec))
	return c
}

func (c *cluster) annotate(pool, key string, value any) {
	c.t.Helper()
	u, err := c.Tracker().Get(nodePoolResource, "", pool)
	if err != nil {
		c.t.Fatal(err)
	}
	changed := u.(*unstructured.Unstructured).DeepCopy()
	set(value, "metadata", "annotations", key)(changed)
	if err := c.Tracker().Update(nodePoolResource, changed, ""); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) wantHeldSeconds(want, within time.Duration) {
	c.t.Helper()
	var m dto.Metric
	if err := c.b.keeper.held.seconds.Write(&m); err != nil {
		c.t.Fatal(err)
	}
	got := time.Duration(m.GetCounter().GetValue() * float64(time.Second))
	if got < want-within || got > want {
		c.t.Errorf("held for %s, want %s", got, want)
	}
}

// claimsHeld are replacements that an earlier process holds for the source pool.
func claimsHeld(t *testing.T, count int) (objects []runtime.Object) {
	t.Helper()
	for i := range count {
		o := newOrder(t)
		o.until, o.lost.node, o.lost.pool, o.lost.holds = time.Now().Add(2*time.Minute), offered(), "spot", true
		o.lost.rec.Instance = fmt.Sprint(instance, i)
		claim := built(t, o)
		claim.SetUID(types.UID(fmt.Sprint("uid-", i)))
		claim.SetCreationTimestamp(metav1.Now())
		var conditions []any
		for _, kind := range []string{"Launched", "Initialized"} {
			conditions = append(conditions, map[string]any{"type": kind, "status": "True", "lastTransitionTime": time.Now().UTC().Format(time.RFC3339)})
		}
		set(conditions, "status", "conditions")(claim)
		set(replacementNode, "status", "nodeName")(claim)
		objects = append(objects, claim)
	}
	return objects
}

// wantHeld compares how many claims are kept from consolidation.
func (c *cluster) wantHeld(want int) {
	c.t.Helper()
	synctest.Wait()
	list, err := c.Tracker().List(nodeClaimResource, nodeClaimResource.GroupVersion().WithKind("NodeClaim"), "")
	if err != nil {
		c.t.Fatal(err)
	}
	got := 0
	for _, u := range list.(*unstructured.UnstructuredList).Items {
		if u.GetAnnotations()[doNotDisrupt] != "" {
			got++
		}
	}
	if got != want {
		c.t.Errorf("%d are held, want %d", got, want)
	}
}
