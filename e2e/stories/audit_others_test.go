package stories

import (
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/foreign"
	"spot-handler/e2e/sqsemu"
)

// Others act on the same notices: aws-node-termination-handler, which runs as it is, and Karpenter,
// which deletes the NodeClaim when its queue has the notice. Because of either, services that surge
// are short of pods. Then the commands that `audit` prints are run as they are, and the services
// lose no ready pod.
func TestAuditOfOtherHandlers(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	const replicas = 3
	var pools []controlplane.PoolSpec
	for _, team := range []string{"twice", "raced"} {
		pools = append(pools,
			controlplane.PoolSpec{Name: team, Weight: 50, CPUs: 16, Labels: map[string]string{"team": team}, Boot: time.Second,
				Annotations: map[string]string{"spot-handler/fallback-nodepool": team + "-od"}},
			controlplane.PoolSpec{Name: team + "-od", Weight: 10, CPUs: 16, Labels: map[string]string{"team": team}, Boot: 4 * time.Second, Capacity: []string{controlplane.OnDemand}})
	}
	s.must(s.cluster.CreatePools(s.ctx, pools...))
	for _, team := range []string{"twice", "raced"} {
		s.node(team)
		s.service(team, replicas, surge(replicas, func(d *controlplane.DeploymentSpec) { d.NodeSelector = map[string]string{"team": team} }))
	}
	s.bare("system", 1, 4)
	s.must(s.cluster.Announce(s.ctx, namespace, "default", "queue", "--queue-url=http://queue")) // the process that drains is drill's
	s.installOthers()
	want := []string{"SH302 deployment/karpenter", "SH303 daemonset/aws-node-termination-handler"}
	var found, fixes []string
	s.within("a finding of either", time.Minute, func() bool {
		found, fixes = s.auditOf("SH302", "SH303")
		return slices.Equal(found, want)
	}, func() string { return fmt.Sprintf("found %q", found) })

	_, queue := s.drill()
	fewest := s.loseTeams(queue, replicas)
	if fewest["twice"] == replicas {
		t.Error("two handlers on one node cost no ready pod")
	}
	if fewest["raced"] == replicas {
		t.Error("a node that Karpenter ends too cost no ready pod")
	}
	s.fix(fixes)
	if found, _ = s.auditOf("SH302", "SH303"); len(found) > 0 {
		t.Errorf("audit still finds %q", found)
	}
	for team, n := range s.loseTeams(queue, replicas) {
		if n < replicas {
			t.Errorf("%d pods of %s were ready at the fewest, want all %d now", n, team, replicas)
		}
	}
}

// loseTeams interrupts the node of each team and returns how few of its pods were ready. Every handler
// that is installed gets the notice.
func (s *story) loseTeams(queue *sqsemu.Queue, replicas int) map[string]int {
	s.Helper()
	fewest, lost := map[string]func() int{}, map[string]*corev1.Node{}
	for _, team := range []string{"twice", "raced"} {
		node, err := s.cluster.LabelInstance(s.ctx, s.podsOf(team)[0].Spec.NodeName)
		s.must(err)
		fewest[team], lost[team] = s.watchReady(team), node
	}
	metadata := s.imds(lost["twice"])
	metadata.Interrupt("terminate", time.Now().Add(110*time.Second))
	if _, err := s.cluster.Client.AppsV1().DaemonSets(namespace).Get(s.ctx, "aws-node-termination-handler", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		s.must(err)
		foreign.StartHandler(s.T, s.cluster.Kubeconfig, lost["twice"].Name, metadata.URL)
		s.eventually("a cordon by the other handler", func() bool { return s.lastSeen(lost["twice"].Name).Spec.Unschedulable }) // it might be slow to start
	}
	karpenter, err := s.cluster.Client.AppsV1().Deployments(namespace).Get(s.ctx, "karpenter", metav1.GetOptions{})
	s.must(err)
	if len(karpenter.Spec.Template.Spec.Containers[0].Env) > 0 {
		s.must(s.cluster.Dynamic.Resource(controlplane.NodeClaims).Delete(s.ctx, lost["raced"].OwnerReferences[0].Name, metav1.DeleteOptions{}))
	}
	for _, node := range lost {
		interrupt(queue, node.Name, 110*time.Second)
	}
	least := map[string]int{}
	for team, node := range lost {
		s.waitGone(node.Name)
		_, err := s.cluster.WaitReady(s.ctx, "default", team, replicas)
		s.must(err)
		least[team] = fewest[team]()
	}
	return least
}

// installOthers makes what is known as Karpenter with a queue, and as aws-node-termination-handler.
func (s *story) installOthers() {
	s.Helper()
	pod := func(name string, env ...corev1.EnvVar) (*metav1.LabelSelector, corev1.PodTemplateSpec, metav1.ObjectMeta) {
		labels := map[string]string{"app.kubernetes.io/name": name}
		return &metav1.LabelSelector{MatchLabels: labels}, corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "controller", Image: "none", Env: env}}},
		}, metav1.ObjectMeta{Name: name, Labels: labels}
	}
	karpenter := &appsv1.Deployment{}
	karpenter.Spec.Selector, karpenter.Spec.Template, karpenter.ObjectMeta = pod("karpenter", corev1.EnvVar{Name: "INTERRUPTION_QUEUE", Value: "queue"})
	karpenter.Spec.Replicas = new(int32)
	_, err := s.cluster.Client.AppsV1().Deployments(namespace).Create(s.ctx, karpenter, metav1.CreateOptions{})
	s.must(err)
	handler := &appsv1.DaemonSet{}
	handler.Spec.Selector, handler.Spec.Template, handler.ObjectMeta = pod("aws-node-termination-handler")
	_, err = s.cluster.Client.AppsV1().DaemonSets(namespace).Create(s.ctx, handler, metav1.CreateOptions{})
	s.must(err)
}
