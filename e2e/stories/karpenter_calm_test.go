package stories

import (
	"context"
	"slices"
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
// to spot. EC2 takes whatever spot nodes both have, three times. Without calm each loss moves every pod
// twice, and Karpenter's half of that costs ready pods. With it the pods stay on demand, though the leader is
// killed, and go back once, surged, within a minute of an end of calm that the pool's annotation says.
func TestCalmBeforeTheWayBack(t *testing.T) {
	s := newStory(long(t), controlplane.Options{Karpenter: true})
	const replicas, losses, apart, ready = 2, 3, 45 * time.Second, 5 * time.Second
	names := []string{"hasty", "calm"}
	own := map[string]string{"hasty": "0"} // what overrides the flag
	for _, name := range names {
		s.must(s.cluster.CreatePools(s.ctx,
			controlplane.PoolSpec{Name: name, Weight: 100, CPUs: 4, Boot: time.Second, Labels: team(name),
				Annotations: map[string]string{"spot-handler/fallback-nodepool": name + "-od", "spot-handler/calm": own[name]}},
			controlplane.PoolSpec{Name: name + "-od", CPUs: 4, Boot: time.Second, Labels: team(name), Capacity: []string{controlplane.OnDemand}, ConsolidateAfter: "0s"}))
		ready, stop := ready, time.Second
		_, err := s.cluster.RunDeployment(s.ctx, controlplane.DeploymentSpec{
			Name: name, Replicas: replicas, CPU: "1500m", NodeSelector: team(name), Grace: 5 * time.Second,
			Behaviour: controlplane.Behaviour{ReadyAfter: &ready, StopAfter: &stop},
			MaxSurge:  budget(replicas),
		})
		s.must(err)
	}
	server, queue := s.sqs()
	d := s.runQueue(server, queue, "--calm=1h")
	moves := map[string]*moving{}
	for _, name := range names {
		_, err := s.cluster.LabelInstance(s.ctx, s.homeOf(name, controlplane.Spot, replicas))
		s.must(err)
		moves[name] = s.watchMoves(name, replicas)
	}
	held, began, last := "", time.Time{}, time.Time{}
	for range losses {
		// Within that time one of the two is back on spot, unless the machine is busy.
		s.eventually("next loss", func() bool {
			return time.Since(last) >= apart && slices.ContainsFunc(names, func(name string) bool {
				_, capacity := s.sharedNode(name, replicas)
				return capacity == controlplane.Spot
			})
		})
		if last = time.Now(); began.IsZero() {
			began = last
		}
		taken := append(s.nodesOf("hasty"), s.nodesOf("calm")...)
		for _, node := range taken {
			_, err := s.cluster.LabelInstance(s.ctx, node)
			s.must(err)
			interrupt(queue, node, 2*time.Minute)
		}
		if held == "" { // the next leader is to know of the hold by itself
			s.eventually("end of the first drains", func() bool { return len(d.Lines("node released")) == len(taken) })
			held = strings.Join(s.nodesOf("calm-od"), " and ")
			d.Kill()
			d = s.runQueue(server, queue, "--calm=1h")
		}
		for _, node := range taken {
			s.waitGone(node)
		}
	}
	s.eventually("count of what is held", func() bool { return s.metric(d, "spot_handler_held_replacement_seconds_total") > 0 })
	if node := s.lastSeen(held); node == nil || node.Annotations[doNotDisrupt] != "true" || s.homeOf("calm", controlplane.OnDemand, replicas) != held {
		t.Errorf("the node %s of the calm pool's pods is %v, want it held", held, node)
	}
	program, err := daemon.Build()
	s.must(err)
	if out := string(s.ask(program, "status")); !strings.Contains(out, "Held on demand until spot pools are calm: 1 replacement, ") {
		t.Errorf("status does not say what is held:\n%s", out)
	}
	_, err = s.cluster.Dynamic.Resource(controlplane.NodePools).Patch(s.ctx, "calm", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"spot-handler/calm":"1s"}}}`), metav1.PatchOptions{})
	s.must(err)
	for _, name := range names {
		s.homeOf(name, controlplane.Spot, replicas)
	}
	took := time.Since(began)
	s.waitGone(held)
	per, missing := map[string]float64{}, map[string]float64{}
	for _, name := range names {
		per[name], missing[name] = moves[name].sum()
		t.Logf("%s: %.1f moves for each of %d pods, and %.0f unavailable pod-seconds in %.0f s: %.0f per hour",
			name, per[name], replicas, missing[name], took.Seconds(), missing[name]/took.Hours())
	}
	if per["hasty"] < 2*losses || per["calm"] != 2 {
		t.Errorf("%v moves for each pod, want %d without calm, and 2 with it", per, 2*losses)
	}
	if least := ready.Seconds(); missing["calm"] > 0 || missing["hasty"] < least {
		t.Errorf("%v unavailable pod-seconds, want none with calm, and at least %.0f without it", missing, least)
	}
}

// nodesOf are the names of a pool's Nodes.
func (s *story) nodesOf(pool string) (names []string) {
	s.Helper()
	list, err := s.cluster.Client.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{LabelSelector: "karpenter.sh/nodepool=" + pool})
	s.must(err)
	for _, node := range list.Items {
		names = append(names, node.Name)
	}
	return names
}

// homeOf waits until all pods of the service are ready on one node of the capacity type, which it
// returns.
func (s *story) homeOf(service, capacity string, replicas int) (node string) {
	s.Helper()
	s.eventually(service+" on "+capacity, func() bool {
		of := ""
		node, of = s.sharedNode(service, replicas)
		return of == capacity
	})
	return node
}

// sharedNode is the node on which all pods of the service are ready, and its capacity type, if there is one.
func (s *story) sharedNode(service string, replicas int) (node, capacity string) {
	s.Helper()
	list, err := s.cluster.Client.CoreV1().Pods("default").List(s.ctx, metav1.ListOptions{LabelSelector: controlplane.Selector(service)})
	s.must(err)
	if len(list.Items) != replicas {
		return "", ""
	}
	node = list.Items[0].Spec.NodeName
	if slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return !controlplane.Ready(&p) || p.Spec.NodeName != node }) {
		return "", ""
	}
	if found := s.lastSeen(node); found != nil {
		capacity = found.Labels["karpenter.sh/capacity-type"]
	}
	return node, capacity
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
