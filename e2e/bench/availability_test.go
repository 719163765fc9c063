package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/e2e/bench/picture"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/imdsemu"
	"spot-handler/e2e/sqsemu"
)

// What the measured service is like: four full nodes of which one goes, so that the
// successors have no room before a new node has booted.
const (
	bootTime      = 40 * time.Second
	readyTime     = 10 * time.Second
	stopTime      = 10 * time.Second
	noticeTime    = 120 * time.Second
	serviceNodes  = 4
	servicePods   = 28
	availableWait = 200 * time.Second // for all to be over
)

// way is how a node is emptied.
type way struct {
	name   string
	flags  []string
	label  string // in the picture
	colour picture.Colour
}

// ways are compared with the first, which is what `kubectl drain` does.
var ways = []way{
	{"evict at once, no signal", []string{"--drain-strategy=at-once", "--provisioner=none"}, "evict at once, as kubectl drain does", picture.Vermilion},
	{"signal, evict at once", []string{"--drain-strategy=at-once"}, "replacement requested first", picture.Yellow},
	{"hold", []string{"--drain-strategy=hold"}, "hold for the new node", picture.Blue},
	{"surge", nil, "surge (default): successors first", picture.Green},
}

// BenchmarkAvailability interrupts one node of a service in each of the ways, side by
// side on one control plane with Karpenter, and adds up for how long how many of its pods
// were unavailable.
func BenchmarkAvailability(b *testing.B) {
	for name, budget := range map[string]intstr.IntOrString{
		"budget 25%": intstr.FromString("25%"), "budget 2": intstr.FromInt32(2),
	} {
		b.Run(strings.ReplaceAll(name, " ", "-"), func(b *testing.B) {
			for b.Loop() {
				measureAvailability(b, name, budget)
			}
		})
	}
}

// outage is what an interruption has cost a service.
type outage struct {
	podSeconds float64         // unavailable
	fewest     int             // ready pods
	ready      []picture.Point // how many pods were ready from which second after the notice
	drained    float64         // seconds from the notice until the node was empty
	rough      int             // pods that did not end gracefully
	claims     int             // nodes that were made for it
}

func measureAvailability(b *testing.B, title string, budget intstr.IntOrString) {
	cluster := controlplane.ForTest(b, controlplane.Options{Karpenter: true})
	results := make([]outage, len(ways))
	var group sync.WaitGroup
	for i, w := range ways {
		group.Go(func() {
			s := service{
				B: b, cluster: cluster, name: fmt.Sprintf("way-%d", i), pods: servicePods, nodes: serviceNodes, ready: readyTime,
				budget: budget, grace: 30 * time.Second,
			}
			results[i] = s.lose(w.flags)
		})
	}
	group.Wait()
	if b.Failed() {
		return
	}
	if budget.Type == intstr.String {
		must(b, readyPods(results).Write(readyPodsFile))
	}
	first := results[0].podSeconds
	for i, w := range ways {
		r := results[i]
		figure := row{what: fmt.Sprintf("unavailable, %s: %s", title, w.name), unit: "pod s", values: []float64{r.podSeconds}}
		switch w.name {
		case "hold":
			figure.limit, figure.ofLimit, figure.goal = []float64{first}, true, 0.22
			if budget.Type == intstr.Int {
				figure.goal = 0.5
			}
		case "surge":
			figure.none = true
		}
		report(figure)
		report(row{what: fmt.Sprintf("  fewest ready of %d; not graceful; nodes made", servicePods), text: fmt.Sprintf("%d; %d; %d", r.fewest, r.rough, r.claims)})
		report(row{what: "  node empty after", unit: "s", values: []float64{r.drained}})
	}
}

// BenchmarkWaves has a budget that lets one pod go at a time, and pods that take so long
// to become ready that the waves would not fit after the boot: with room for the first
// elsewhere all have to end gracefully. Seven pods a cycle of 20 s apart take longer than
// the two minutes of a spot notice, whoever moves them: they have three.
func BenchmarkWaves(b *testing.B) {
	for b.Loop() {
		cluster := controlplane.ForTest(b, controlplane.Options{Karpenter: true})
		for pods, notice := range map[int]time.Duration{5: noticeTime, 7: 3 * time.Minute} {
			s := service{
				B: b, cluster: cluster, name: fmt.Sprintf("waves-%d", pods), pods: pods, nodes: 1, spare: 1, notice: notice,
				ready: 20 * time.Second, budget: intstr.FromInt32(1), grace: 10 * time.Second,
			}
			r := s.lose([]string{"--drain-strategy=hold"})
			what := fmt.Sprintf("waves of 1, %d pods, ready after 20 s, %s, hold: pods not graceful", pods, notice)
			report(row{what: what, values: []float64{float64(r.rough)}, none: true})
			report(row{what: "  node empty after", unit: "s", values: []float64{r.drained}, goal: notice.Seconds()})
		}
	}
}

