package stories

import (
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/drain/plan"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/placeholder"
)

// Names of the chart and of the stories below.
const (
	holdNamespace = "spot-handler-placeholders"
	lifecycle     = "node-lifecycle"
	onDemand      = lifecycle + "=on-demand"
)

// holder starts a daemon in queue mode, with the rights of the chart.
func (s *story) holder(server *sqsemu.Server, queue *sqsemu.Queue, flags ...string) *daemon.Daemon {
	s.Helper()
	d, err := daemon.Start(s.holderOptions(server, queue, flags...))
	s.must(err)
	s.Cleanup(d.Kill)
	return d
}

func (s *story) holderOptions(server *sqsemu.Server, queue *sqsemu.Queue, flags ...string) daemon.Options {
	s.Helper()
	args := append([]string{"queue", "--queue-url=" + queue.URL(), "--fallback-selector=" + onDemand, "--pod-namespace=" + namespace,
		"--drain-strategy=hold"}, flags...) // a surged pod has no placeholder
	return daemon.Options{Args: args, SQS: server.URL, Kubeconfig: s.kubeconfig(queueAccount, ""), Log: s.Output()}
}

// placeholders that there are at this moment.
func (s *story) placeholders() []corev1.Pod {
	s.Helper()
	list, err := s.cluster.Client.CoreV1().Pods(holdNamespace).List(s.ctx, metav1.ListOptions{LabelSelector: placeholder.Label})
	s.must(err)
	return list.Items
}

// noneHeld waits until nothing is left of any placeholder.
func (s *story) noneHeld() {
	s.Helper()
	s.eventually("no placeholder left", func() bool {
		templates, err := s.cluster.Client.CoreV1().PodTemplates(holdNamespace).List(s.ctx, metav1.ListOptions{})
		s.must(err)
		return len(s.placeholders()) == 0 && len(templates.Items) == 0
	})
}

// bound counts the placeholders that have a place.
func bound(pods []corev1.Pod) (n int) {
	for _, p := range pods {
		if p.Spec.NodeName != "" {
			n++
		}
	}
	return n
}

// placeholdersMade counts, by name, the placeholders that the API server has taken.
func (s *story) placeholdersMade() map[string]int {
	s.Helper()
	made := map[string]int{}
	for _, r := range s.requests(func(r request) bool {
		return r.Verb == "create" && r.ObjectRef.Resource == "pods" && r.ObjectRef.Subresource == "" && r.ResponseStatus.Code == 201
	}) {
		made[r.ObjectRef.Name]++
	}
	return made
}

// autoscaler plays Cluster Autoscaler: it makes nodes of the fallback group for pods
// that the scheduler has found no place for, placeholders or not, counting each pod as
// the real one does. Pods that wait for a preemption have their place.
// https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md
type autoscaler struct {
	*story
	cpus int           // of a node
	boot time.Duration // from the decision to the node

	mu      sync.Mutex
	ordered int
	booting int
}

// autoscale starts an autoscaler.
func (s *story) autoscale(cpus int, boot time.Duration) *autoscaler {
	a := &autoscaler{story: s, cpus: cpus, boot: boot}
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(500 * time.Millisecond) // the real one looks every 10 s
		defer tick.Stop()
		for {
			select {
			case <-s.ctx.Done():
				return
			case <-tick.C:
				a.scale(&running)
			}
		}
	})
	s.Cleanup(running.Wait)
	return a
}

// nodes is how many it has made or ordered.
func (a *autoscaler) nodes() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ordered
}

