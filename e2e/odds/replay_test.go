package odds

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/sqsemu"
)

// replayed is a stretch of g4dn us-east-1c that a fleet goes through, both in the simulation and on a
// control plane, in real time.
type replayed struct {
	name     string
	from, to time.Duration // of the trace
	calm     time.Duration // before the way back
	ready    time.Duration // of the fleet's pods
	policy   kind
}

// In the first stretch 9 of 12 instances are lost within seven minutes. In the second 7 are lost, and 2
// more soon after the 7 were granted again; calm is short, so the pods return before the stretch ends.
// In neither is a node lost to which a pod has returned: only the first nodes are. Pods that need 10
// minutes would not return before the second ends, so pods that need 5 show what a return costs.
var stretches = []replayed{
	{"losses-10s", 5013 * time.Second, 6573 * time.Second, calm, fast, off},
	{"losses-90s", 5013 * time.Second, 6573 * time.Second, calm, 90 * time.Second, off},
	{"losses-90s-oracle", 5013 * time.Second, 6573 * time.Second, calm, 90 * time.Second, oracle},
	{"losses-10m", 5013 * time.Second, 6573 * time.Second, calm, slow, off},
	{"losses-10m-oracle", 5013 * time.Second, 6573 * time.Second, calm, slow, oracle},
	{"return-10s", 27 * time.Second, 1587 * time.Second, 5 * time.Minute, fast, off},
	{"return-90s", 27 * time.Second, 1587 * time.Second, 5 * time.Minute, 90 * time.Second, off},
	{"return-5m", 27 * time.Second, 1587 * time.Second, 5 * time.Minute, 5 * time.Minute, off},
}

// seed chooses which nodes are lost: one with which both stretches lose some every time.
const seed = 4

// stretch is the trace from one moment to another, which become its epoch and its end.
func (t *trace) stretch(from, to time.Duration) *trace {
	part := &trace{name: t.name, target: t.target, end: epoch.Add(to - from)}
	for _, s := range t.steps {
		switch at := s.at.Add(-from); {
		case !at.After(epoch):
			part.steps = []step{{at: epoch, now: s.now}}
		case at.Before(part.end):
			s.at = at
			part.steps = append(part.steps, s)
		}
	}
	return part
}

// fleet is the stretch's, on spot nodes to begin with.
func (r replayed) fleet(t *trace) *fleet {
	f := newFleet(t.stretch(r.from, r.to), found["none"].prior, r.ready, policy{kind: r.policy}, seed)
	f.calm, f.tick = r.calm, 10*time.Second
	for i := range f.slots {
		f.slots[i].spot, f.slots[i].fallback = true, false
	}
	return f
}

// BenchmarkReplay has the daemon and Karpenter go through what the simulation simulates, all stretches
// at once, and compares what it costs. It takes 28 minutes.
func BenchmarkReplay(b *testing.B) {
	for b.Loop() {
		trace := recordedTraces(b)[0]
		cluster := controlplane.ForTest(b, controlplane.Options{Karpenter: true})
		server := sqsemu.Start(sqsemu.Options{})
		defer server.Close()
		queue, err := server.CreateQueue("spot-handler", nil)
		must(b, err)
		// What replaces recommended nodes, and how many at a time, is as in the simulation.
		d, err := daemon.Start(daemon.Options{
			Args:       []string{"queue", "--queue-url=" + queue.URL(), "--leader-elect=false", "--rebalance=fallback", "--max-concurrent-rebalances=100%"},
			Kubeconfig: cluster.Kubeconfig, SQS: server.URL,
		})
		must(b, err)
		defer d.Kill()
		ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
		defer cancel()
		must(b, d.WaitReady(ctx))
		fmt.Printf("%d fleets of %d nodes start, and are followed for %s\n", len(stretches), trace.target, stretches[0].to-stretches[0].from)
		fleets := make([]*realFleet, len(stretches))
		var group sync.WaitGroup
		for i, r := range stretches {
			group.Go(func() { fleets[i] = setUp(ctx, b, cluster, r, r.fleet(trace)) })
		}
		group.Wait()
		if b.Failed() {
			return
		}
		began := time.Now()
		for _, f := range fleets {
			group.Go(func() { f.lose(ctx, queue, began) })
		}
		watch(ctx, b, cluster, fleets, began)
		cancel() // with a failure, also what is still to be lost
		group.Wait()
		for _, f := range fleets {
			f.compare(b)
		}
	}
}

