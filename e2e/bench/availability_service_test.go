package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/imdsemu"
	"spot-handler/e2e/sqsemu"
)

// outage is what an interruption has cost a service.
type outage struct {
	podSeconds float64 // unavailable
	fewest     int     // ready pods
	ready      []point // how many pods were ready from which second after the notice
	drained    float64 // seconds from the notice until the node was empty
	rough      int     // pods that did not end gracefully
	claims     int     // nodes that were made for it
}

// service is a Deployment that fills its nodes, with a spot pool and one to fall back on.
type service struct {
	*testing.B
	cluster *controlplane.Cluster
	name    string
	pods    int
	cpu     string // of each; "1" by default
	nodes   int
	spare   int // empty nodes beside
	ready   time.Duration
	sleep   time.Duration // before SIGTERM, as a preStop hook
	grace   time.Duration
	notice  time.Duration // before the instance goes; noticeTime where 0
	budget  intstr.IntOrString
}

// lose interrupts one of the service's nodes, as a daemon with the flags handles it.
func (s service) lose(flags []string) outage {
	ctx, cancel := context.WithTimeout(s.Context(), 2*availableWait)
	defer cancel()
	node := s.setUp(ctx)[0]
	emulator := imdsemu.Start(imdsemu.Options{InstanceID: controlplane.InstanceID(node.Name)})
	defer emulator.Close()
	d := start(s.B, daemon.Options{
		Args: append([]string{"imds", "--node-name=" + node.Name}, flags...), Kubeconfig: s.cluster.Kubeconfig, IMDS: emulator.URL,
	})
	must(s.B, d.WaitReady(ctx))
	defer d.Kill()

	before := s.claims(ctx)
	noticed := time.Now()
	emulator.Interrupt("terminate", noticed.Add(cmp.Or(s.notice, noticeTime)))
	interrupted := map[string]bool{node.Name: true}
	result := s.watch(ctx, interrupted, noticed)
	result.rough = notGraceful(d, interrupted)
	result.claims = s.made(ctx, before)
	return result
}

// loseMany interrupts many of the service's nodes at once, through the queue.
func (s service) loseMany(n int, flags []string) outage {
	ctx, cancel := context.WithTimeout(s.Context(), 2*availableWait)
	defer cancel()
	nodes := s.setUp(ctx)[:n]
	sqs := sqsemu.Start()
	defer sqs.Close()
	queue := sqs.Queue("spot-handler")
	d := start(s.B, daemon.Options{
		Args: append([]string{"queue", "--queue-url=" + queue.URL()}, flags...), Kubeconfig: s.cluster.Kubeconfig, SQS: sqs.URL,
	})
	must(s.B, d.WaitReady(ctx))
	defer d.Kill()

	return s.follow(ctx, d, nodes, func(noticed time.Time) {
		for i, node := range nodes {
			queue.Send(daemon.EventBridge(daemon.SpotInterruption, fmt.Sprintf("event-%d", i), controlplane.InstanceID(node.Name), noticed))
		}
	})
}

// follow interrupts the nodes and adds up what that costs until d has drained them all.
func (s service) follow(ctx context.Context, d *daemon.Daemon, nodes []*corev1.Node, interrupt func(noticed time.Time)) outage {
	before := s.claims(ctx)
	noticed, interrupted := time.Now(), map[string]bool{}
	for _, node := range nodes {
		interrupted[node.Name] = true
	}
	interrupt(noticed)
	result := s.watch(ctx, interrupted, noticed)
	for len(ends(d, interrupted)) < len(nodes) {
		pause(s.B, ctx, 50*time.Millisecond)
	}
	result.rough = notGraceful(d, interrupted)
	result.claims = s.made(ctx, before)
	return result
}

