package stories

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// crossing is what a watch of all Nodes has seen of those that were recommended.
type crossing struct {
	mu      sync.Mutex
	most    int             // under way at the same moment, from the request of a replacement on
	waited  map[string]bool // nodes that stood in line
	touched []string        // what was marked before its turn, or before its replacement was Ready
}

// watchRebalances follows the Nodes until the story ends.
func (s *story) watchRebalances() *crossing {
	s.Helper()
	c := &crossing{waited: map[string]bool{}}
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Minute)
	s.Cleanup(cancel)
	client := s.cluster.Client.CoreV1().Nodes()
	list, err := client.List(ctx, metav1.ListOptions{})
	s.must(err)
	w, err := client.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	s.must(err)
	underWay := map[string]bool{}
	go func() {
		for event := range w.ResultChan() {
			node, ok := event.Object.(*corev1.Node)
			if !ok {
				continue
			}
			rec, has := record(node)
			c.mu.Lock()
			delete(underWay, node.Name)
			switch {
			case event.Type == "DELETED" || !has || rec.Phase.Over():
			case rec.Phase == interruption.Waiting:
				c.waited[node.Name] = c.waited[node.Name] || !rec.TurnTaken()
				if node.Spec.Unschedulable || hasTaint(node, interruption.TaintKey) {
					c.touched = append(c.touched, node.Name)
				}
			case rec.Replacement == nil && rec.Phase == interruption.Noticed: // no pod has to leave
			case rec.Replacement == nil || rec.Replacement.State != provisioner.StateReady:
				c.touched = append(c.touched, node.Name)
			}
			if has && event.Type != "DELETED" && !rec.Phase.Over() && rec.TurnTaken() {
				underWay[node.Name] = true
				c.most = max(c.most, len(underWay))
			}
			c.mu.Unlock()
		}
	}()
	return c
}

func (c *crossing) want(s *story, most, waited int) {
	s.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.most > most || c.most == 0 {
		s.Errorf("%d nodes under way at a time, want %d at most", c.most, most)
	}
	if len(c.waited) < waited || len(c.touched) > 0 {
		s.Errorf("%d nodes stood in line, want %d; marked too early: %v", len(c.waited), waited, c.touched)
	}
}

// Twelve nodes of a pool are recommended at once. Two at a time are replaced, the others
// take pods until it is their turn, and in the end all are done, with no pod fewer at any
// time. The daemon is killed in the middle: the next goes on with those that have begun.
func TestRebalancesStandInLine(t *testing.T) {
	s := newStory(long(t), controlplane.Options{Karpenter: true})
	s.pools(time.Second)
	nodes, err := s.cluster.CreateNodes(s.ctx, "batch", 12)
	s.must(err)
	s.service("web", 12, func(d *controlplane.DeploymentSpec) {
		quick(d)
		d.BudgetMinAvailable = budget(11)
	})
	fewest := s.watchReady("web")
	seen := s.watchRebalances()
	server, queue := s.sqs()
	// A spot instance that kwok's provider cannot launch would hold up each turn for 25 s.
	flags := []string{"--max-concurrent-rebalances=2", "--rebalance=fallback"}
	first := s.runReplica(server, queue, flags...)
	for i, node := range nodes {
		queue.Send(daemon.EventBridge(daemon.Rebalance, fmt.Sprint("event-", i), controlplane.InstanceID(node.Name), time.Now()))
	}
	s.waitLine(first, "drained")
	first.Kill()
	s.runReplica(server, queue, flags...)
	for _, node := range nodes {
		s.waitGone(node.Name)
	}
	seen.want(s, 2, 12)
	if n := fewest(); n < 12 {
		t.Errorf("%d pods ready at the least, want 12 all the time", n)
	}
}

// In imds mode the processes on the nodes only mark. Two that are recommended in the same second
// go one after the other.
func TestRebalancesOfMarkedNodesStandInLine(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	s.pools(time.Second)
	nodes, err := s.cluster.CreateNodes(s.ctx, "batch", 3)
	s.must(err)
	s.service("web", 6, quick)
	seen := s.watchRebalances()
	s.runDrain()
	at := time.Now()
	for _, node := range nodes[:2] {
		imds := s.imds(node)
		s.runIMDS(imds, node, "--drain=false")
		imds.Rebalance(at)
	}
	for _, node := range nodes[:2] {
		s.waitGone(node.Name)
	}
	seen.want(s, 1, 2)
}

