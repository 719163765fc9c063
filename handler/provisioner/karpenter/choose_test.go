package karpenter

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"spot-handler/handler/provisioner"
)

func TestChoice(t *testing.T) {
	without := func(path ...string) func(*unstructured.Unstructured) {
		return func(u *unstructured.Unstructured) { unstructured.RemoveNestedField(u.Object, path...) }
	}
	notReady := set([]any{map[string]any{"type": "Ready", "status": "False", "message": "node class gone"}}, "status", "conditions")
	deleting := func(u *unstructured.Unstructured) {
		now := metav1.Now()
		u.SetDeletionTimestamp(&now)
	}
	bare := func(u *unstructured.Unstructured) { u.SetAnnotations(nil) }
	type objects struct {
		source, fallback, claim []func(*unstructured.Unstructured)
	}
	type changes = []func(*unstructured.Unstructured)
	for name, tt := range map[string]struct {
		opts    Options
		objects objects
		node    func(*corev1.Node)
		need    *provisioner.Need
		state   string
		reason  string
	}{
		"annotation":                {state: provisioner.StateRequested},
		"flag":                      {opts: Options{FallbackNodePools: map[string]string{"spot": "fallback"}}, objects: objects{source: changes{bare}}, state: provisioner.StateRequested},
		"annotation overrides flag": {opts: Options{FallbackNodePools: map[string]string{"spot": "nowhere"}}, state: provisioner.StateRequested},
		"flag of another pool":      {opts: Options{FallbackNodePools: map[string]string{"batch": "fallback"}}, objects: objects{source: changes{bare}}, state: provisioner.StateRequested},
		"nothing named":             {objects: objects{source: changes{bare}}, state: provisioner.StateRequested},
		"source pool unreadable":    {objects: objects{source: changes{set("many", "spec", "limits")}}, state: provisioner.StateRequested},
		"named pool does not exist": {opts: Options{FallbackNodePools: map[string]string{"spot": "nowhere"}}, objects: objects{source: changes{bare}}, state: provisioner.StateFailed, reason: "NodePool nowhere, named by --fallback-nodepool, does not exist"},
		"static":                    {objects: objects{fallback: changes{set(int64(3), "spec", "replicas")}}, state: provisioner.StateFailed, reason: "static"},
		"not Ready":                 {objects: objects{fallback: changes{notReady}}, state: provisioner.StateFailed, reason: "NodePool fallback, named by annotation spot-handler/fallback-nodepool of NodePool spot, is not Ready: node class gone"},
		"no status":                 {objects: objects{fallback: changes{without("status")}}, state: provisioner.StateFailed, reason: "not Ready"},
		"deleting":                  {objects: objects{fallback: changes{deleting}}, state: provisioner.StateFailed, reason: "deleted"},
		"no node class":             {objects: objects{fallback: changes{without("spec", "template", "spec", "nodeClassRef")}}, state: provisioner.StateFailed, reason: "nodeClassRef"},
		"no template":               {objects: objects{fallback: changes{without("spec", "template")}}, state: provisioner.StateFailed, reason: "nodeClassRef"},
		"hostile template":          {objects: objects{fallback: changes{set("x", "spec", "template")}}, state: provisioner.StateFailed, reason: "cannot be read"},
		"hostile requirements":      {objects: objects{fallback: changes{set([]any{"x"}, "spec", "template", "spec", "requirements")}}, state: provisioner.StateFailed, reason: "cannot be read"},
		"no room":                   {objects: objects{fallback: changes{set("100500m", "spec", "limits", "cpu")}}, state: provisioner.StateFailed, reason: "limit of NodePool fallback leaves no room (cpu: 100 used, 850m asked for, limit 100500m)"},
		"the same pool":             {opts: Options{FallbackNodePools: map[string]string{"fallback": "fallback"}}, node: func(n *corev1.Node) { n.Labels[nodePoolLabel] = "fallback" }, state: provisioner.StateRequested},
		"not Karpenter's":           {node: func(n *corev1.Node) { n.Labels, n.OwnerReferences = nil, nil }, state: provisioner.StateUnsupported, reason: reasonNotMade},
		"another's NodeClaim":       {node: func(n *corev1.Node) { n.Labels, n.OwnerReferences[0].APIVersion = nil, "example.com/v1" }, state: provisioner.StateUnsupported, reason: reasonNotMade},
		"label alone":               {node: func(n *corev1.Node) { n.OwnerReferences = nil }, state: provisioner.StateRequested},
		"owner alone":               {node: func(n *corev1.Node) { n.Labels = nil }, state: provisioner.StateUnsupported, reason: reasonNoPool},
		"nothing moves":             {need: &provisioner.Need{Daemons: need().Daemons}, state: provisioner.StateUnsupported, reason: reasonNoMoving},
		"claim deleting":            {objects: objects{claim: changes{deleting}}, state: provisioner.StateUnsupported, reason: reasonReplacing},
		"another claim deleting":    {objects: objects{claim: changes{deleting, func(u *unstructured.Unstructured) { u.SetUID("other") }}}, state: provisioner.StateRequested},
		"hostile claim":             {objects: objects{claim: changes{set("x", "spec")}}, state: provisioner.StateRequested},
	} {
		bubble(t, name, func(t *testing.T) {
			source, claim := sourcePool(), sourceNodeClaim()
			for _, f := range tt.objects.source {
				f(source)
			}
			for _, f := range tt.objects.claim {
				f(claim)
			}
			c := newCluster(t, tt.opts, source, fallbackPool(t, tt.objects.fallback...), claim)
			time.Sleep(2 * time.Second)
			rec, node, n := record(), interruptedNode(), need()
			if tt.node != nil {
				tt.node(node)
			}
			if tt.need != nil {
				n = *tt.need
			}
			chosen, err := c.p.Request(t.Context(), node, rec, n)
			if err != nil {
				t.Fatal(err)
			}
			wantState(t, chosen, tt.state, tt.reason)
			refused := c.limitRefusals()
			if full := strings.HasPrefix(tt.reason, "limit of NodePool fallback"); (refused > 0) != full {
				t.Errorf("%v refusals by the limits of a fallback pool counted", refused)
			}
			for range 2 { // level-triggered
				rec.Replacement = &chosen
				got, err := c.p.Request(t.Context(), node, rec, n)
				if err != nil {
					t.Fatal(err)
				}
				if got != chosen {
					t.Errorf("asked again: %+v, want %+v", got, chosen)
				}
			}
			c.wantCount(strings.ToLower(tt.state), 1)
			if lines := strings.Count(c.log.String(), "\n"); lines != 1 {
				t.Errorf("%d log lines, want 1:\n%s", lines, c.log.String())
			}
		})
	}
}

// What was said stays when the pods have left.
func TestFailureOutlastsThePods(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c, rec := automatic(t, Options{}, plain(t, "a", 40, set(map[string]any{"cpu": "100"}, "spec", "limits"))), record()
		before := c.request(&rec)
		wantState(t, before, provisioner.StateFailed, "leaves no room")
		after, err := c.p.Request(t.Context(), interruptedNode(), rec, provisioner.Need{})
		if err != nil || after != before {
			t.Errorf("Request: %+v, %v; want %+v", after, err, before)
		}
	})
}
