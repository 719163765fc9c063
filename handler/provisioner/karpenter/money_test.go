package karpenter

import (
	"fmt"
	"os"
	"path/filepath"
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

	"spot-handler/handler/provisioner"
)

// asks is how much of the resource the NodeClaim asks for; "" if it asks for none, or there is no claim.
func (c *cluster) asks(resource string) string {
	c.t.Helper()
	u := c.now()
	if u == nil {
		return ""
	}
	text, _, _ := unstructured.NestedString(u.Object, "spec", "resources", "requests", resource)
	return text
}

// required is a requirement of the NodeClaim, as text.
func (c *cluster) required(key string) string {
	c.t.Helper()
	for _, r := range decodeClaim(c.now()).Spec.Requirements {
		if r.Key == key {
			return r.Operator + " " + strings.Join(r.Values, ",")
		}
	}
	return ""
}

// replacing is how many NodeClaims replace the node.
func (c *cluster) replacing() int {
	c.t.Helper()
	list, err := c.Resource(nodeClaimResource).List(c.t.Context(), metav1.ListOptions{LabelSelector: ReplacesLabel})
	if err != nil {
		c.t.Fatal(err)
	}
	return len(list.Items)
}

// roomy is the node's NodeClaim, of which pods can have this much.
func roomy(cpu, memory string) *unstructured.Unstructured {
	source := sourceNodeClaim()
	set(map[string]any{"cpu": cpu, "memory": memory, "pods": "58"}, "status", "allocatable")(source)
	source.SetLabels(map[string]string{
		nodePoolLabel: "spot", capacityTypeLabel: "spot", corev1.LabelTopologyZone: "eu-west-1b",
		corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux",
	})
	return source
}

func limits(cpu string) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) {
		set(map[string]any{"cpu": cpu}, "spec", "limits")(u)
		set(map[string]any{}, "status", "resources")(u)
	}
}

// The pods ask for 850m of CPU and 1344Mi. What the pool's limit leaves decides, and not how large the
// interrupted node was.
func TestSizedByWhatIsAskedFor(t *testing.T) {
	for name, tt := range map[string]struct {
		node, limit string // CPUs
		types       string // that the claim may be
		below       string // the CPUs that they may have
		full        bool
	}{
		"a nearly empty large node":        {"64", "50", "", "", false},
		"no limit, a nearly empty node":    {"64", "", "", "", false},
		"little is left":                   {"64", "1", "", "Lt 2", false},
		"less is left than is asked for":   {"64", "800m", "", "", true},
		"as large as its pods":             {"1600m", "50", "In c6i.large,m5.large,m6i.large", "", false},
		"as large, and too large for this": {"1600m", "1", "", "Lt 2", false},
	} {
		bubble(t, name, func(t *testing.T) {
			fallback := []func(*unstructured.Unstructured){requires(`[]`)}
			if tt.limit != "" {
				fallback = append(fallback, limits(tt.limit))
			}
			c, rec := newCluster(t, Options{}, sourcePool(), fallbackPool(t, fallback...), roomy(tt.node, "256Gi")), record()
			if tt.node != "64" {
				c = newCluster(t, Options{}, sourcePool(), fallbackPool(t, fallback...), roomy(tt.node, "2Gi"))
			}
			r := c.request(&rec)
			if (r.State == provisioner.StateFailed) != tt.full {
				t.Fatalf("%+v; want it refused: %v", r, tt.full)
			}
			if tt.full {
				return
			}
			types := strings.Split(strings.TrimPrefix(c.required(corev1.LabelInstanceTypeStable), "In "), ",")
			got := strings.Join(distinct(types), ",")
			if got != strings.TrimPrefix(tt.types, "In ") || c.required("karpenter.k8s.aws/instance-cpu") != tt.below {
				t.Errorf("types %q with %q CPUs, want %q and %q", got, c.required("karpenter.k8s.aws/instance-cpu"), tt.types, tt.below)
			}
			if tt.types == "" && c.required(corev1.LabelArchStable) != "In amd64" {
				t.Errorf("architecture %q: want that of the pods' node", c.required(corev1.LabelArchStable))
			}
			if c.asks("cpu") != "850m" {
				t.Errorf("asks for %s", c.asks("cpu"))
			}
		})
	}
}

