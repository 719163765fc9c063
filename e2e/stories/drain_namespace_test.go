package stories

import (
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"spot-handler/e2e/controlplane"
)

// A namespace is being deleted, and its controller is held up. In such a namespace
// nothing can be created, evictions and Events included. The pods count as blocked,
// nothing else suffers from it, and when the pods go the drain ends.
func TestPodsOfATerminatingNamespace(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	node := s.bare("node", 1, 8)[0]
	spec := controlplane.DeploymentSpec{Namespace: "doomed", Name: "doomed", Replicas: 2}
	quick(&spec)
	_, err := s.cluster.RunDeployment(s.ctx, spec)
	s.must(err)
	doomed, err := s.cluster.WaitReady(s.ctx, "doomed", "doomed", 2)
	s.must(err)
	free := s.service("free", 2, quick)
	s.bare("spare", 1, 8)
	s.forbidDeletions("doomed")
	s.must(s.cluster.Client.CoreV1().Namespaces().Delete(s.ctx, "doomed", metav1.DeleteOptions{}))
	s.eventually("end of its Deployment", func() bool {
		_, err := s.cluster.Client.AppsV1().Deployments("doomed").Get(s.ctx, "doomed", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	d, queue := s.drill("--log-level=debug") // an Event cannot be created there either

	interrupt(queue, node.Name, 100*time.Second)
	s.eventually("two blocked pods", func() bool { return s.metric(d, "spot_handler_blocked_pods") == 2 })
	for _, line := range d.Lines("eviction refused") {
		if text, _ := line["reason"].(string); !strings.Contains(text, "being terminated") {
			t.Errorf("want the API server's words, that the namespace is being terminated: %v", line)
		}
	}
	s.eventually("departure of the others", func() bool { return len(s.podsOn(node.Name, "free")) == 0 })

	seconds := int64(1)
	for _, p := range doomed { // the administrator may, and does what the controller could not
		s.must(s.cluster.Client.CoreV1().Pods("doomed").Delete(s.ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &seconds}))
	}
	s.wantResults(d, map[string]result{node.Name: {graceful: 4}})
	s.wantEachOnce(uids(free))
}

// forbidDeletions keeps the controllers from deleting the pods of a namespace, and
// returns when that is in force.
func (s *story) forbidDeletions(namespace string) {
	s.Helper()
	const controllers = "kube-controller-manager"
	s.deny(admissionregistrationv1.Delete, "pods", "request.namespace == '"+namespace+"' && request.userInfo.username == '"+controllers+"'", "no deletions")

	config := s.cluster.RESTConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: controllers, Groups: []string{"system:masters"}}
	controller, err := kubernetes.NewForConfig(config)
	s.must(err)
	pods, err := controller.CoreV1().Pods(namespace).List(s.ctx, metav1.ListOptions{})
	s.must(err)
	s.eventually("refusal of deletions", func() bool {
		err := controller.CoreV1().Pods(namespace).Delete(s.ctx, pods.Items[0].Name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsInvalid(err) || apierrors.IsForbidden(err)
	})
}