// realFleet is a fleet of the emulation.
type realFleet struct {
	replayed
	*testing.B
	cluster *controlplane.Cluster
	planned *fleet
	nodes   []*corev1.Node // of the slots

	pods map[types.UID]bool // that there ever were
	cost cost
}

// setUp makes the pools, the nodes, and a Deployment with a pod on each. No budget limits evictions,
// and all pods can be surged at a time, as in the simulation.
func setUp(ctx context.Context, b *testing.B, cluster *controlplane.Cluster, r replayed, planned *fleet) *realFleet {
	f := &realFleet{replayed: r, B: b, cluster: cluster, planned: planned, pods: map[types.UID]bool{}}
	label := map[string]string{"fleet": r.name}
	f.must(cluster.CreatePools(ctx,
		controlplane.PoolSpec{
			Name: r.name, Weight: 100, Boot: boot, Labels: label,
			Annotations: map[string]string{"spot-handler/fallback-nodepool": r.fallback(), "spot-handler/calm": r.calm.String()},
		},
		controlplane.PoolSpec{
			Name: r.fallback(), Boot: boot, Labels: label, Capacity: []string{controlplane.OnDemand}, ConsolidateAfter: "0s",
		}))
	var err error
	f.nodes, err = cluster.CreateNodes(ctx, r.name, len(planned.slots))
	f.must(err)
	all := intstr.FromString("100%")
	_, err = cluster.RunDeployment(ctx, controlplane.DeploymentSpec{
		Name: r.name, Replicas: len(f.nodes), CPU: "5", NodeSelector: label, MaxSurge: &all,
		Behaviour: controlplane.Behaviour{ReadyAfter: &r.ready},
	})
	f.must(err)
	// The first pods need not become ready slowly.
	started := func(pods []*corev1.Pod) bool { return len(pods) == len(f.nodes) }
	pods, err := cluster.WaitPods(ctx, metav1.NamespaceDefault, controlplane.Selector(r.name), started)
	f.must(err)
	soon := time.Second
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": controlplane.Behaviour{ReadyAfter: &soon}.Annotations()}})
	f.must(err)
	for _, p := range pods {
		f.pods[p.UID] = true
		_, err := cluster.Client.CoreV1().Pods(metav1.NamespaceDefault).Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		f.must(err)
	}
	_, err = cluster.WaitReady(ctx, "", r.name, len(f.nodes))
	f.must(err)
	return f
}

func (r replayed) fallback() string { return r.name + "-fallback" }