// What a tenant can have a replacement ask for: DaemonSets without a running pod nothing, others
// together half of the interrupted node, and pods that it puts on that node no more than the node has.
func TestMoneyOfATenant(t *testing.T) {
	theirs := func(name, cpu string, ready int64) *unstructured.Unstructured {
		u := daemonSet(name, cpu, "on-demand")
		u.SetNamespace("tenant")
		set(ready, "status", "numberReady")(u)
		return u
	}
	gpu := theirs("gpu", "0", 9)
	containers, _, _ := unstructured.NestedSlice(gpu.Object, "spec", "template", "spec", "containers")
	containers[0].(map[string]any)["resources"] = map[string]any{"requests": map[string]any{"nvidia.com/gpu": "8"}}
	set(containers, "spec", "template", "spec", "containers")(gpu)

	for name, tt := range map[string]struct {
		objects []runtime.Object
		pods    int // of 1 CPU each, beyond those of the node
		limit   string
		want    string // CPUs
	}{
		"nothing":                          {nil, 0, "", "850m"},
		"DaemonSets without a pod":         {[]runtime.Object{theirs("a", "90", 0), theirs("b", "90", 0)}, 0, "", "850m"},
		"DaemonSets with pods":             {[]runtime.Object{theirs("a", "90", 1), theirs("b", "90", 1)}, 0, "", "4850m"},
		"a small one with pods":            {[]runtime.Object{theirs("a", "1", 1)}, 0, "", "1850m"},
		"GPUs":                             {[]runtime.Object{gpu}, 0, "", "850m"},
		"if no pool has room for them":     {[]runtime.Object{theirs("a", "90", 1)}, 0, "3", "850m"},
		"pods beyond what the node has":    {nil, 100, "", "8"},
		"all of that":                      {[]runtime.Object{theirs("a", "90", 1)}, 100, "", "12"},
		"the cluster's own without a pod ": {[]runtime.Object{daemonSet("agent", "1", "on-demand")}, 0, "", "1850m"},
	} {
		bubble(t, name, func(t *testing.T) {
			fallback := requires(`[]`)
			if tt.limit != "" {
				fallback = func(u *unstructured.Unstructured) { requires(`[]`)(u); limits(tt.limit)(u) }
			}
			c := newCluster(t, Options{}, append(tt.objects, sourcePool(), fallbackPool(t, fallback), roomy("8", "32Gi"))...)
			n := need()
			for range tt.pods {
				n.Moving = append(n.Moving, pod(container("1", "")))
				n.Moving[len(n.Moving)-1].Spec.Tolerations = n.Moving[0].Spec.Tolerations
			}
			if _, err := c.p.Request(t.Context(), interruptedNode(), record(), n); err != nil {
				t.Fatal(err)
			}
			if got := c.asks("cpu"); got != tt.want || c.asks("nvidia.com/gpu") != "" {
				t.Errorf("the claim asks for %s of CPU and %q GPUs, want %s and none", got, c.asks("nvidia.com/gpu"), tt.want)
			}
		})
	}
}

