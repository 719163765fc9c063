package stories

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"spot-handler/e2e/controlplane"
)

// RBAC lets a pod of the DaemonSet change every Node. The chart's admission policy holds it to
// its own, by the name of the node in its token; the Deployments are not concerned. It may do
// nothing else.
func TestDaemonSetIsHeldToItsOwnNode(t *testing.T) {
	s := tellApart(t, controlplane.Options{})
	nodes, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 2})
	s.must(err)
	own, other := nodes[0], nodes[1]
	pod, err := s.cluster.Client.CoreV1().Pods("default").Create(s.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.PodSpec{NodeName: own.Name, Containers: []corev1.Container{{Name: "app", Image: "fake"}}},
	}, metav1.CreateOptions{})
	s.must(err)
	s.accounts()
	s.policiesAreSound(own)
	mark, unbound := s.person(markAccount, s.podOf(markAccount, own.Name)), s.person(markAccount, "")
	queue, drain := s.person(queueAccount, ""), s.person(drainAccount, "")

	for _, tt := range []struct {
		who     string
		person  person
		what    string
		act     func(person) error
		refusal string // "": allowed
	}{
		{"imds", mark, "patch own node", patchNode(own.Name), ""},
		{"imds", mark, "patch another node", patchNode(other.Name), "may change no other node: " + other.Name},
		{"a token without a pod", unbound, "patch a node", patchNode(own.Name), "not bound to a pod on a node"},
		{"imds", mark, "mark a pod of its node", patchPod(pod), "cannot patch resource"},
		{"imds", mark, "evict a pod of its node", evictPod(pod), "cannot create resource"},
		{"queue", queue, "patch any node", patchNode(other.Name), ""},
		{"drain", drain, "patch any node", patchNode(other.Name), ""},
		{"drain", drain, "mark any pod", patchPod(pod), ""},
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
func (s *story) policiesAreSound(node *corev1.Node) {
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
		return len(list.Items) == 3 // one for each DaemonSet
	})
	// Each takes force on its own: the API server reads policies and bindings once a second.
	mark := s.person(markAccount, "")
	s.eventually("policy in force", func() bool {
		err := patchNode(node.Name)(mark)
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "not bound to a pod")
	})
}

// person is a client that acts as a service account.
type person struct {
	*story
	kubernetes.Interface
}

func (s *story) person(account, pod string) person {
	s.Helper()
	config, err := s.cluster.ServiceAccountConfig(s.ctx, namespace, account, pod)
	s.must(err)
	client, err := kubernetes.NewForConfig(config)
	s.must(err)
	return person{s, client}
}

var touch = []byte(`{"metadata":{"annotations":{"example.com/touched":"true"}}}`)

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

func evictPod(pod *corev1.Pod) func(person) error {
	return func(p person) error {
		return p.CoreV1().Pods(pod.Namespace).EvictV1(p.ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}})
	}
}
