package stories

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
)

// Two spot pools flap, and Karpenter consolidates at once: it moves pods from on-demand nodes back
// to spot. Without calm each loss moves every pod twice. With it the pods stay on demand, though the
// leader is killed, and go back once, when nothing has been lost for as long as the pool's annotation
// says, or the flag if it has none.
func TestCalmBeforeTheWayBack(t *testing.T) {
	s := tell(long(t), controlplane.Options{Karpenter: true})
	const replicas = 2
	names := []string{"hasty", "calm"}
	own := map[string]string{"hasty": "0"} // what overrides the flag
	for _, name := range names {
		s.must(s.cluster.CreatePools(s.ctx,
			controlplane.PoolSpec{Name: name, Weight: 100, CPUs: 4, Boot: time.Second, Labels: team(name),
				Annotations: map[string]string{"spot-handler/fallback-nodepool": name + "-od", "spot-handler/calm": own[name]}},
			controlplane.PoolSpec{Name: name + "-od", CPUs: 4, Boot: time.Second, Labels: team(name), Capacity: []string{controlplane.OnDemand}, ConsolidateAfter: "0s"}))
	}
	moves := map[string]*moving{}
	for _, name := range names {
		s.node(name)
		s.service(name, replicas, surge(replicas, func(d *controlplane.DeploymentSpec) { d.CPU, d.NodeSelector = "1500m", team(name) }))
		moves[name] = s.watchMoves(name, replicas)
	}
	server, queue := s.sqs()
	d := s.runQueue(server, queue, "--calm=1h")
	// lose has EC2 take the spot node of the service's pods.
	lose := func(service string) {
		node := s.homeOf(service, controlplane.Spot, replicas)
		_, err := s.cluster.LabelInstance(s.ctx, node)
		s.must(err)
		interrupt(queue, node, 2*time.Minute)
		s.waitGone(node)
	}
	for _, name := range names {
		lose(name)
	}
	held := s.homeOf("calm", controlplane.OnDemand, replicas)

	lose("hasty") // as soon as it is back on spot
	if node := s.lastSeen(held); node == nil || node.Annotations[doNotDisrupt] != "true" || s.homeOf("calm", controlplane.OnDemand, replicas) != held {
		t.Errorf("the node of the calm pool's pods is %v, want it held", node)
	}
	s.eventually("count of what is held", func() bool { return s.metric(d, "spot_handler_held_replacement_seconds_total") > 0 })
	program, err := daemon.Build()
	s.must(err)
	if out := string(s.ask(program, "status")); !strings.Contains(out, "Held on demand until spot pools are calm: 1 replacement, ") {
		t.Errorf("status does not say what is held:\n%s", out)
	}

	// The next leader knows of the hold by itself.
	d.Kill()
	_, err = s.cluster.Dynamic.Resource(controlplane.NodePools).Patch(s.ctx, "calm", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"spot-handler/calm":"1s"}}}`), metav1.PatchOptions{})
	s.must(err)
	s.runQueue(server, queue, "--calm=1h")
	for _, name := range names {
		s.homeOf(name, controlplane.Spot, replicas)
	}
	s.waitGone(held)
	per := map[string]float64{}
	for _, name := range names {
		var missing float64
		per[name], missing = moves[name].sum()
		t.Logf("%s: %.1f moves for each pod, %.0f unavailable pod-seconds", name, per[name], missing)
	}
	if per["hasty"] < 4 || per["calm"] != 2 {
		t.Errorf("%v moves for each pod, want 4 without calm, and 2 with it", per)
	}
}

// homeOf waits until all pods of the service are ready on one node of the capacity type, which it
// returns.
func (s *story) homeOf(service, capacity string, replicas int) string {
	s.Helper()
	home := ""
	s.eventually(service+" on "+capacity, func() bool {
		list, err := s.cluster.Client.CoreV1().Pods("default").List(s.ctx, metav1.ListOptions{LabelSelector: controlplane.Selector(service)})
		s.must(err)
		for _, p := range list.Items {
			if home = p.Spec.NodeName; !controlplane.Ready(&p) || p.DeletionTimestamp != nil || home != list.Items[0].Spec.NodeName {
				return false
			}
		}
		if len(list.Items) != replicas {
			return false
		}
		node, err := s.cluster.Client.CoreV1().Nodes().Get(s.ctx, home, metav1.GetOptions{})
		return err == nil && node.Labels["karpenter.sh/capacity-type"] == capacity
	})
	return home
}

// moving counts the moves of a service's pods.
type moving struct {
	replicas int

	mu      sync.Mutex
	pods    map[types.UID]bool
	ready   int
	since   time.Time
	missing float64 // pod-seconds
}

// watchMoves follows a service whose pods are ready until the test ends.
func (s *story) watchMoves(service string, replicas int) *moving {
	m := &moving{replicas: replicas, ready: replicas, pods: map[types.UID]bool{}, since: time.Now()}
	s.background(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Minute) // more than the default of WaitPods
		defer cancel()
		_, _ = s.cluster.WaitPods(ctx, "default", controlplane.Selector(service), func(pods []*corev1.Pod) bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.count()
			m.ready = 0
			for _, p := range pods {
				m.pods[p.UID] = true
				if controlplane.Ready(p) {
					m.ready++
				}
			}
			return false
		})
	})
	return m
}

func (m *moving) count() {
	m.missing += float64(max(0, m.replicas-m.ready)) * time.Since(m.since).Seconds()
	m.since = time.Now()
}

// sum is how often each pod has moved, and for how long pods were missing, of all together.
func (m *moving) sum() (perPod, missing float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count()
	return float64(len(m.pods)-m.replicas) / float64(m.replicas), m.missing
}