// What a node's kubelet can have the cluster buy: it drops its record's replacement, writes labels of
// other pools and capacity types, and pretends to be interrupted again and again.
func TestMoneyOfANode(t *testing.T) {
	const pools = 10
	bubble(t, "", func(t *testing.T) {
		var objects []runtime.Object
		for i := range pools {
			fallback := fallbackPool(t)
			fallback.SetName(fmt.Sprint("fallback-", i))
			source := sourcePool()
			source.SetName(fmt.Sprint("spot-", i))
			source.SetAnnotations(map[string]string{FallbackAnnotation: fallback.GetName()})
			objects = append(objects, fallback, source)
		}
		own := roomy("8", "32Gi")
		own.SetLabels(nil) // of an old version of Karpenter, say: the pool is what the kubelet says
		c := newCluster(t, Options{}, append(objects, own)...)
		ask := func(i int) {
			node := interruptedNode()
			node.Labels[nodePoolLabel] = fmt.Sprint("spot-", i%pools)
			node.Labels[corev1.LabelInstanceTypeStable] = fmt.Sprint("type-", i)
			if _, err := c.p.Request(t.Context(), node, record(), need()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		for i := range 2 * pools {
			ask(i)
			time.Sleep(time.Second)
		}
		if n := c.replacing(); n != 1 {
			t.Errorf("%d NodeClaims replace one instance, want 1", n)
		}
		for i := range 5 * pools { // pods use each, so that the next is for another interruption
			list, _ := c.Resource(nodeClaimResource).List(t.Context(), metav1.ListOptions{LabelSelector: unsettled})
			for _, u := range list.Items {
				labels := u.GetLabels()
				labels[SettledLabel] = settledUsed
				u.SetLabels(labels)
				if err := c.Tracker().Update(nodeClaimResource, &u, ""); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			time.Sleep(poolTTL)
			ask(i)
		}
		if n := c.replacing(); n != 3 {
			t.Errorf("%d NodeClaims replace one instance, want 3", n)
		}
	})
}

// For pool, type and zone, the NodeClaim overrides the node's own labels.
func TestLabelsOfTheNodeClaimGoFirst(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		other := fallbackPool(t)
		other.SetName("dear")
		lure := sourcePool()
		lure.SetName("lure")
		lure.SetAnnotations(map[string]string{FallbackAnnotation: "dear"})
		c := newCluster(t, Options{}, sourcePool(), fallbackPool(t), lure, other, roomy("8", "32Gi"))
		node := interruptedNode()
		node.Labels[nodePoolLabel] = "lure"
		node.Labels[corev1.LabelTopologyZone] = "eu-west-1a"
		n := need()
		n.Moving[0].Spec.Volumes = withVolume().Spec.Volumes
		r, err := c.p.Request(t.Context(), node, record(), n)
		if err != nil || r.Pool != "fallback" || c.required(corev1.LabelTopologyZone) != "In eu-west-1b" {
			t.Errorf("%+v, %v; zone %q; want pool fallback, and the claim's zone", r, err, c.required(corev1.LabelTopologyZone))
		}
	})
}

// While the node's NodeClaim can't be read, its own labels don't count for it.
func TestLabelsOfANodeWhoseClaimCannotBeRead(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c := newCluster(t, Options{}, sourcePool(), fallbackPool(t), roomy("8", "32Gi"))
		broken := true
		c.PrependReactor("get", "nodeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			return broken, nil, apierrors.NewServiceUnavailable("starting")
		})
		node := interruptedNode()
		node.Labels[nodePoolLabel] = "lure"
		if made, err := c.b.AsMade(t.Context(), node); err == nil {
			t.Errorf("it is of pool %s, want an error", made.Labels[nodePoolLabel])
		}
		if r, err := c.p.Request(t.Context(), node, record(), need()); err == nil || c.replacing() > 0 {
			t.Errorf("%+v, want an error and no NodeClaim", r)
		}
		broken = false
		if made, err := c.b.AsMade(t.Context(), node); err != nil || made.Labels[nodePoolLabel] != "spot" {
			t.Errorf("%v, want one of pool spot: %v", made, err)
		}
	})
}

// The security policy says what a tenant and a node can make the cluster buy.
func TestMoneyInTheSecurityPolicy(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", ".github", "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{
		"larger by at most half of that node",                         // TestMoneyOfATenant
		"one NodeClaim at a time and at most 3 NodeClaims altogether", // TestMoneyOfANode
	} {
		if !strings.Contains(strings.Join(strings.Fields(string(text)), " "), words) {
			t.Errorf("SECURITY.md does not say %q", words)
		}
	}
}