func (f *realFleet) must(err error) {
	f.Helper()
	must(f.B, err)
}

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// lose has EC2 announce what the fleet is to lose: each slot's first loss. With the oracle, the node is
// recommended for rebalance first, as long ahead as the simulation moves the pod.
func (f *realFleet) lose(ctx context.Context, queue *sqsemu.Queue, began time.Time) {
	type message struct {
		after time.Duration
		kind  string
		node  string
	}
	var messages []message
	for i, s := range f.planned.slots {
		if len(s.losses) == 0 {
			continue
		}
		after, node := s.losses[0].Sub(epoch), f.nodes[i].Name
		messages = append(messages, message{after, daemon.SpotInterruption, node})
		if f.policy == oracle {
			messages = append(messages, message{max(0, after-f.planned.need-f.planned.tick), daemon.Rebalance, node})
		}
	}
	slices.SortFunc(messages, func(a, b message) int { return int(a.after - b.after) })
	for i, m := range messages {
		select {
		case <-time.After(time.Until(began.Add(m.after))):
		case <-ctx.Done():
			return
		}
		node, err := f.cluster.Client.CoreV1().Nodes().Get(ctx, m.node, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && node.DeletionTimestamp != nil {
			continue // given up before
		}
		f.must(err)
		queue.Send(daemon.EventBridge(m.kind, fmt.Sprintf("event-%d-%s", i, m.node), controlplane.InstanceID(m.node), time.Now()))
	}
}

// watch adds up each second what the fleets cost, until the longest stretch is over.
func watch(ctx context.Context, b *testing.B, cluster *controlplane.Cluster, fleets []*realFleet, began time.Time) {
	last, told := began, began
	for over := false; !over && !b.Failed(); {
		select {
		case <-time.After(time.Until(last.Add(time.Second))):
		case <-ctx.Done():
			b.Fatal(context.Cause(ctx))
		}
		pods, err := cluster.Client.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		must(b, err)
		claims, err := cluster.Dynamic.Resource(controlplane.NodeClaims).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		must(b, err)
		now := time.Now()
		over = true
		for _, f := range fleets {
			if now.Sub(began) > f.to-f.from {
				continue
			}
			over = false
			ready, fallback := 0, 0
			for _, p := range pods.Items {
				if p.Labels["app"] != f.name {
					continue
				}
				f.pods[p.UID] = true
				if controlplane.Ready(&p) {
					ready++
				}
			}
			for _, c := range claims.Items {
				if c.GetLabels()["karpenter.sh/nodepool"] == f.fallback() {
					fallback++
				}
			}
			f.cost.unavailable += float64(max(0, len(f.nodes)-ready)) * now.Sub(last).Seconds()
			f.cost.fallback += float64(fallback) * now.Sub(last).Minutes()
			f.cost.moves = float64(len(f.pods) - len(f.nodes))
			if now.Sub(told) >= time.Minute {
				fmt.Printf("%4.0f s: %-20s %2d of %d pods ready, %2d fallback nodes\n", now.Sub(began).Seconds(), f.name, ready, len(f.nodes), fallback)
			}
		}
		if last = now; now.Sub(told) >= time.Minute {
			told = now
		}
	}
}

// The simulation agrees with reality if the moves are the same, and the rest differs by no more than what
// it leaves out explains: some seconds of each move for messages, launch and scheduling, which were two in
// one run and four in another, beside which the machine was busy; and on the way back the minute until the
// daemon checks again whether a pool is calm and the half until Karpenter consolidates, which came to 0.4
// and 0.8 minutes of each move.
const (
	moreUnavailable = 8.0 // seconds of each move
	moreFallback    = 1.5 // node-minutes of each move
)

// compare prints what the stretch has cost beside what the simulation says, and fails if they differ.
func (f *realFleet) compare(b *testing.B) {
	f.planned.run()
	pods, moves := float64(len(f.nodes)), f.planned.cost.moves
	fmt.Printf("%s\n", strings.ReplaceAll(f.name, "-", ", "))
	for _, of := range []struct {
		what                       string
		real, simulated, tolerance float64
	}{
		{"unavailable seconds per pod", f.cost.unavailable / pods, f.planned.cost.unavailable / pods, moreUnavailable * moves / pods},
		{"moves per pod", f.cost.moves / pods, moves / pods, 0},
		{"fallback node-minutes", f.cost.fallback, f.planned.cost.fallback, moreFallback * moves},
	} {
		fmt.Printf("  %-28s %6.1f, simulated %6.1f\n", of.what, of.real, of.simulated)
		if math.Abs(of.real-of.simulated) > of.tolerance+1e-9 {
			b.Errorf("%s: %s: %.1f, want %.1f ± %.1f", f.name, of.what, of.real, of.simulated, of.tolerance)
		}
	}
}
