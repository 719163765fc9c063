package stories

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"spot-handler/e2e/controlplane"
)

// RBAC lets a pod of the DaemonSet change every Node, pod and NodeClaim that it may change
// at all. The chart's admission policies hold it to those of its own node, by the name of
// the node in its token; the Deployment is not concerned.
func TestDaemonSetIsHeldToItsOwnNode(t *testing.T) {
	s := tellApart(t, controlplane.Options{Karpenter: true})
	s.pools(0)
	own, other := s.node("batch"), s.node("batch")
	pods := map[string]*corev1.Pod{}
	for _, p := range s.service("web", 12, func(d *controlplane.DeploymentSpec) { d.Spread = corev1.LabelHostname }) {
		pods[p.Spec.NodeName] = p
	}
	if pods[own.Name] == nil || pods[other.Name] == nil {
		t.Fatalf("pods are on %v, want some on each node", pods)
	}
	s.accounts()
	s.policiesAreSound(own, pods[own.Name])
	bound := func(account string) person { return s.person(account, s.podOf(account, own.Name)) }
	imds, mark, queue, unbound := bound(imdsAccount), bound(markAccount), s.person(queueAccount, ""), s.person(imdsAccount, "")

	for _, tt := range []struct {
		who     string
		person  person
		what    string
		act     func(person) error
		refusal string // "": allowed
	}{
		{"imds", imds, "patch own node", patchNode(own.Name), ""},
		{"imds", imds, "patch another node", patchNode(other.Name), "may change no other node: " + other.Name},
		{"marking imds", mark, "patch own node", patchNode(own.Name), ""},
		{"marking imds", mark, "patch another node", patchNode(other.Name), "may change no other node: " + other.Name},
		{"a token without a pod", unbound, "patch a node", patchNode(own.Name), "not bound to a pod on a node"},
		{"queue", queue, "patch any node", patchNode(other.Name), ""},

		{"imds", imds, "mark a pod of its node", patchPod(pods[own.Name]), ""},
		{"imds", imds, "mark a pod of another node", patchPod(pods[other.Name]), "may change no pod of another"},
		{"imds", imds, "delete a pod of another node", deletePod(pods[other.Name]), "may change no pod of another"},
		{"imds", imds, "delete a pod of its node", deletePod(pods[own.Name]), ""},
		{"queue", queue, "mark any pod", patchPod(pods[other.Name]), ""},
		// An Eviction does not name the node: this is what cannot be held.
		{"imds", imds, "evict a pod of another node", evictPod(pods[other.Name]), ""},

		{"imds", imds, "request its replacement", s.createClaim("own-1", own.Name), ""},
		{"imds", imds, "annotate its replacement's node", s.replacement(own.Name, touch), ""},
		{"imds", imds, "cordon its replacement's node", s.replacement(own.Name, cordon), "may change no other node"},
		{"imds", imds, "label its replacement's node", s.replacement(own.Name, label), "may change no other node"},
		{"imds", imds, "request another's replacement", s.createClaim("other-1", other.Name), "may change only its NodeClaim"},
		{"imds", imds, "request anything", s.createClaim("any-1", ""), "may change only its NodeClaim"},
		{"imds", imds, "patch its NodeClaim", patchClaim(claimOf(own)), ""},
		{"imds", imds, "patch another NodeClaim", patchClaim(claimOf(other)), "may change only its NodeClaim"},
		{"imds", imds, "delete another NodeClaim", deleteClaim(claimOf(other)), "may change only its NodeClaim"},
		{"queue", queue, "request any replacement", s.createClaim("other-2", other.Name), ""},
		{"imds", imds, "clean up another's replacement", patchClaim("other-2"), ""},
		{"queue", queue, "settle a replacement", settleClaim("other-2"), ""},
		{"imds", imds, "delete another's settled replacement", deleteClaim("other-2"), "may change only its NodeClaim"},
		{"imds", imds, "delete its replacement", deleteClaim("own-1"), ""},
		{"imds", imds, "delete its NodeClaim", deleteClaim(claimOf(own)), ""},
	} {
		err := tt.act(tt.person)
		switch {
		case tt.refusal == "" && err != nil:
			t.Errorf("%s may not %s: %v", tt.who, tt.what, err)
		case tt.refusal != "" && !apierrors.IsForbidden(err):
			t.Errorf("%s may %s: %v", tt.who, tt.what, err)
		case tt.refusal != "" && !strings.Contains(err.Error(), tt.refusal):
			t.Errorf("%s, who wants to %s, is told %q, want %q", tt.who, tt.what, err, tt.refusal)
		}
	}
}

// policiesAreSound waits until the API server has checked the types in the policies'
// expressions, and until each refuses a token without a pod.
func (s *story) policiesAreSound(node *corev1.Node, pod *corev1.Pod) {
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
		return len(list.Items) == 4 // three of the DaemonSet that drains, one of that which marks
	})
	// Each takes force on its own: the API server reads policies and bindings once a second.
	imds, mark := s.person(imdsAccount, ""), s.person(markAccount, "")
	for _, tt := range []struct {
		policy string
		person person
		act    func(person) error
	}{
		{"nodes", imds, patchNode(node.Name)},
		{"nodes of the marking", mark, patchNode(node.Name)},
		{"pods", imds, patchPod(pod)},
		{"nodeclaims", imds, patchClaim(claimOf(node))},
	} {
		s.eventually("policy of "+tt.policy+" in force", func() bool {
			err := tt.act(tt.person)
			return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "not bound to a pod")
		})
	}
}

