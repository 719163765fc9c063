package stories

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/sqsemu"
)

const targetAttributes = "service.beta.kubernetes.io/aws-load-balancer-target-group-attributes"

// SH308: a load balancer lets requests take as long as it drains targets, here as its annotation
// says. The longest of them are cut off when their pod is evicted, as it ends before. After the
// command that `audit` prints, they are not.
func TestTargetsThatDrainTooLong(t *testing.T) {
	s := newStory(t, controlplane.Options{})
	s.bare("node", 3, 4)
	grace := 8 * time.Second
	s.service("web", 1, func(d *controlplane.DeploymentSpec) {
		quick(d)
		d.Grace, d.StopAfter = grace, &grace // it takes requests to its end
	})
	class := "service.k8s.aws/nlb"
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{
		"service.beta.kubernetes.io/aws-load-balancer-nlb-target-type": "ip", targetAttributes: "deregistration_delay.timeout_seconds=20",
	}}}
	service.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, Selector: map[string]string{"app": "web"},
		Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
	}
	_, err := s.cluster.Client.CoreV1().Services("default").Create(s.ctx, service, metav1.CreateOptions{})
	s.must(err)
	found, fixes := s.auditOf("SH308")
	if !slices.Equal(found, []string{"SH308 service/web"}) {
		t.Fatalf("audit finds %q", found)
	}

	_, queue := s.drill("--provisioner=none")
	if lives, longest := s.loseTarget(queue); lives >= longest {
		t.Errorf("the pod lives for %s, and no request takes longer than %s", lives, longest)
	}
	s.fix(fixes)
	if found, _ = s.auditOf("SH308"); len(found) > 0 {
		t.Errorf("audit still finds %q", found)
	}
	if lives, longest := s.loseTarget(queue); lives < longest {
		t.Errorf("the pod lives for %s, and requests take up to %s", lives, longest)
	}
}

// loseTarget interrupts the node of the only pod of web. It returns for how long that lives once it is
// no target any more, and for how long requests that it has by then can take.
func (s *story) loseTarget(queue *sqsemu.Queue) (lives, longest time.Duration) {
	s.Helper()
	ready, err := s.cluster.WaitReady(s.ctx, "default", "web", 1)
	s.must(err)
	interrupt(queue, ready[0].Spec.NodeName, 100*time.Second)
	var evicted time.Time // as the API server says, in whole seconds
	_, err = s.cluster.WaitPods(s.ctx, "default", "", func(pods []*corev1.Pod) bool {
		i := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return p.UID == ready[0].UID })
		if i < 0 {
			return true
		}
		if p := pods[i]; p.DeletionTimestamp != nil && evicted.IsZero() {
			evicted = p.DeletionTimestamp.Add(-time.Duration(*p.DeletionGracePeriodSeconds) * time.Second)
		}
		return false
	})
	gone := time.Now()
	s.must(err)
	if evicted.IsZero() {
		s.Fatal("the pod went without an eviction")
	}
	service, err := s.cluster.Client.CoreV1().Services("default").Get(s.ctx, "web", metav1.GetOptions{})
	s.must(err)
	_, seconds, _ := strings.Cut(service.Annotations[targetAttributes], "=")
	longest, err = time.ParseDuration(seconds + "s")
	s.must(err)
	return gone.Sub(evicted), longest
}
