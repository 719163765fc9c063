package stories

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/chart"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/imdsemu"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
)

// Where all nodes are spot, the chart's Deployment runs on them, on two offerings. EC2 takes the
// leader's node, and then those of both replicas at once: every pod leaves in time. As soon as there
// are other nodes, a rollout moves it there, full and in one zone as they may be.
func TestAllNodesAreSpot(t *testing.T) {
	s := newStoryApart(long(t), controlplane.Options{})
	s.installs = true
	s.offerings("spot", map[string]string{"node-lifecycle": "spot"}, 16, "a/m5.xlarge", "b/c5.xlarge", "a/c5.xlarge", "b/m5.xlarge", "a/r5.xlarge", "b/r5.xlarge")
	s.service("web", 12, func(d *controlplane.DeploymentSpec) { d.BudgetMinAvailable = budget(11) })
	server, queue := s.sqs()
	h := s.helm()
	values := map[string]any{
		"flags.queueUrl": queue.URL(),
		// As long as the program may take to stop.
		"controller.podAnnotations": map[string]any{"e2e.spot-handler/stop-after": "10s"},
	}
	release := chart.Release{Values: chart.Values("queue", values)}
	_, err := h.Install(s.ctx, s.cluster.Kubeconfig, release)
	s.must(err)
	replicas := s.runReplicas(server)

	s.leadersGo(replicas, func(node string) { interrupt(queue, node, 110*time.Second) })
	s.waitEmpty(queue)

	others := s.offerings("other", nil, 2, "a/m5.xlarge", "a/m5.xlarge")
	for _, n := range others {
		s.fill(n.Name, "1500m")
	}
	values["controller.podLabels"] = map[string]any{"generation": "2"}
	_, err = h.Upgrade(s.ctx, s.cluster.Kubeconfig, chart.Release{Values: chart.Values("queue", values)})
	s.must(err)
	s.within("a rollout to the nodes that are not spot", 3*time.Minute, func() bool {
		on := replicas.nodes()
		return len(on) == 2 && on[others[0].Name] && on[others[1].Name]
	}, func() string { return fmt.Sprintf("the Deployment is on %v", replicas.nodes()) })
}

// In imds mode the DaemonSet marks and the Deployment drains. The Deployment is on spot nodes too, and
// sees the interruptions of its own nodes through in the same way.
func TestAllNodesAreSpotInModeIMDS(t *testing.T) {
	s := newStory(t, controlplane.Options{})
	s.installs = true
	metadata := map[string]*imdsemu.Server{}
	for _, n := range s.offerings("spot", map[string]string{"node-lifecycle": "spot"}, 16, "a/m5.xlarge", "b/c5.xlarge", "a/c5.xlarge", "b/m5.xlarge", "a/r5.xlarge") {
		metadata[n.Name] = s.imds(n)
	}
	s.service("web", 10, func(d *controlplane.DeploymentSpec) { d.BudgetMinAvailable = budget(9) })
	_, err := s.helm().Install(s.ctx, s.cluster.Kubeconfig, chart.Release{Values: chart.Values("imds", map[string]any{
		"controller.podAnnotations": map[string]any{"e2e.spot-handler/stop-after": "10s"},
	})})
	s.must(err)
	s.runPods("app.kubernetes.io/component=imds", func(p *corev1.Pod) daemon.Options {
		return daemon.Options{IMDS: metadata[p.Spec.NodeName].URL}
	})
	replicas := s.runPods("app.kubernetes.io/component=drain", func(*corev1.Pod) daemon.Options { return daemon.Options{} })
	s.leadersGo(replicas, func(node string) { metadata[node].Interrupt("terminate", time.Now().Add(110*time.Second)) })
}

// leadersGo has EC2 take the node of the leader, and then those of both replicas at once. The
// replicas are on different offerings, every pod leaves in time, and another leads.
func (s *story) leadersGo(replicas *replicas, interrupt func(node string)) {
	s.Helper()
	leader, follower := replicas.wait(s, nil)
	one, other := s.home(leader), s.home(follower)
	for _, label := range []string{corev1.LabelTopologyZone, corev1.LabelInstanceTypeStable} {
		if one.Labels[label] == other.Labels[label] {
			s.Errorf("both replicas are on %s %s", label, one.Labels[label])
		}
	}
	interrupt(one.Name)
	s.wantAllMoved(one.Name)
	if code := s.waitEnd(replicas.daemon(leader)); code != 0 {
		s.Errorf("the leader ended with code %d, want 0", code)
	}

	leader, follower = replicas.wait(s, []string{one.Name})
	one, other = s.home(leader), s.home(follower)
	interrupt(one.Name)
	interrupt(other.Name)
	s.wantAllMoved(one.Name, other.Name)
}