// ends is what the daemon says at the end of the nodes' drains.
func ends(d *daemon.Daemon, nodes map[string]bool) (lines []daemon.Line) {
	for _, message := range []string{"drained", "deadline reached"} {
		for _, line := range d.Lines(message) {
			if name, _ := line["node"].(string); nodes[name] {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// notGraceful counts the pods that did not end gracefully, as the daemon logs.
func notGraceful(d *daemon.Daemon, nodes map[string]bool) (pods int) {
	for _, line := range ends(d, nodes) {
		for _, rough := range []string{"truncated", "forced", "left"} {
			n, _ := line[rough].(float64)
			pods += int(n)
		}
	}
	return pods
}

// setUp makes the pools, the nodes and the Deployment, and returns its full nodes.
func (s service) setUp(ctx context.Context) []*corev1.Node {
	label := map[string]string{"bench.spot-handler/service": s.name}
	must(s.B, s.cluster.CreatePools(ctx,
		controlplane.PoolSpec{
			Name: s.name + "-spot", Weight: 100, Boot: bootTime, Labels: label,
			Annotations: map[string]string{"spot-handler/fallback-nodepool": s.name + "-fallback"},
		},
		controlplane.PoolSpec{
			Name: s.name + "-fallback", Weight: 10, Boot: bootTime, Labels: label, Capacity: []string{controlplane.OnDemand},
		}))
	nodes, err := s.cluster.CreateNodes(ctx, s.name+"-spot", s.nodes)
	must(s.B, err)
	stop := s.sleep + stopTime
	_, err = s.cluster.RunDeployment(ctx, controlplane.DeploymentSpec{
		Name: s.name, Replicas: s.pods, CPU: cmp.Or(s.cpu, "1"), NodeSelector: label, Grace: s.grace, BudgetMaxUnavailable: &s.budget,
		Behaviour: controlplane.Behaviour{ReadyAfter: &s.ready, StopAfter: &stop},
		Change: func(d *appsv1.Deployment) {
			if s.sleep > 0 {
				d.Spec.Template.Spec.Containers[0].Lifecycle = preStopSleep(s.sleep)
			}
		},
	})
	must(s.B, err)
	_, err = s.cluster.WaitReady(ctx, "", s.name, s.pods)
	must(s.B, err)
	_, err = s.cluster.CreateNodes(ctx, s.name+"-spot", s.spare)
	must(s.B, err)
	return nodes
}

// watch follows the service's pods until the nodes are empty and all are ready again, and
// at least until the nodes go: what happens to the pods in between counts too.
func (s service) watch(ctx context.Context, interrupted map[string]bool, from time.Time) outage {
	ctx, cancel := context.WithTimeout(ctx, availableWait)
	defer cancel()
	o, last, missing := outage{fewest: s.pods, ready: []point{{0, float64(s.pods)}}}, from, 0
	look := func(pods []*corev1.Pod) bool {
		now, ready, on := time.Now(), 0, 0
		for _, p := range pods {
			if controlplane.Ready(p) {
				ready++
			}
			if interrupted[p.Spec.NodeName] {
				on++
			}
		}
		o.podSeconds += float64(missing) * now.Sub(last).Seconds()
		last, missing = now, max(0, s.pods-ready)
		o.fewest = min(o.fewest, ready)
		if o.ready[len(o.ready)-1][1] != float64(ready) {
			o.ready = append(o.ready, point{now.Sub(from).Seconds(), float64(ready)})
		}
		if on == 0 && o.drained == 0 {
			o.drained = now.Sub(from).Seconds()
		}
		return on == 0 && ready >= s.pods
	}
	_, err := s.cluster.WaitPods(ctx, metav1.NamespaceDefault, controlplane.Selector(s.name), look)
	must(s.B, err)
	rest, cancel := context.WithDeadline(ctx, from.Add(cmp.Or(s.notice, noticeTime)))
	defer cancel()
	_, err = s.cluster.WaitPods(rest, metav1.NamespaceDefault, controlplane.Selector(s.name), func(pods []*corev1.Pod) bool {
		look(pods)
		return false
	})
	if rest.Err() == nil {
		must(s.B, err)
	}
	o.podSeconds += float64(missing) * time.Since(last).Seconds()
	return o
}

// claims names the NodeClaims of the service's pools.
func (s service) claims(ctx context.Context) []string {
	list, err := s.cluster.Dynamic.Resource(controlplane.NodeClaims).List(ctx, metav1.ListOptions{
		LabelSelector: fmt.Sprintf("karpenter.sh/nodepool in (%[1]s-spot,%[1]s-fallback)", s.name),
	})
	must(s.B, err)
	var names []string
	for _, claim := range list.Items {
		names = append(names, claim.GetName())
	}
	return names
}

// made counts the NodeClaims that were not there before.
func (s service) made(ctx context.Context, before []string) (n int) {
	for _, name := range s.claims(ctx) {
		if !slices.Contains(before, name) {
			n++
		}
	}
	return n
}
