package stories

import (
	"fmt"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"spot-handler/e2e/controlplane"
	"spot-handler/handler/offerings"
)

// RBAC lets an account that may patch an object change all of it, and a pod of the DaemonSet every
// Node. The chart's admission policies hold the accounts to what the program changes, and the
// DaemonSet to its own Node, by the name of the node in its token. Each attempt is made with the
// token of the account.
func TestTokensChangeOnlyWhatIsTheirs(t *testing.T) {
	s := newStoryApart(t, controlplane.Options{Karpenter: true})
	nodes, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 2})
	s.must(err)
	own, other := nodes[0].Name, nodes[1].Name
	s.patchNode(other, "status", `{"status":{"conditions":[{"type":"MaintenancePlanned","status":"True","reason":"KernelUpdate"}]}}`)
	pod, err := s.cluster.Client.CoreV1().Pods("default").Create(s.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"app": "web", "pod-template-hash": "a1", "version": "1"}, Finalizers: []string{"example.com/kept"}},
		Spec:       corev1.PodSpec{NodeName: own, Containers: []corev1.Container{{Name: "app", Image: "fake"}}},
	}, metav1.CreateOptions{})
	s.must(err)
	s.pools(0)
	claim := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
		"metadata": map[string]any{
			"name": "claim", "labels": map[string]any{"karpenter.sh/nodepool": "batch-fallback"},
			"annotations": map[string]any{doNotDisrupt: "true"}, // or Karpenter, whose pool makes other nodes, would end it
		},
		"spec": map[string]any{
			"nodeClassRef": map[string]any{"group": controlplane.NodeClasses.Group, "kind": "KWOKNodeClass", "name": "batch-fallback"},
			"requirements": []any{map[string]any{"key": corev1.LabelInstanceTypeStable, "operator": "In", "values": []any{"s-2x-amd64-linux"}}},
		},
	}}
	_, err = s.cluster.Dynamic.Resource(controlplane.NodeClaims).Create(s.ctx, claim, metav1.CreateOptions{})
	s.must(err)
	for _, r := range []release{inBothModes, inIMDSMode, inDryRun} {
		s.accounts(r)
	}
	for _, name := range []string{"spot-handler", "another"} {
		_, err = s.cluster.Client.CoordinationV1().Leases(namespace).Create(s.ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		s.must(err)
	}
	mark, unbound := s.person(markAccount, s.podOf(markAccount, own)), s.person(markAccount, "")
	queue, drain := s.person(queueAccount, ""), s.person(drainAccount, "")
	s.policiesAreSound(own, mark, unbound, queue, drain)

	const (
		onlyConditions              = "only spot-handler's own conditions"
		labels, annotations, owners = "a label must not change", "an annotation must not change", "owners and finalizers must not change"
		ours, foreign               = `{"metadata":{"annotations":{"spot-handler/interruption":"{}"}}}`, `{"metadata":{"annotations":{"example.com/touched":"true"}}}`
		shown                       = `{"status":{"conditions":[{"type":"spot-handler/Interrupted","status":"True","reason":"Test"}]}}`
		lift                        = `{"metadata":{"annotations":{"karpenter.sh/do-not-disrupt":null}}}`
	)
	standard := func(kind, reason string) string {
		return fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":"True","reason":%q}]}}`, kind, reason)
	}
	taint := func(key string) string {
		return fmt.Sprintf(`{"spec":{"unschedulable":true,"taints":[{"key":%q,"effect":"NoSchedule"}]}}`, key)
	}
	for _, tt := range []struct {
		who     person
		what    string
		patch   string
		refusal string // "": allowed
	}{
		{mark, "nodes/" + own, ours, ""},
		{mark, "nodes/" + own, taint("spot-handler/interrupted"), ""},
		{mark, "nodes/" + own, `{"metadata":{"labels":{"node.kubernetes.io/exclude-from-external-load-balancers":"spot-handler"}}}`, ""},
		{mark, "nodes/" + own, foreign, annotations},
		{mark, "nodes/" + own, `{"metadata":{"annotations":{"karpenter.sh/do-not-disrupt":"true"}}}`, annotations},
		{mark, "nodes/" + own, `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`, labels},
		{mark, "nodes/" + other, ours, "may change no other node: " + other},
		{unbound, "nodes/" + own, ours, "not bound to a pod on a node"},
		{mark, "pods/web", `{"metadata":{"labels":{"pod-template-hash":"surged-a1"}}}`, "cannot patch resource"},
		{mark, "pods/web/status", `{"status":{"message":"x"}}`, "cannot patch resource"},
		{mark, "nodeclaims/claim", ours, "cannot patch resource"},
		{mark, "leases/spot-handler", foreign, "cannot patch resource"},

		{queue, "nodes/" + other, ours, ""},
		{drain, "nodes/" + other, taint("spot-handler/interrupted"), ""},
		{drain, "nodes/" + other, lift, ""},
		{drain, "nodes/" + other, `{"spec":{"podCIDR":"10.9.0.0/24","podCIDRs":["10.9.0.0/24"]}}`, "of the spec only the cordon"},
		{drain, "nodes/" + other, taint("example.com/other"), "only the taints spot-handler/interrupted"},
		{drain, "nodes/" + other, foreign, annotations},
		{drain, "nodes/" + other, `{"metadata":{"labels":{"kubernetes.io/hostname":null}}}`, labels},
		{drain, "nodes/" + other, `{"metadata":{"finalizers":["example.com/stuck"]}}`, owners},
		{drain, "nodes/" + other, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"web","uid":"none"}]}}`, owners},

		{mark, "nodes/" + own + "/status", shown, "cannot patch resource"},
		{drain, "nodes/" + other + "/status", shown, ""},
		{drain, "nodes/" + other + "/status", `{"status":{"conditions":[{"type":"Ready","status":"False","reason":"Test"}]}}`, onlyConditions},
		{drain, "nodes/" + other + "/status", standard("DrainInProgress", "SpotHandlerTest"), ""},
		{drain, "nodes/" + other + "/status", standard("Drained", "SpotHandlerTest"), ""},
		{drain, "nodes/" + other + "/status", standard("Drained", "Kubectl"), onlyConditions},
		{drain, "nodes/" + other + "/status", standard("MaintenancePlanned", "SpotHandlerTest"), onlyConditions},
		{drain, "nodes/" + other + "/status", `{"status":{"conditions":[{"$patch":"delete","type":"MaintenancePlanned"}]}}`, onlyConditions},
		{drain, "nodes/" + other + "/status", standard("MaintenanceInProgress", "SpotHandlerTest"), onlyConditions},
		{drain, "nodes/" + other + "/status", `{"status":{"conditions":[{"$patch":"delete","type":"Ready"}]}}`, onlyConditions},
		{drain, "nodes/" + other + "/status", ours, ""},
		{drain, "nodes/" + other + "/status", `{"metadata":{"annotations":{"spot-handler/cancel":"true"}}}`, annotations},
		{drain, "nodes/" + other + "/status", `{"status":{"capacity":{"example.com/gpu":"8"}}}`, onlyConditions},
		{drain, "nodes/" + other + "/status", `{"status":{"features":{"supplementalGroupsPolicy":true}}}`, onlyConditions},
		{drain, "nodes/" + other + "/status", `{"metadata":{"labels":{"kubernetes.io/hostname":"x"}}}`, labels},

		{drain, "pods/web", `{"metadata":{"labels":{"pod-template-hash":"b2"}}}`, "pod-template-hash may only become"},
		{drain, "pods/web", `{"metadata":{"labels":{"pod-template-hash":null}}}`, "pod-template-hash must not be removed"},
		{drain, "pods/web", `{"metadata":{"labels":{"pod-template-hash.spot-handler/surged":"b2"}}}`, "may only hold the pod-template-hash that"},
		{drain, "pods/web", `{"metadata":{"labels":{"pod-template-hash":"surged-a1","pod-template-hash.spot-handler/surged":"b2"}}}`, "may only hold the pod-template-hash that"},
		{drain, "pods/web", `{"metadata":{"labels":{"pod-template-hash":"surged-a1","pod-template-hash.spot-handler/surged":"a1"},"annotations":{"spot-handler/surged":"{}"}}}`, ""},
		{drain, "pods/web", `{"metadata":{"labels":{"pod-template-hash":"b2"}}}`, "pod-template-hash may only become"},
		{drain, "pods/web", `{"metadata":{"labels":{"pod-template-hash":null}}}`, "pod-template-hash may only become"},
		{drain, "pods/web", `{"metadata":{"labels":{"pod-template-hash":null,"pod-template-hash.spot-handler/surged":null}}}`, "pod-template-hash may only become"},
		{drain, "pods/web", `{"metadata":{"labels":{"pod-template-hash.spot-handler/surged":"b2"}}}`, "may only hold the pod-template-hash that"},
		{drain, "pods/web", `{"metadata":{"labels":{"pod-template-hash":"a1","pod-template-hash.spot-handler/surged":null},"annotations":{"spot-handler/surged":null}}}`, ""},
		{drain, "pods/web", `{"metadata":{"annotations":{"spot-handler/deadline":"2026-01-01T00:02:00Z","spot-handler/evict-by":"2026-01-01T00:01:20Z"}}}`, ""},
		{drain, "pods/web", `{"metadata":{"annotations":{"spot-handler/when":"now"}}}`, annotations},
		{drain, "pods/web", `{"metadata":{"labels":{"app":"admin"}}}`, labels},
		{drain, "pods/web", `{"metadata":{"labels":{"version":null}}}`, labels},
		{drain, "pods/web", foreign, annotations},
		{drain, "pods/web", `{"metadata":{"finalizers":null}}`, owners},
		{drain, "pods/web", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"x","uid":"none"}]}}`, owners},
		{drain, "pods/web", `{"spec":{"containers":[{"name":"app","image":"miner"}]}}`, "the spec must not change"},
		{drain, "pods/web/status", `{"status":{"conditions":[{"type":"DisruptionTarget","status":"True","reason":"Test"}]}}`, ""},
		{drain, "pods/web/status", `{"status":{"conditions":[{"type":"Ready","status":"False","reason":"Test"}]}}`, "only the condition DisruptionTarget"},
		{drain, "pods/web/status", `{"status":{"phase":"Failed"}}`, "only the condition DisruptionTarget"},
		{drain, "pods/web/status", `{"status":{"message":"evicted"}}`, "only the condition DisruptionTarget"},
		{drain, "pods/web/status", `{"metadata":{"labels":{"app":"admin"}}}`, labels},

		{drain, "nodeclaims/claim", `{"metadata":{"labels":{"spot-handler/settled":"used"},"annotations":{"karpenter.sh/nodeclaim-termination-timestamp":"2026-01-01T00:00:00Z"}}}`, ""},
		{drain, "nodeclaims/claim", foreign, annotations},
		{drain, "nodeclaims/claim", `{"metadata":{"labels":{"karpenter.sh/nodepool":"gpu"}}}`, labels},
		{drain, "nodeclaims/claim", `{"metadata":{"labels":{"spot-handler/replaces":"i-0123456789abcdef0"}}}`, labels},
		{drain, "nodeclaims/claim", `{"metadata":{"finalizers":["example.com/stuck"]}}`, owners},
		{drain, "nodeclaims/claim", lift, ""},

		{drain, "leases/another", foreign, "cannot patch resource"},
		{drain, "configmaps/" + offerings.ConfigMap, `{"data":{"offerings.json":"{}"}}`, ""},
		{drain, "configmaps/another", foreign, "cannot patch resource"},
	} {
		s.attempt(tt.who, tt.what, tt.refusal, tt.who.patch(tt.what, tt.patch, metav1.PatchOptions{}))
	}
	// A version without such a field drops it: then there is nothing to refuse, and the field stays empty.
	for _, patch := range []string{`{"status":{"observedGeneration":7}}`, `{"status":{"resources":{"limits":{"cpu":"1"}}}}`} {
		err := drain.patch("pods/web/status", patch, metav1.PatchOptions{})
		now, got := s.cluster.Client.CoreV1().Pods("default").Get(s.ctx, pod.Name, metav1.GetOptions{})
		s.must(got)
		if err != nil || now.Status.ObservedGeneration == 7 || now.Status.Resources != nil {
			s.attempt(drain, "pods/web/status", "only the condition DisruptionTarget", err)
		}
	}
	s.attempt(mark, "evict a pod of its node", "cannot create resource", mark.CoreV1().Pods("default").EvictV1(s.ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}}))
	for name, refusal := range map[string]string{"spot-handler": "", "another": "only the Lease spot-handler"} {
		leases := drain.CoordinationV1().Leases(namespace)
		lease, err := s.cluster.Client.CoordinationV1().Leases(namespace).Get(s.ctx, name, metav1.GetOptions{})
		s.must(err)
		_, err = leases.Update(s.ctx, lease, metav1.UpdateOptions{})
		s.attempt(drain, "update lease "+name, refusal, err)
	}
	_, err = drain.CoordinationV1().Leases(namespace).Create(s.ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "third"}}, metav1.CreateOptions{})
	s.attempt(drain, "create another lease", "only the Lease spot-handler", err)
}