// person is a client that acts as a service account.
type person struct {
	*story
	kubernetes.Interface
	dynamic dynamic.Interface
}

func (s *story) person(account, pod string) person {
	s.Helper()
	config, err := s.cluster.ServiceAccountConfig(s.ctx, namespace, account, pod)
	s.must(err)
	client, err := kubernetes.NewForConfig(config)
	s.must(err)
	anything, err := dynamic.NewForConfig(config)
	s.must(err)
	return person{s, client, anything}
}

var (
	touch  = []byte(`{"metadata":{"annotations":{"example.com/touched":"true"}}}`)
	label  = []byte(`{"metadata":{"labels":{"example.com/touched":"true"}}}`)
	cordon = []byte(`{"spec":{"unschedulable":true}}`)
)

// replacement patches the Node of the NodeClaim that replaces the node, once it is there.
func (s *story) replacement(node string, patch []byte) func(person) error {
	return func(p person) error {
		var name string
		s.eventually("registration of the replacement", func() bool {
			nodes, err := s.cluster.Client.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{})
			s.must(err)
			for _, n := range nodes.Items {
				if n.Annotations["spot-handler/interrupted-node"] == node {
					name = n.Name
				}
			}
			return name != ""
		})
		_, err := p.CoreV1().Nodes().Patch(p.ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
}

func patchNode(name string) func(person) error {
	return func(p person) error {
		_, err := p.CoreV1().Nodes().Patch(p.ctx, name, types.MergePatchType, touch, metav1.PatchOptions{})
		return err
	}
}

func patchPod(pod *corev1.Pod) func(person) error {
	return func(p person) error {
		condition := []byte(`{"status":{"conditions":[{"type":"DisruptionTarget","status":"True","reason":"Test"}]}}`)
		_, err := p.CoreV1().Pods(pod.Namespace).Patch(p.ctx, pod.Name, types.StrategicMergePatchType, condition, metav1.PatchOptions{}, "status")
		return err
	}
}

func deletePod(pod *corev1.Pod) func(person) error {
	return func(p person) error {
		return p.CoreV1().Pods(pod.Namespace).Delete(p.ctx, pod.Name, metav1.DeleteOptions{})
	}
}

func evictPod(pod *corev1.Pod) func(person) error {
	return func(p person) error {
		return p.CoreV1().Pods(pod.Namespace).EvictV1(p.ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}})
	}
}

// createClaim creates a NodeClaim in the fallback pool that says it replaces the node.
func (s *story) createClaim(name, replaces string) func(person) error {
	return func(p person) error {
		claim := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
			"metadata": map[string]any{
				"name": name, "labels": map[string]any{"karpenter.sh/nodepool": "batch-fallback"},
				"annotations": map[string]any{doNotDisrupt: "true"}, // or Karpenter, whose pool makes other nodes, would end it
			},
			"spec": map[string]any{
				"nodeClassRef": map[string]any{"group": controlplane.NodeClasses.Group, "kind": "KWOKNodeClass", "name": "batch-fallback"},
				"requirements": []any{map[string]any{"key": corev1.LabelInstanceTypeStable, "operator": "In", "values": []any{"s-2x-amd64-linux"}}},
			},
		}}
		if replaces != "" {
			claim.SetAnnotations(map[string]string{"spot-handler/interrupted-node": replaces, doNotDisrupt: "true"})
			claim.SetLabels(map[string]string{"karpenter.sh/nodepool": "batch-fallback", "spot-handler/replaces": controlplane.InstanceID(replaces)})
		}
		_, err := p.dynamic.Resource(controlplane.NodeClaims).Create(p.ctx, claim, metav1.CreateOptions{})
		return err
	}
}

func patchClaim(name string) func(person) error {
	return func(p person) error {
		_, err := p.dynamic.Resource(controlplane.NodeClaims).Patch(p.ctx, name, types.MergePatchType, touch, metav1.PatchOptions{})
		return err
	}
}

func settleClaim(name string) func(person) error {
	return func(p person) error {
		settled := []byte(`{"metadata":{"labels":{"spot-handler/settled":"used"}}}`)
		_, err := p.dynamic.Resource(controlplane.NodeClaims).Patch(p.ctx, name, types.MergePatchType, settled, metav1.PatchOptions{})
		return err
	}
}

func deleteClaim(name string) func(person) error {
	return func(p person) error {
		return p.dynamic.Resource(controlplane.NodeClaims).Delete(p.ctx, name, metav1.DeleteOptions{})
	}
}

// claimOf is the NodeClaim that made the node.
func claimOf(node *corev1.Node) string { return node.OwnerReferences[0].Name }
