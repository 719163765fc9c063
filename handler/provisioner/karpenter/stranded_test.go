package karpenter

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"spot-handler/handler/provisioner"
)

func podNamed(name, app string) *corev1.Pod {
	p := pod(container("1", ""))
	p.Name, p.Labels = name, map[string]string{"app": app}
	return p
}

func disruptionBudget(app string, spec map[string]any) *unstructured.Unstructured {
	spec["selector"] = map[string]any{"matchLabels": map[string]any{"app": app}}
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": spec}}
	u.SetNamespace("default")
	u.SetName(app + strings.ReplaceAll(strings.ToLower(strings.Join(strings.Fields(keys(spec)), "")), ",", ""))
	return u
}

func keys(m map[string]any) string {
	var list []string
	for k := range m {
		list = append(list, k)
	}
	slices.Sort(list)
	return strings.Join(list, ",")
}

// What Karpenter moves by itself is left to it; what it leaves behind is not.
func TestStranded(t *testing.T) {
	pinned, timed, open := podNamed("pinned", "x"), podNamed("timed", "x"), podNamed("open", "x")
	pinned.Annotations = map[string]string{doNotDisrupt: "true"}
	timed.Annotations = map[string]string{doNotDisrupt: "10m"}
	open.Annotations = map[string]string{doNotDisrupt: "false"}
	notReady := podNamed("not-ready", "lenient")
	notReady.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	pods := []*corev1.Pod{
		pinned, timed, open, podNamed("free", "x"), podNamed("none", "none"), podNamed("percent", "percent"), podNamed("all", "all"),
		podNamed("some", "some"), podNamed("two", "two"), notReady,
	}
	budgets := []runtime.Object{
		disruptionBudget("none", map[string]any{"maxUnavailable": int64(0)}),
		disruptionBudget("percent", map[string]any{"maxUnavailable": "0%"}),
		disruptionBudget("all", map[string]any{"minAvailable": "100%"}),
		disruptionBudget("some", map[string]any{"maxUnavailable": int64(1)}),
		disruptionBudget("two", map[string]any{"maxUnavailable": int64(1)}),
		disruptionBudget("two", map[string]any{"minAvailable": int64(1)}),
		disruptionBudget("lenient", map[string]any{"maxUnavailable": int64(0), "unhealthyPodEvictionPolicy": "AlwaysAllow"}),
	}
	want := []string{"pinned", "timed", "none", "percent", "all", "two"}
	for name, by := range map[string]func(*unstructured.Unstructured, *corev1.Node){
		"claim deleting": func(u *unstructured.Unstructured, _ *corev1.Node) {
			now := metav1.Now()
			u.SetDeletionTimestamp(&now)
		},
		"node tainted": func(_ *unstructured.Unstructured, n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: disruptedTaint, Effect: corev1.TaintEffectNoSchedule}}
		},
	} {
		bubble(t, name, func(t *testing.T) {
			claim, node := sourceNodeClaim(), interruptedNode()
			by(claim, node)
			c := newCluster(t, Options{}, append([]runtime.Object{sourcePool(), fallbackPool(t), claim}, budgets...)...)
			time.Sleep(2 * time.Second)
			r, err := c.p.Request(t.Context(), node, record(), provisioner.Need{Moving: pods})
			if err != nil || r.State != provisioner.StateRequested || !strings.Contains(r.Reason, "only for the 6 of 10 pods that Karpenter leaves behind") {
				t.Fatalf("Request: %+v, %v", r, err)
			}
			stranded, err := (&Backend{opts: Options{Dynamic: c.FakeDynamicClient}}).stranded(t.Context(), pods)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, p := range stranded {
				names = append(names, p.Name)
			}
			if !slices.Equal(names, want) {
				t.Errorf("left behind %q, want %q", names, want)
			}
		})
	}
	bubble(t, "nothing is left behind", func(t *testing.T) {
		node := interruptedNode()
		node.Spec.Taints = []corev1.Taint{{Key: disruptedTaint, Effect: corev1.TaintEffectNoSchedule}}
		c, rec := newCluster(t, Options{}), record()
		r, err := c.p.Request(t.Context(), node, rec, need())
		if err != nil {
			t.Fatal(err)
		}
		wantState(t, r, provisioner.StateUnsupported, reasonDisrupting)
		rec.Replacement = &r
		time.Sleep(refusedFor)
		wantState(t, c.request(&rec), provisioner.StateRequested, "") // Karpenter thought better of it
	})
}

// Budgets that can't be read now are read later: without them, pods that they block would be left behind.
// If the permission is missing, that is said once, and no budget blocks.
func TestUnreadableBudgets(t *testing.T) {
	ended := func() *corev1.Node {
		node := interruptedNode()
		node.Spec.Taints = []corev1.Taint{{Key: disruptedTaint, Effect: corev1.TaintEffectNoSchedule}}
		return node
	}
	blocked := func(t *testing.T, err error) *cluster {
		c := newCluster(t, Options{}, sourcePool(), fallbackPool(t), sourceNodeClaim(), disruptionBudget("none", map[string]any{"maxUnavailable": int64(0)}))
		c.PrependReactor("list", "poddisruptionbudgets", func(clienttesting.Action) (bool, runtime.Object, error) {
			return err != nil, nil, err
		})
		return c
	}
	moving := provisioner.Need{Moving: []*corev1.Pod{podNamed("a", "none")}}
	bubble(t, "for a moment", func(t *testing.T) {
		c := blocked(t, apierrors.NewInternalError(errors.New("etcd has no leader")))
		if r, err := c.p.Request(t.Context(), ended(), record(), moving); err == nil {
			t.Errorf("replacement %+v, want an error, so that it's tried again", r)
		}
	})
	bubble(t, "for want of permission", func(t *testing.T) {
		c := blocked(t, apierrors.NewForbidden(policyv1.Resource("poddisruptionbudgets"), "", nil))
		for range 3 {
			r, err := c.p.Request(t.Context(), ended(), record(), moving)
			if err != nil {
				t.Fatal(err)
			}
			wantState(t, r, provisioner.StateUnsupported, reasonDisrupting)
		}
		if n := strings.Count(c.log.String(), "PDBs not read"); n != 1 {
			t.Errorf("said %d times", n)
		}
	})
}