// attempt checks how one has ended.
func (s *story) attempt(who person, what, refusal string, err error) {
	s.Helper()
	switch {
	case refusal == "" && err != nil:
		s.Errorf("%s is not allowed to change %s: %v", who.account, what, err)
	case refusal != "" && !apierrors.IsForbidden(err):
		s.Errorf("%s may change %s, want %q: %v", who.account, what, refusal, err)
	case refusal != "" && !strings.Contains(err.Error(), refusal):
		s.Errorf("%s, who wants to change %s, got %q, want %q", who.account, what, err, refusal)
	}
}

// policiesAreSound waits until the API server has checked the types in the policies'
// expressions, and until each is in force: it reads policies and bindings once a second.
func (s *story) policiesAreSound(node string, mark, unbound person, drainers ...person) {
	s.Helper()
	s.eventually("check of the policies", func() bool {
		list, err := s.cluster.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(s.ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=spot-handler"})
		s.must(err)
		for _, p := range list.Items {
			if p.Status.TypeChecking == nil || p.Status.ObservedGeneration != p.Generation {
				return false
			}
			for _, w := range p.Status.TypeChecking.ExpressionWarnings {
				s.Errorf("policy %s: %s: %s", p.Name, w.FieldRef, w.Warning)
			}
		}
		return len(list.Items) == 3*12 // of each release
	})
	refused := func(who person, what, key, words string) {
		s.eventually("policy on "+what+" in force", func() bool {
			err := who.patch(what, fmt.Sprintf(`{"metadata":{"annotations":{%q:"true"}}}`, key), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			return apierrors.IsForbidden(err) && strings.Contains(err.Error(), words)
		})
	}
	refused(unbound, "nodes/"+node, "spot-handler/touched", "not bound to a pod")
	refused(mark, "nodes/"+node, "example.com/touched", "an annotation must not change")
	for _, who := range drainers {
		for _, what := range []string{"nodes/" + node, "nodes/" + node + "/status", "pods/web", "pods/web/status", "nodeclaims/claim"} {
			refused(who, what, "example.com/touched", "an annotation must not change")
		}
		s.eventually("policy on leases in force", func() bool {
			_, err := who.CoordinationV1().Leases(namespace).Create(s.ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "none"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "only the Lease")
		})
	}
}

// person is a client that acts as a service account.
type person struct {
	*story
	kubernetes.Interface
	dynamic dynamic.Interface
	account string
}

func (s *story) person(account, pod string) person {
	s.Helper()
	config, err := s.cluster.ServiceAccountConfig(s.ctx, namespace, account, pod)
	s.must(err)
	client, err := kubernetes.NewForConfig(config)
	s.must(err)
	anything, err := dynamic.NewForConfig(config)
	s.must(err)
	return person{s, client, anything, account}
}

// patch merges into an object such as pods/web, or a subresource of it.
func (p person) patch(what, patch string, options metav1.PatchOptions) error {
	parts := strings.Split(what, "/")
	resource, in := corev1.SchemeGroupVersion.WithResource(parts[0]), metav1.NamespaceNone
	how := types.MergePatchType
	switch parts[0] {
	case "nodes":
		if len(parts) > 2 {
			how = types.StrategicMergePatchType
		}
	case "pods":
		in, how = metav1.NamespaceDefault, types.StrategicMergePatchType // which leaves the other conditions
	case "nodeclaims":
		resource = controlplane.NodeClaims
	case "leases":
		resource, in = coordinationv1.SchemeGroupVersion.WithResource("leases"), namespace
	case "configmaps":
		in = namespace
	}
	_, err := p.dynamic.Resource(resource).Namespace(in).Patch(p.ctx, parts[1], how, []byte(patch), options, parts[2:]...)
	return err
}