// What is done is a matter of the node's pool, by an annotation of its NodePool, and else
// of the flag. Where it is to cordon, the notice that comes later drains.
func TestRebalancePolicyOfThePool(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true, Audit: true})
	policy := func(value string) map[string]string { return map[string]string{"spot-handler/rebalance": value} }
	s.must(s.cluster.CreatePools(s.ctx,
		controlplane.PoolSpec{Name: "replaced", Weight: 90, Capacity: []string{controlplane.Spot, controlplane.OnDemand}, Annotations: policy("fallback")},
		controlplane.PoolSpec{Name: "ignored", Annotations: policy("ignore")},
		controlplane.PoolSpec{Name: "misspelt", Annotations: policy("evacuate")},
		controlplane.PoolSpec{Name: "on-demand", Weight: 10, Boot: time.Second, Capacity: []string{controlplane.OnDemand}},
	))
	byPool := map[string]*corev1.Node{}
	for _, pool := range []string{"replaced", "ignored", "misspelt"} {
		byPool[pool] = s.node(pool)
		s.service(pool, 2, quick) // the first is on the node that is to be replaced
	}
	d, queue := s.drill("--rebalance=cordon")
	for pool, node := range byPool {
		queue.Send(daemon.EventBridge(daemon.Rebalance, "event-"+pool, controlplane.InstanceID(node.Name), time.Now()))
	}

	// The flag's policy is to cordon.
	cordoned := s.waitRecord(byPool["misspelt"].Name, func(r interruption.Record) bool { return r.Phase == interruption.Noticed })
	if cordoned.Replacement != nil || !s.lastSeen(byPool["misspelt"].Name).Spec.Unschedulable {
		t.Errorf("record %s, want a cordon and no more", cordoned)
	}
	s.eventually("Event on the NodePool", func() bool {
		return slices.ContainsFunc(s.events("RebalancePolicyUnknown", "misspelt"), func(e corev1.Event) bool {
			return e.InvolvedObject.Kind == "NodePool" && strings.Contains(e.Message, "evacuate")
		})
	})
	s.eventually("count of the ignored one", func() bool {
		return s.metric(d, `spot_handler_messages_total{outcome="ignored"}`) == 1
	})
	if node := s.lastSeen(byPool["ignored"].Name); node.Spec.Unschedulable || node.Annotations[interruption.Annotation] != "" {
		t.Errorf("the ignored node is marked: %v", node.Annotations)
	}
	// The pool that is left has on-demand instances, too; but it is the one at risk.
	replaced := s.waitRecord(byPool["replaced"].Name, func(r interruption.Record) bool { return r.Replacement != nil && r.Replacement.Name != "" })
	if replaced.Replacement.Pool != "on-demand" {
		t.Errorf("replacement %+v, want one in another pool", replaced.Replacement)
	}
	s.waitGone(byPool["replaced"].Name)

	still := s.waitRecord(byPool["misspelt"].Name, func(interruption.Record) bool { return true })
	if still.Phase != interruption.Noticed || still.Replacement != nil {
		t.Errorf("record %s, want the node cordoned and no more", still)
	}
	interrupt(queue, byPool["misspelt"].Name, 2*time.Minute)
	s.waitGone(byPool["misspelt"].Name)
	for _, line := range d.Lines("drained") {
		if line["left"] != 0.0 {
			t.Errorf("want none left: %v", line)
		}
	}
}

// EC2 leaves the instances alone. What was set for the recommendation is undone after the
// TTL; what an admin had set stays. No pod has been moved.
func TestRecommendationThatComesToNothingIsUndone(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	nodes, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 3})
	s.must(err)
	plain, admins, noticed := nodes[0].Name, nodes[1].Name, nodes[2].Name
	for _, node := range nodes {
		_, err := s.cluster.Client.CoreV1().Pods("default").Create(s.ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "on-" + node.Name},
			Spec:       corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{Name: "app", Image: "fake"}}},
		}, metav1.CreateOptions{})
		s.must(err)
	}
	s.patchNode(admins, "", `{"metadata":{"labels":{"`+interruption.ExcludeFromLoadBalancers+`":"by-hand"}},"spec":{"unschedulable":true}}`)

	d, queue := s.drill("--rebalance=cordon", "--rebalance-ttl=10s")
	for _, name := range []string{plain, admins, noticed} {
		queue.Send(daemon.EventBridge(daemon.Rebalance, "event-"+name, controlplane.InstanceID(name), time.Now()))
		s.waitRecord(name, func(r interruption.Record) bool { return r.Phase == interruption.Noticed })
	}
	interrupt(queue, noticed, 2*time.Minute) // this one EC2 does take
	for _, name := range []string{plain, admins} {
		undone, err := s.cluster.WaitNode(s.ctx, name, func(n *corev1.Node) bool { _, has := record(n); return !has })
		s.must(err)
		if hasTaint(undone, interruption.TaintKey) {
			t.Errorf("%s: taints %v", name, undone.Spec.Taints)
		}
		_, label := undone.Labels[interruption.ExcludeFromLoadBalancers]
		if own := name == admins; undone.Spec.Unschedulable != own || label != own {
			t.Errorf("%s: cordon %v, labels %v; want the node as it was", name, undone.Spec.Unschedulable, undone.Labels)
		}
		pod, err := s.cluster.Client.CoreV1().Pods("default").Get(s.ctx, "on-"+name, metav1.GetOptions{})
		s.must(err)
		if pod.DeletionTimestamp != nil {
			t.Errorf("%s was moved, though its node was only to be cordoned", pod.Name)
		}
	}
	s.waitRecord(noticed, func(r interruption.Record) bool {
		return r.Kind == interruption.SpotInterruption && r.Phase == interruption.Released
	})
	if lines := d.Lines("rebalance recommendation dropped"); len(lines) != 2 {
		t.Errorf("%d dropped, want 2: %v", len(lines), lines)
	}
}
