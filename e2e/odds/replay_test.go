package odds

import (
	"context"
	"encoding/json"
	"fmt"
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
	services int // Deployments, among which the pods are divided
	zone     string
}

// In the first stretch 9 of 12 instances are lost within seven minutes. In the second 7 are lost, and 2
// more soon after the 7 were granted again; calm is short, so the pods return before the stretch ends.
// In neither is a node lost to which a pod has returned: only the first nodes are. Pods that need 10
// minutes would not return before the second ends, so pods that need 5 show what a return costs.
//
// In the third nothing is lost, and act moves pods in vain. It gives them back when its odds have fallen,
// which the daemon does not know: so its calm, counted from the recommendations, ends at that moment. In
// the first stretch act gives nothing back.
//
// The simulation has a pod leave its node as soon as its own replacement pod is ready. spot-handler keeps
// it until its Deployment has all its pods without it, so on a node that stays it stands in for others:
// with one Deployment, act's pods are unavailable for less than is simulated, and for no more.
//
// Each stretch has a zone, as a pool is calm only when no other loses nodes of its offerings.
var stretches = []replayed{
	{"losses-10s", 5013 * time.Second, 6573 * time.Second, calm, fast, off, 1, "test-zone-a"},
	{"losses-90s", 5013 * time.Second, 6573 * time.Second, calm, 90 * time.Second, off, 1, "test-zone-a"},
	{"losses-90s-oracle", 5013 * time.Second, 6573 * time.Second, calm, 90 * time.Second, oracle, 1, "test-zone-a"},
	{"losses-10m", 5013 * time.Second, 6573 * time.Second, calm, slow, off, 1, "test-zone-a"},
	{"losses-10m-oracle", 5013 * time.Second, 6573 * time.Second, calm, slow, oracle, 1, "test-zone-a"},
	{"losses-10m-act", 5013 * time.Second, 6573 * time.Second, calm, slow, act, 12, "test-zone-a"},
	{"losses-10m-act-one", 5013 * time.Second, 6573 * time.Second, calm, slow, act, 1, "test-zone-a"},
	{"vain-10m-act", 56960 * time.Second, 58520 * time.Second, 670 * time.Second, slow, act, 12, "test-zone-b"},
	{"return-10s", 27 * time.Second, 1587 * time.Second, 5 * time.Minute, fast, off, 1, "test-zone-c"},
	{"return-90s", 27 * time.Second, 1587 * time.Second, 5 * time.Minute, 90 * time.Second, off, 1, "test-zone-c"},
	{"return-5m", 27 * time.Second, 1587 * time.Second, 5 * time.Minute, 5 * time.Minute, off, 1, "test-zone-c"},
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

// fleet is the stretch's, on spot nodes to begin with. Act has the settings that were found on the other
// traces, and what it had learned and not yet used of its caps when the stretch begins.
func (r replayed) fleet(t *trace) *fleet {
	others, p := foundWithout(t), policy{kind: r.policy}
	if r.policy == act {
		p = others.slow
	}
	f := newFleet(t.stretch(r.from, r.to), others.prior, r.ready, p, seed)
	f.calm, f.tick = r.calm, 10*time.Second
	if r.policy == act {
		before := newFleet(t.stretch(0, r.from), others.prior, r.ready, p, seed)
		before.run()
		f.rate, f.budget = before.rate, before.budget
		f.rate.at = epoch
	}
	for i := range f.slots {
		f.slots[i].spot, f.slots[i].fallback = true, false
	}
	return f
}

// What act does in the stretches can be expressed with recommendations and calm: each pod moves ahead at
// most once, and goes back when calm is over, or a minute after another.
func TestReplayedAct(t *testing.T) {
	type move struct {
		slot        int
		ahead, back time.Duration // of the stretch; back is 0 if the pod stays
	}
	for name, want := range map[string]struct {
		ahead []move
		all   float64 // also those on a notice
	}{
		"losses-10m-act": {[]move{
			{slot: 0}, {slot: 1}, {slot: 2}, {slot: 3, ahead: 460 * time.Second},
			{slot: 4, ahead: 690 * time.Second}, {slot: 6, ahead: 690 * time.Second},
		}, 6 + 6},
		"vain-10m-act": {[]move{
			{slot: 0, back: 670 * time.Second}, {slot: 1, back: 730 * time.Second}, {slot: 2, back: 790 * time.Second},
		}, 3 + 3},
	} {
		r := stretches[slices.IndexFunc(stretches, func(r replayed) bool { return r.name == name })]
		f := r.fleet(recordedTraces(t)[0])
		f.run()
		var got []move
		for i, s := range f.slots {
			m := move{slot: i}
			if !s.returned.IsZero() {
				m.back = s.returned.Sub(epoch) - boot - r.ready
			}
			if !s.moved.IsZero() {
				m.ahead = s.moved.Sub(epoch)
				got = append(got, m)
			}
		}
		if !slices.Equal(got, want.ahead) || f.cost.moves != want.all {
			t.Errorf("%s: act moves %v and %.0f pods in all, want %v and %.0f", name, got, f.cost.moves, want.ahead, want.all)
		}
		if m := want.ahead[0]; m.back != 0 && m.back != r.calm {
			t.Errorf("%s: the first pod goes back after %s, want %s", name, m.back, r.calm)
		}
	}
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
	planned *fleet         // when its stretch is over
	slots   []slot         // before
	nodes   []*corev1.Node // of the slots

	apps map[string]bool    // the Deployments
	pods map[types.UID]bool // that there ever were
	cost cost
}

// setUp makes the pools, the nodes, and Deployments with a pod on each. No budget limits evictions,
// and all pods can be surged at a time, as in the simulation.
func setUp(ctx context.Context, b *testing.B, cluster *controlplane.Cluster, r replayed, planned *fleet) *realFleet {
	f := &realFleet{replayed: r, B: b, cluster: cluster, planned: planned, slots: slices.Clone(planned.slots), apps: map[string]bool{}, pods: map[types.UID]bool{}}
	planned.run()
	label := map[string]string{"fleet": r.name}
	f.must(cluster.CreatePools(ctx,
		controlplane.PoolSpec{
			Name: r.name, Weight: 100, Boot: boot, Labels: label, Zones: []string{r.zone},
			Annotations: map[string]string{"spot-handler/fallback-nodepool": r.fallback(), "spot-handler/calm": r.calm.String()},
		},
		controlplane.PoolSpec{
			Name: r.fallback(), Boot: boot, Labels: label, Capacity: []string{controlplane.OnDemand}, ConsolidateAfter: "0s",
		}))
	var err error
	f.nodes, err = cluster.CreateNodes(ctx, r.name, len(planned.slots))
	f.must(err)
	for i := range r.services {
		f.deploy(ctx, fmt.Sprintf("%s-%d", r.name, i), label)
	}
	return f
}

// each is how many pods a Deployment has.
func (f *realFleet) each() int { return len(f.nodes) / f.services }

// deploy makes a Deployment, whose first pods need not become ready slowly.
func (f *realFleet) deploy(ctx context.Context, name string, label map[string]string) {
	f.apps[name] = true
	all := intstr.FromString("100%")
	_, err := f.cluster.RunDeployment(ctx, controlplane.DeploymentSpec{
		Name: name, Replicas: f.each(), CPU: "5", NodeSelector: label, MaxSurge: &all,
		Behaviour: controlplane.Behaviour{ReadyAfter: &f.ready},
	})
	f.must(err)
	started := func(pods []*corev1.Pod) bool { return len(pods) == f.each() }
	pods, err := f.cluster.WaitPods(ctx, metav1.NamespaceDefault, controlplane.Selector(name), started)
	f.must(err)
	soon := time.Second
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": controlplane.Behaviour{ReadyAfter: &soon}.Annotations()}})
	f.must(err)
	for _, p := range pods {
		f.pods[p.UID] = true
		_, err := f.cluster.Client.CoreV1().Pods(metav1.NamespaceDefault).Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		f.must(err)
	}
	_, err = f.cluster.WaitReady(ctx, "", name, f.each())
	f.must(err)
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

// lose has EC2 announce what the fleet is to lose: each slot's first loss. A node whose pod act moves
// ahead is recommended for rebalance when it does in the simulation, and with the oracle as long before
// its loss, which in the simulation is only noticed at the next tick.
func (f *realFleet) lose(ctx context.Context, queue *sqsemu.Queue, began time.Time) {
	type message struct {
		after time.Duration
		kind  string
		node  string
	}
	var messages []message
	for i, node := range f.nodes {
		losses, moved := f.slots[i].losses, f.planned.slots[i].moved.Sub(epoch)
		if len(losses) > 0 {
			messages = append(messages, message{losses[0].Sub(epoch), daemon.SpotInterruption, node.Name})
			if f.policy == oracle {
				moved = max(0, losses[0].Sub(epoch)-f.planned.need-f.planned.tick)
			}
		}
		if moved >= 0 { // it moves
			messages = append(messages, message{moved, daemon.Rebalance, node.Name})
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
			ready, lacking, fallback := map[string]int{}, 0, 0
			for _, p := range pods.Items {
				app := p.Labels["app"]
				if !f.apps[app] {
					continue
				}
				f.pods[p.UID] = true
				if controlplane.Ready(&p) {
					ready[app]++
				}
			}
			for app := range f.apps {
				lacking += max(0, f.each()-ready[app])
			}
			for _, c := range claims.Items {
				if c.GetLabels()["karpenter.sh/nodepool"] == f.fallback() {
					fallback++
				}
			}
			f.cost.unavailable += float64(lacking) * now.Sub(last).Seconds()
			f.cost.fallback += float64(fallback) * now.Sub(last).Minutes()
			f.cost.moves = float64(len(f.pods) - len(f.nodes))
			if now.Sub(told) >= time.Minute {
				fmt.Printf("%4.0f s: %-20s %2d of %d pods ready, %2d fallback nodes\n", now.Sub(began).Seconds(), f.name, len(f.nodes)-lacking, len(f.nodes), fallback)
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
	pods, moves := float64(len(f.nodes)), f.planned.cost.moves
	fmt.Printf("%s\n", strings.ReplaceAll(f.name, "-", ", "))
	for _, of := range []struct {
		what                       string
		real, simulated, tolerance float64
		atMost                     bool
	}{
		{"unavailable seconds per pod", f.cost.unavailable / pods, f.planned.cost.unavailable / pods, moreUnavailable * moves / pods, f.policy == act && f.services == 1},
		{"moves per pod", f.cost.moves / pods, moves / pods, 0, false},
		{"fallback node-minutes", f.cost.fallback, f.planned.cost.fallback, moreFallback * moves, false},
	} {
		fmt.Printf("  %-28s %6.1f, simulated %6.1f\n", of.what, of.real, of.simulated)
		if more := of.real - of.simulated; more > of.tolerance+1e-9 || !of.atMost && -more > of.tolerance+1e-9 {
			b.Errorf("%s: %s: %.1f, want %.1f ± %.1f", f.name, of.what, of.real, of.simulated, of.tolerance)
		}
	}
}