// BenchmarkRoom loses a node whose pods fit on another that is there: what a replacement costs
// then, and what it is worth.
func BenchmarkRoom(b *testing.B) {
	for b.Loop() {
		cluster := controlplane.ForTest(b, controlplane.Options{Karpenter: true})
		strategies, replacements := []string{"surge", "hold"}, []string{"always", "when-needed"}
		results := map[string]outage{}
		var mu sync.Mutex
		var group sync.WaitGroup
		for _, strategy := range strategies {
			for _, replacement := range replacements {
				group.Go(func() {
					s := service{
						B: b, cluster: cluster, name: "room-" + strategy + "-" + replacement, pods: servicePods, nodes: serviceNodes, spare: 1,
						ready: readyTime, budget: intstr.FromString("25%"), grace: 30 * time.Second,
					}
					r := s.lose([]string{"--drain-strategy=" + strategy, "--replacement=" + replacement})
					mu.Lock()
					defer mu.Unlock()
					results[strategy+", "+replacement] = r
				})
			}
		}
		group.Wait()
		for _, strategy := range strategies {
			for _, replacement := range replacements {
				what := strategy + ", " + replacement
				r := results[what]
				report(row{what: "with room elsewhere, unavailable: " + what, unit: "pod s", values: []float64{r.podSeconds}})
				report(row{what: fmt.Sprintf("  fewest ready of %d; not graceful; nodes made", servicePods), text: fmt.Sprintf("%d; %d; %d", r.fewest, r.rough, r.claims)})
				report(row{what: "  node empty after", unit: "s", values: []float64{r.drained}})
			}
		}
	}
}

// BenchmarkAvailabilityMass interrupts half of a pool at once.
func BenchmarkAvailabilityMass(b *testing.B) {
	const nodes, lost = 40, 20
	for b.Loop() {
		var first float64
		for _, w := range []way{ways[0], ways[3]} {
			b.Run(strings.ReplaceAll(w.name, " ", "-"), func(b *testing.B) {
				s := service{
					B: b, cluster: controlplane.ForTest(b, controlplane.Options{Karpenter: true}), name: "mass", pods: 7 * nodes, nodes: nodes,
					ready: readyTime, budget: intstr.FromString("25%"), grace: 30 * time.Second,
				}
				r := s.loseMany(lost, w.flags)
				figure := row{what: fmt.Sprintf("unavailable, %d of %d nodes at once: %s", lost, nodes, w.name), unit: "pod s", values: []float64{r.podSeconds}}
				if w.name == "surge" {
					figure.limit = []float64{first}
				}
				first = r.podSeconds
				report(figure)
				report(row{what: fmt.Sprintf("  fewest ready of %d; not graceful; nodes made", s.pods), text: fmt.Sprintf("%d; %d; %d", r.fewest, r.rough, r.claims)})
				report(row{what: "  nodes empty after", unit: "s", values: []float64{r.drained}, goal: noticeTime.Seconds()})
			})
		}
	}
}

// BenchmarkAvailabilityMarked interrupts half of a pool at once in imds mode: a process on each node
// marks it, and one drains them all.
func BenchmarkAvailabilityMarked(b *testing.B) {
	const nodes, lost = 40, 20
	for b.Loop() {
		s := service{
			B: b, cluster: controlplane.ForTest(b, controlplane.Options{Karpenter: true}), name: "marked", pods: 7 * nodes, nodes: nodes,
			ready: readyTime, budget: intstr.FromString("25%"), grace: 30 * time.Second,
		}
		s.reportMarked(s.loseMarked(startDrain(b, s.cluster), lost), fmt.Sprintf("%d of %d nodes at once in imds mode", lost, nodes))
	}
}

// BenchmarkTurns interrupts half of a pool at once in imds mode. maxSurge is half of the pods that are
// lost, so the other half wait for their turn to be surged, and waves of a small budget would have to
// begin before it comes.
func BenchmarkTurns(b *testing.B) {
	for _, lost := range []int{2, 4, 10} {
		b.Run(fmt.Sprintf("%d-nodes", lost), func(b *testing.B) {
			for b.Loop() {
				cluster := controlplane.ForTest(b, controlplane.Options{Karpenter: true})
				d := startDrain(b, cluster)
				var group sync.WaitGroup
				budgets := []intstr.IntOrString{intstr.FromInt32(1), intstr.FromInt32(2), intstr.FromString("25%")}
				results := make([]outage, len(budgets))
				services := make([]service, len(budgets))
				for i, budget := range budgets {
					services[i] = service{
						B: b, cluster: cluster, name: fmt.Sprintf("turns-%d", i), pods: 7 * 2 * lost, nodes: 2 * lost,
						ready: readyTime, budget: budget, grace: 30 * time.Second,
					}
					group.Go(func() { results[i] = services[i].loseMarked(d, lost) })
				}
				group.Wait()
				if b.Failed() {
					return
				}
				for i, s := range services {
					s.reportMarked(results[i], fmt.Sprintf("%d of %d nodes at once in imds mode, budget %s", lost, s.nodes, s.budget.String()))
				}
			}
		})
	}
}

