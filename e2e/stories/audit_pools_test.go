package stories

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/sqsemu"
)

// Fallback pools that are missing, of no use, on spot, in another zone, or too small: what EC2
// takes from spot nodes ends on spot again. Then the commands that `audit` prints are run as they
// are, and it ends on demand.
func TestAuditOfFallbackPools(t *testing.T) {
	s := newStory(long(t), controlplane.Options{Karpenter: true})
	spot := func(team, fallback string) controlplane.PoolSpec {
		return controlplane.PoolSpec{
			Name: team, Weight: 50, Labels: map[string]string{"team": team}, Zones: []string{"test-zone-a"}, Boot: time.Second,
			Annotations: map[string]string{"spot-handler/fallback-nodepool": fallback},
		}
	}
	onDemand := func(name, team, zone string) controlplane.PoolSpec {
		return controlplane.PoolSpec{
			Name: name, Weight: 10, Labels: map[string]string{"team": team}, Zones: []string{zone}, Boot: time.Second, Capacity: []string{controlplane.OnDemand},
		}
	}
	small := onDemand("large-od", "large", "test-zone-a")
	small.Limits = map[string]string{"cpu": "8"} // of one of two nodes
	s.must(s.cluster.CreatePools(s.ctx,
		spot("astray", "nowhere"), onDemand("astray-od", "astray", "test-zone-a"), // SH201
		spot("broken", "broken-od"), onDemand("broken-od", "broken", "test-zone-a"), onDemand("broken-too", "broken", "test-zone-a"), // SH202
		spot("onspot", "onspot"),                                                // SH203
		spot("zonal", "zonal-od"), onDemand("zonal-od", "zonal", "test-zone-b"), // SH204
		spot("large", "large-od"), small, // SH205
		spot("well", "well-od"), onDemand("well-od", "well", "test-zone-a"),
	))
	s.loseNodeClass("broken-od")

	s.must(s.cluster.CreateClaim(s.ctx, "", "zonal", corev1.ReadWriteOnce)) // SH113
	_, err := s.cluster.Client.CoreV1().PersistentVolumes().Patch(s.ctx, "zonal", types.MergePatchType, []byte(
		`{"spec":{"nodeAffinity":{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"topology.kubernetes.io/zone","operator":"In","values":["test-zone-a"]}]}]}}}}`,
	), metav1.PatchOptions{})
	s.must(err)

	onSpotAfter := map[string]int{"astray": 1, "broken": 1, "onspot": 1, "zonal": 1, "large": 1, "well": 0}
	for team := range onSpotAfter {
		nodes := 1
		if team == "large" {
			nodes = 2
		}
		_, err := s.cluster.CreateNodes(s.ctx, team, nodes)
		s.must(err)
		s.service(team, nodes, func(d *controlplane.DeploymentSpec) {
			quick(d)
			d.CPU, d.MaxSurge, d.NodeSelector = "5", percent(100), map[string]string{"team": team} // one on a node
			d.Change = func(d *appsv1.Deployment) {
				d.Spec.MinReadySeconds = 1
				if team == "zonal" {
					controlplane.Mount(&d.Spec.Template.Spec, "zonal")
				}
			}
		})
	}

	want := []string{"SH113 deployment/zonal", "SH201 nodepool/astray", "SH202 nodepool/broken", "SH203 nodepool/onspot", "SH204 nodepool/zonal", "SH205 nodepool/large"}
	found, fixes := s.auditOf("SH113", "SH201", "SH202", "SH203", "SH204", "SH205")
	if !slices.Equal(found, want) {
		t.Fatalf("audit finds %q, want %q", found, want)
	}

	leader, queue := s.drill()
	s.loseSpot(queue, onSpotAfter)
	for team, n := range onSpotAfter {
		if got := len(s.onSpot(team)); got != n {
			t.Errorf("%d pods of %s are on spot again, want %d", got, team, n)
		}
	}

	s.fix(fixes[1:]) // that of SH113 is that of SH204
	if found, _ := s.auditOf("SH113", "SH201", "SH202", "SH203", "SH204", "SH205"); len(found) > 0 {
		t.Errorf("audit still finds %q", found)
	}
	leader.Stop() // it knows NodePools as they were up to ten seconds ago
	_, queue = s.drill()
	s.loseSpot(queue, onSpotAfter)
	for team := range onSpotAfter {
		if got := s.onSpot(team); len(got) > 0 {
			t.Errorf("pods of %s are on spot again, on %v, though all is mended", team, got)
		}
	}
}

// auditOf asks about the whole cluster, and returns what is found by some checks, and what mends
// it.
func (s *story) auditOf(ids ...string) (found, fixes []string) {
	s.Helper()
	report, _ := s.auditAll()
	slices.SortFunc(report.Findings, func(a, b auditFinding) int { return strings.Compare(a.ID+a.Object, b.ID+b.Object) })
	for _, f := range report.Findings {
		if slices.Contains(ids, f.ID) {
			found, fixes = append(found, f.ID+" "+f.Object), append(fixes, f.Fix)
		}
	}
	return found, fixes
}

// fix runs commands as they are printed.
func (s *story) fix(fixes []string) {
	s.Helper()
	for _, fix := range fixes {
		cmd := exec.CommandContext(s.ctx, "sh", "-c", strings.Replace(fix, "kubectl ", s.cluster.Kubectl+" --kubeconfig="+s.cluster.Kubeconfig+" ", 1))
		if out, err := cmd.CombinedOutput(); err != nil {
			s.Fatalf("%s: %v\n%s", fix, err, out)
		}
	}
}

// loseSpot interrupts all spot nodes that have pods of the services, and waits until they are gone
// and all pods are ready elsewhere.
func (s *story) loseSpot(queue *sqsemu.Queue, services map[string]int) {
	s.Helper()
	lost, pods := map[string]bool{}, map[string]int{}
	for service := range services {
		pods[service] = len(s.podsOf(service))
		for _, node := range s.onSpot(service) {
			_, err := s.cluster.LabelInstance(s.ctx, node)
			s.must(err)
			lost[node] = true
		}
	}
	for node := range lost {
		interrupt(queue, node, 2*time.Minute)
	}
	for node := range lost {
		s.waitGone(node)
	}
	for service, n := range pods {
		_, err := s.cluster.WaitReady(s.ctx, "default", service, n)
		s.must(err)
	}
}

// onSpot are the nodes of the service's pods that are spot instances, one for each pod.
func (s *story) onSpot(service string) (nodes []string) {
	s.Helper()
	for _, p := range s.podsOf(service) {
		if n := s.lastSeen(p.Spec.NodeName); n != nil && n.Labels["karpenter.sh/capacity-type"] == controlplane.Spot {
			nodes = append(nodes, n.Name)
		}
	}
	return nodes
}

// podsOf are the pods of the service that are not about to end.
func (s *story) podsOf(service string) []corev1.Pod {
	s.Helper()
	list, err := s.cluster.Client.CoreV1().Pods("default").List(s.ctx, metav1.ListOptions{LabelSelector: controlplane.Selector(service)})
	s.must(err)
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}