// offerings makes a node for each zone and type, such as a/m5.xlarge.
func (s *story) offerings(prefix string, labels map[string]string, cpus int, offerings ...string) (nodes []*corev1.Node) {
	s.Helper()
	for _, o := range offerings {
		all := map[string]string{corev1.LabelTopologyZone: o[:1], corev1.LabelInstanceTypeStable: o[2:]}
		maps.Copy(all, labels)
		made, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 1, Prefix: prefix, Labels: all, CPUs: cpus})
		s.must(err)
		nodes = append(nodes, made...)
	}
	return nodes
}

// fill takes processors of the node.
func (s *story) fill(node, cpu string) {
	s.Helper()
	s.service("fill-"+node, 1, func(d *controlplane.DeploymentSpec) {
		d.CPU, d.NodeSelector = cpu, map[string]string{corev1.LabelHostname: node}
	})
}

// home is the pod's node.
func (s *story) home(pod *corev1.Pod) *corev1.Node {
	s.Helper()
	return s.lastSeen(pod.Spec.NodeName)
}

// wantAllMoved waits for the ends of the drains: every pod had its whole grace period.
func (s *story) wantAllMoved(nodes ...string) {
	s.Helper()
	for _, node := range nodes {
		rec := s.waitRecord(node, func(r interruption.Record) bool { return r.Phase.Over() })
		if p := rec.Pods; rec.Phase == interruption.DeadlineReached || p == nil || p.Graceful != p.Total {
			s.Errorf("record %s, want all pods graceful", rec)
		}
	}
}

// replicas runs the program for pods that the chart has installed, each for as long as its pod
// lives, as kubelets do.
type replicas struct {
	mu      sync.Mutex
	pods    []*corev1.Pod // those of now
	daemons map[types.UID]*daemon.Daemon
}

// runReplicas runs those of the Deployment.
func (s *story) runReplicas(server *sqsemu.Server) *replicas {
	return s.runPods("app.kubernetes.io/component=queue", func(*corev1.Pod) daemon.Options { return daemon.Options{SQS: server.URL} })
}

// runPods runs those that the selector selects. Its options need not repeat what the pod says.
func (s *story) runPods(selector string, options func(*corev1.Pod) daemon.Options) *replicas {
	r := &replicas{daemons: map[types.UID]*daemon.Daemon{}}
	stopped := map[types.UID]bool{}
	s.background(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Minute) // more than the default of WaitPods
		defer cancel()
		_, _ = s.cluster.WaitPods(ctx, namespace, selector, func(pods []*corev1.Pod) bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.pods = slices.Clone(pods)
			living := map[types.UID]bool{}
			for _, p := range pods {
				living[p.UID] = p.DeletionTimestamp == nil
				if !living[p.UID] || r.daemons[p.UID] != nil || p.Spec.NodeName == "" || !controlplane.Ready(p) {
					continue
				}
				o := options(p)
				o.Args, o.Kubeconfig, o.Log = p.Spec.Containers[0].Args, s.kubeconfig(p.Spec.ServiceAccountName, p.Name), s.Output()
				o.Env = []string{"POD_NAME=" + p.Name, "POD_NAMESPACE=" + p.Namespace, "NODE_NAME=" + p.Spec.NodeName}
				d, err := daemon.Start(o)
				if err != nil {
					s.Error(err)
					return true
				}
				s.Cleanup(d.Kill)
				r.daemons[p.UID] = d
			}
			for uid, d := range r.daemons {
				if !living[uid] && !stopped[uid] {
					stopped[uid] = true
					go d.Stop()
				}
			}
			return false
		})
	})
	return r
}

// daemon is the process of the pod.
func (r *replicas) daemon(pod *corev1.Pod) *daemon.Daemon {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.daemons[pod.UID]
}

// nodes are those with a pod.
func (r *replicas) nodes() map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	on := map[string]bool{}
	for _, p := range r.pods {
		on[p.Spec.NodeName] = true
	}
	return on
}

// wait waits until two replicas run, elsewhere than on the nodes that were interrupted, and one of
// them leads.
func (r *replicas) wait(s *story, gone []string) (leader, follower *corev1.Pod) {
	s.Helper()
	s.within("a leader and a follower", 3*time.Minute, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		leader, follower = nil, nil
		for _, p := range r.pods {
			d := r.daemons[p.UID]
			switch {
			case d == nil || p.DeletionTimestamp != nil || slices.Contains(gone, p.Spec.NodeName):
			case len(d.Lines("leading")) > 0:
				leader = p
			case len(d.Lines("starting")) > 0:
				follower = p
			}
		}
		return leader != nil && follower != nil && len(r.pods) == 2
	}, func() string { return fmt.Sprintf("pods on %v", r.nodes()) })
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	s.must(r.daemon(follower).WaitReady(ctx))
	return leader, follower
}