// startDrain starts the daemon that drains what others mark.
func startDrain(b *testing.B, cluster *controlplane.Cluster) *daemon.Daemon {
	d := start(b, daemon.Options{Args: []string{"drain"}, Kubeconfig: cluster.Kubeconfig})
	must(b, d.WaitReady(b.Context()))
	return d
}

func (s service) reportMarked(r outage, what string) {
	report(row{what: "unavailable, " + what + ": surge", unit: "pod s", values: []float64{r.podSeconds}, none: true})
	report(row{what: fmt.Sprintf("  fewest ready of %d; not graceful; nodes made", s.pods), text: fmt.Sprintf("%d; %d; %d", r.fewest, r.rough, r.claims)})
	report(row{what: "  nodes empty after", unit: "s", values: []float64{r.drained}, goal: noticeTime.Seconds()})
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
	doomed := map[string]bool{node.Name: true}
	result := s.watch(ctx, doomed, noticed)
	result.rough = notGraceful(d, doomed)
	result.claims = s.made(ctx, before)
	return result
}

// loseMany interrupts many of the service's nodes at once, through the queue.
func (s service) loseMany(n int, flags []string) outage {
	ctx, cancel := context.WithTimeout(s.Context(), 2*availableWait)
	defer cancel()
	nodes := s.setUp(ctx)[:n]
	sqs := sqsemu.Start(sqsemu.Options{})
	defer sqs.Close()
	queue, err := sqs.CreateQueue("spot-handler", nil)
	must(s.B, err)
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

// loseMarked interrupts many of the service's nodes at once, each by its metadata service, and has d
// drain them.
func (s service) loseMarked(d *daemon.Daemon, n int) outage {
	ctx, cancel := context.WithTimeout(s.Context(), 2*availableWait)
	defer cancel()
	nodes := s.setUp(ctx)[:n]
	var emulators []*imdsemu.Server
	for _, node := range nodes {
		emulator := imdsemu.Start(imdsemu.Options{InstanceID: controlplane.InstanceID(node.Name)})
		defer emulator.Close()
		emulators = append(emulators, emulator)
		marker := start(s.B, daemon.Options{
			Args: []string{"imds", "--drain=false", "--node-name=" + node.Name}, Kubeconfig: s.cluster.Kubeconfig, IMDS: emulator.URL,
		})
		must(s.B, marker.WaitReady(ctx))
		defer marker.Kill()
	}
	return s.follow(ctx, d, nodes, func(noticed time.Time) {
		for _, emulator := range emulators {
			emulator.Interrupt("terminate", noticed.Add(noticeTime))
		}
	})
}

// follow interrupts the nodes and adds up what that costs until d has drained them all.
func (s service) follow(ctx context.Context, d *daemon.Daemon, nodes []*corev1.Node, interrupt func(noticed time.Time)) outage {
	before := s.claims(ctx)
	noticed, doomed := time.Now(), map[string]bool{}
	for _, node := range nodes {
		doomed[node.Name] = true
	}
	interrupt(noticed)
	result := s.watch(ctx, doomed, noticed)
	for len(ends(d, doomed)) < len(nodes) {
		pause(s.B, ctx, 50*time.Millisecond)
	}
	result.rough = notGraceful(d, doomed)
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

// notGraceful counts the pods that ended otherwise, as the daemon tells.
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
func (s service) watch(ctx context.Context, doomed map[string]bool, from time.Time) outage {
	ctx, cancel := context.WithTimeout(ctx, availableWait)
	defer cancel()
	o, last, missing := outage{fewest: s.pods, ready: []picture.Point{{X: 0, Y: float64(s.pods)}}}, from, 0
	look := func(pods []*corev1.Pod) bool {
		now, ready, on := time.Now(), 0, 0
		for _, p := range pods {
			if controlplane.Ready(p) {
				ready++
			}
			if doomed[p.Spec.NodeName] {
				on++
			}
		}
		o.podSeconds += float64(missing) * now.Sub(last).Seconds()
		last, missing = now, max(0, s.pods-ready)
		o.fewest = min(o.fewest, ready)
		if o.ready[len(o.ready)-1].Y != float64(ready) {
			o.ready = append(o.ready, picture.Point{X: now.Sub(from).Seconds(), Y: float64(ready)})
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