func (a *autoscaler) scale(running *sync.WaitGroup) {
	a.mu.Lock() // a node is either booting or in the list
	defer a.mu.Unlock()
	client := a.cluster.Client.CoreV1()
	// Nodes first: a pod that is bound meanwhile counts as pending at worst on room that
	// counts as free.
	nodes, err := client.Nodes().List(a.ctx, metav1.ListOptions{LabelSelector: onDemand})
	if err != nil {
		return // stopped
	}
	pods, err := client.Pods("").List(a.ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	free := map[string]int64{}
	for _, n := range nodes.Items {
		free[n.Name] = n.Status.Allocatable.Cpu().MilliValue()
	}
	demand := int64(0)
	for _, p := range pods.Items {
		cpu := int64(0)
		for _, c := range p.Spec.Containers {
			cpu += c.Resources.Requests.Cpu().MilliValue()
		}
		switch {
		case p.Spec.NodeName != "":
			free[p.Spec.NodeName] -= cpu
		case p.Status.NominatedNodeName != "":
		case plan.Unschedulable(&p):
			demand += cpu
		}
	}
	supply := int64(a.booting * a.cpus * 1000)
	for _, n := range nodes.Items {
		supply += max(0, free[n.Name])
	}
	more := int(math.Ceil(float64(demand-supply) / float64(a.cpus*1000)))
	if more <= 0 {
		return
	}
	a.Logf("autoscaler: %d m are wanted, %d m are free or on their way: %d more nodes", demand, supply, more)
	for range more {
		prefix := "od-" + strings.ToLower(string(rune('a'+a.ordered/26))+string(rune('a'+a.ordered%26)))
		a.ordered++
		a.booting++
		running.Go(func() { a.bootNode(prefix) })
	}
}

func (a *autoscaler) bootNode(prefix string) {
	select {
	case <-a.ctx.Done():
		return
	case <-time.After(a.boot):
	}
	_, err := a.cluster.CreateBareNodes(a.ctx, controlplane.BareNodes{
		Count: 1, Prefix: prefix, CPUs: a.cpus, Labels: map[string]string{lifecycle: "on-demand"},
	})
	if err != nil && a.ctx.Err() == nil {
		a.Errorf("boot a node: %v", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.booting--
}

// spot makes bare nodes that nobody's autoscaler claims.
func (s *story) spot(n, cpus int) []*corev1.Node {
	s.Helper()
	nodes, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{
		Count: n, Prefix: "spot", CPUs: cpus, Labels: map[string]string{lifecycle: "spot"},
	})
	s.must(err)
	return nodes
}

// A node that Karpenter did not make is interrupted: placeholders have the autoscaler
// make room, the pods move in, and nothing is left of the placeholders. At no time does
// the autoscaler see more wanted than the pods themselves need.
func TestPlaceholdersMakeRoom(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	s.accounts(inBothModes)
	node := s.spot(1, 4)[0]
	const pods = 6
	s.service("web", pods, func(d *controlplane.DeploymentSpec) { d.BudgetMinAvailable = budget(pods - 2) })
	cas := s.autoscale(4, 4*time.Second)
	server, queue := s.sqs()
	d := s.holder(server, queue, alone)
	fewest := s.watchReady("web")

	queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-1", controlplane.InstanceID(node.Name), time.Now()))
	s.eventually("a placeholder for each pod", func() bool { return len(s.placeholders()) == pods })
	for _, p := range s.placeholders() {
		c := p.Spec.Containers[0]
		if got := c.Resources.Requests; got.Cpu().String() != "500m" || got.Memory().String() != "64Mi" {
			t.Errorf("placeholder requests %v, want what its pod does", got)
		}
		if *p.Spec.Priority != -5 || *p.Spec.PreemptionPolicy != corev1.PreemptNever {
			t.Errorf("priority %d, preemption %s, want -5 and Never", *p.Spec.Priority, *p.Spec.PreemptionPolicy)
		}
	}
	if on := len(s.podsOn(node.Name, "web")); on != pods {
		t.Errorf("%d pods on the interrupted node, want all %d to wait for the room", on, pods)
	}

	rec := s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Released })
	if rec.Pods == nil || rec.Pods.Graceful != pods || rec.Pods.Left != 0 {
		t.Errorf("record %s, want %d pods graceful", rec, pods)
	}
	if r := rec.Replacement; r == nil || r.Backend != provisioner.Placeholder || r.State != provisioner.StateReady || r.Pool != onDemand {
		t.Errorf("record %s, want a replacement by placeholders that is Ready", rec)
	}
	moved, err := s.cluster.WaitReady(s.ctx, "default", "web", pods)
	s.must(err)
	for _, p := range moved {
		if !strings.HasPrefix(p.Spec.NodeName, "od-") {
			t.Errorf("pod %s is on node %s", p.Name, p.Spec.NodeName)
		}
	}
	s.noneHeld()
	if n := cas.nodes(); n != 1 {
		t.Errorf("the autoscaler has made %d nodes, want 1", n)
	}
	if n := fewest(); n < pods-2 {
		t.Errorf("%d pods were ready at the worst moment, the budget wants %d", n, pods-2)
	}
	if made := s.placeholdersMade(); len(made) != pods {
		t.Errorf("placeholders made: %v, want %d", slices.Collect(maps.Keys(made)), pods)
	}
	chosen := s.waitLine(d, "provisioner chosen")
	if chosen["backend"] != provisioner.Placeholder || chosen["why"] == "" {
		t.Errorf("the log says %v", chosen)
	}
	if n := s.metric(d, `spot_handler_replacements_total{backend="placeholder",result="ready"}`); n != 1 {
		t.Errorf("%v replacements ready by the metric, want 1", n)
	}
	for _, r := range s.requests(func(r request) bool { return r.ResponseStatus.Code == 401 || r.ResponseStatus.Code == 403 }) {
		t.Errorf("%d: %s %s", r.ResponseStatus.Code, r.Verb, r.RequestURI)
	}
}

// A node is recommended for rebalance, and its pods can be surged. No replacement pod is made before
// there is room, so placeholders ask for that; then the node is cordoned, and no pod is missed.
func TestPlaceholdersMakeRoomForARecommendedNode(t *testing.T) {
	s := newStory(t, controlplane.Options{})
	s.accounts(inBothModes)
	node := s.spot(1, 4)[0]
	const pods = 4
	s.service("web", pods, quick)
	cas := s.autoscale(4, 2*time.Second)
	server, queue := s.sqs()
	s.holder(server, queue, alone, "--drain-strategy=surge")
	fewest, seen := s.watchReady("web"), s.watchRebalances()

	queue.Send(daemon.EventBridge(daemon.Rebalance, "event-1", controlplane.InstanceID(node.Name), time.Now()))
	rec := s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Released })
	if rec.Pods == nil || rec.Pods.Graceful != pods {
		t.Errorf("record %s, want %d pods graceful", rec, pods)
	}
	seen.want(s, 1, 1)
	s.noneHeld()
	if n := cas.nodes(); n != 1 {
		t.Errorf("the autoscaler has made %d nodes, want 1", n)
	}
	if n := fewest(); n < pods {
		t.Errorf("%d pods were ready at the worst moment, want %d", n, pods)
	}
}
