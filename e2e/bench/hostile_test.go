package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/hostile"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
)

const (
	hostileObjects = 200
	hostileFew     = 20 // with -short
	hostileOdd     = 1  // of those of each kind that are large in many small pieces
	hostileNodes   = 4
	hostileGoal    = 256.0
	hostileIMDS    = 64.0
	hostileCommand = 1024.0
	hostileSlower  = 1.25 // the drains of others, of what they take without
	hostileTimeout = 25 * time.Minute

	hostileLasts = 40 * time.Second

	peacefulNodes = 10 // interrupted, and as many that stay
	peacefulPods  = 4  // of each that stays, in the end
)

// BenchmarkHostile measures what a tenant achieves who writes objects of 1.3 MB of every kind that
// the daemon or a command reads, with pods on nodes that are interrupted: the memory of each mode, of
// audit and of plan, and how long everybody else's drains take, beside the same without such objects.
//
// Of what it costs the control plane itself to move such pods nothing is measured: they stay as long as
// they can. And the disruption budgets are in a namespace of their own, with few pods: for each eviction
// the API server reads all budgets of the pod's namespace, which with these takes it a second of both
// processors.
func BenchmarkHostile(b *testing.B) {
	for b.Loop() {
		measureHostile(b)
	}
}

func measureHostile(b *testing.B) {
	ctx, cancel := context.WithTimeoutCause(b.Context(), hostileTimeout, fmt.Errorf("not within %s", hostileTimeout))
	defer cancel()
	began := time.Now()
	cluster := controlplane.ForTest(b, controlplane.Options{Heartbeat: time.Minute})
	client, err := rawClient(cluster)
	must(b, err)
	h := &siege{fleet: &fleet{B: b, ctx: ctx, cluster: cluster, client: client}, objects: hostileObjects}
	if testing.Short() {
		h.objects = hostileFew
	}
	step := func(what string) { b.Logf("%.0fs: %s", time.Since(began).Seconds(), what) }
	queue := again(h.queue)
	step("queue without")
	drain := again(h.drain)
	step("drain without")
	h.begin()
	step("written")
	theirs := h.hostile
	h.hostile = nil
	stay := again(h.queue)
	h.hostile = theirs
	step("queue with, their nodes stay")
	h.report("queue", hostileGoal, queue, again(h.queue))
	report(row{what: "the same, none of their nodes interrupted: others drained", unit: "s", values: figures(stay, relief.took), limit: figures(queue, relief.took)})
	step("queue with")
	h.report("drain", hostileGoal, drain, again(h.drain))
	step("drain with")
	h.reportIMDS()
	step("imds with")
	report(row{what: "the control plane alone, the same objects: 40 pods ready", unit: "s", values: h.started[3*rounds:], limit: h.started[:2*rounds], peer: true})
	for _, args := range [][]string{{"audit"}, {"plan", h.hostile[0].Name}, {"status", "--node=" + h.hostile[0].Name}} {
		o, err := hostile.Command(ctx, cluster.Kubeconfig, args...)
		must(b, err)
		step(args[0])
		// 1: something was left out, as it says; 3: it found something.
		if o.Code != 0 && o.Code != 1 && o.Code != 3 {
			b.Errorf("%s ended with code %d: %.500s", args[0], o.Code, o.Err)
		}
		report(row{what: fmt.Sprintf("%s, %d hostile objects of each kind: memory, peak", args[0], h.objects), unit: "MiB", values: []float64{float64(o.Peak)}, goal: hostileCommand})
		report(row{what: args[0] + ", the same: takes", unit: "s", values: []float64{o.Took.Seconds()}})
	}
}

// siege is a cluster with a hostile tenant, once it has begun.
type siege struct {
	*fleet
	objects int
	hostile []*corev1.Node
	tenants []*hostile.Tenant // the second has the budgets
	marks   memory            // peak of imds that marks
	round   int
	started []float64 // how long the control plane alone has taken to have the pods ready, in seconds
}

// relief is how it went for everybody else.
type relief struct {
	seconds    float64
	idle, peak memory
}

func (r relief) took() float64 { return r.seconds }

// again calls once rounds times.
func again(once func() relief) (all []relief) {
	for range rounds {
		all = append(all, once())
	}
	return all
}

// begin has the tenants write.
func (h *siege) begin() {
	h.Helper()
	var err error
	h.hostile, err = h.cluster.CreateBareNodes(h.ctx, controlplane.BareNodes{Count: hostileNodes, Prefix: "hostile"})
	must(h.B, err)
	all := map[string]int{}
	for _, kind := range hostile.Large() {
		all[kind] = h.objects
	}
	budgets := map[string]int{"PodDisruptionBudget": h.objects, "small Pod": len(h.hostile)}
	delete(all, "PodDisruptionBudget")
	all["small Deployment"] = len(h.hostile)
	for i, each := range []map[string]int{all, budgets} {
		tenant, err := hostile.NewTenant(h.ctx, h.cluster, fmt.Sprint("hostile-", i), uint64(i))
		must(h.B, err)
		for _, n := range h.hostile {
			tenant.Nodes = append(tenant.Nodes, n.Name)
		}
		odd := map[string]int{}
		for kind, n := range each {
			odd[kind] = min(n, hostileOdd)
		}
		delete(odd, "Service") // its thousands of ports keep kube-controller-manager busy for ever
		tenant.Fill(h.ctx, odd)
		tenant.Plain = true
		tenant.Fill(h.ctx, each)
		for kind, n := range each {
			if written := tenant.Written()[kind]; written < n {
				h.Fatalf("the API server has taken %d of %d of %s; %s", written, n, kind, tenant)
			}
		}
		h.tenants = append(h.tenants, tenant)
	}
}

// peaceful is a service with pods on nodes that are about to be interrupted.
func (h *siege) peaceful() []*corev1.Node {
	h.Helper()
	if len(h.tenants) > 0 {
		calm(h.B, h.ctx, h.cluster)
	}
	h.round++
	name := fmt.Sprint("peaceful-", h.round)
	nodes, err := h.cluster.CreateBareNodes(h.ctx, controlplane.BareNodes{Count: 2 * peacefulNodes, Prefix: name, Labels: map[string]string{"bench": name}})
	must(h.B, err)
	began := time.Now()
	_, err = h.cluster.RunDeployment(h.ctx, controlplane.DeploymentSpec{
		Name: name, Replicas: peacefulNodes * peacefulPods, NodeSelector: map[string]string{"bench": name},
		Grace: 5 * time.Second,
	})
	must(h.B, err)
	_, err = h.cluster.WaitReady(h.ctx, "", name, peacefulNodes*peacefulPods)
	must(h.B, err)
	h.started = append(h.started, time.Since(began).Seconds())
	pause(h.B, h.ctx, settleTime)
	return nodes[:peacefulNodes]
}

func (h *siege) queue() relief {
	h.Helper()
	nodes := h.peaceful()
	sqs := sqsemu.Start()
	defer sqs.Close()
	queue := sqs.Queue("spot-handler")
	m := &member{Daemon: startQueueMode(h.B, h.ctx, h.cluster.Kubeconfig, sqs, queue)}
	m.resident = watchMemory(m.Daemon)
	return h.interrupt(m, nodes, func(all []*corev1.Node) {
		for _, node := range all {
			queue.Send(daemon.EventBridge(daemon.SpotInterruption, fmt.Sprint(eventID(node.Name), h.round), controlplane.InstanceID(node.Name), time.Now()))
		}
	})
}

func (h *siege) drain() relief {
	h.Helper()
	nodes := h.peaceful()
	m := h.start(nil, "drain")
	var marks *member // runs beforehand, as it would on any node
	if len(h.hostile) > 0 {
		marks = h.start(h.hostile[0], "imds", "--drain=false")
	}
	r := h.interrupt(m, nodes, func(all []*corev1.Node) {
		if marks != nil {
			marks.metadata.Interrupt("terminate", time.Now().Add(noticeTime))
			all = all[1:]
		}
		for i, n := range all {
			var err error
			all[i], err = h.client.CoreV1().Nodes().Get(h.ctx, n.Name, metav1.GetOptions{})
			must(h.B, err)
		}
		err := rawCordon(h.ctx, h.client, all, sameConcurrency, interruption.IMDS)
		must(h.B, err)
	})
	if marks != nil {
		waitLine(h.B, h.ctx, marks.Daemon, "interruption accepted")
		_, h.marks = marks.resident.look()
	}
	return r
}

// interrupt interrupts the hostile nodes, and then the others, and returns when all drains have
// ended.
func (h *siege) interrupt(m *member, nodes []*corev1.Node, notify func([]*corev1.Node)) relief {
	h.Helper()
	alive, stopped := untilDead(h.ctx, m.Daemon)
	defer stopped()
	waitLine(h.B, alive, m.Daemon, "leading")
	pause(h.B, alive, settleTime)
	var r relief
	r.idle, _ = m.resident.look()
	all := append(append([]*corev1.Node{}, h.hostile...), nodes...)
	began := time.Now()
	notify(all)
	for _, node := range nodes {
		_, err := h.cluster.WaitNode(alive, node.Name, func(n *corev1.Node) bool {
			rec, err := interruption.ParseRecord(n.Annotations[interruption.Annotation])
			return err == nil && rec.Phase == interruption.Released
		})
		must(h.B, err)
	}
	r.seconds = time.Since(began).Seconds()
	if len(h.hostile) > 0 { // by then all has been read of what they have
		pause(h.B, alive, max(0, hostileLasts-time.Since(began)))
	}
	_, r.peak = m.resident.look()
	stopped()
	if code := m.Stop(); code != 0 {
		h.Errorf("the daemon ended with code %d", code)
	}
	for _, node := range h.hostile { // they are as new
		_, err := h.client.CoreV1().Nodes().Patch(h.ctx, node.Name, types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}},"spec":{"unschedulable":null,"taints":null}}`, interruption.Annotation), metav1.PatchOptions{})
		must(h.B, err)
	}
	if len(h.hostile) > 0 { // what has been evicted
		h.tenants[0].Fill(h.ctx, map[string]int{"Pod": h.objects})
		h.tenants[1].Fill(h.ctx, map[string]int{"small Pod": len(h.hostile)})
	}
	return r
}

func (h *siege) report(mode string, goal float64, without, with []relief) {
	what := fmt.Sprintf("%s, %d hostile objects of each kind: ", mode, h.objects)
	var idle, peak, peakWithout []memory
	for i := range with {
		idle, peak, peakWithout = append(idle, with[i].idle), append(peak, with[i].peak), append(peakWithout, without[i].peak)
	}
	reportMemory(what+"memory, idle", goal, 0, idle...)
	reportMemory(what+"memory, peak", goal, 0, peak...)
	reportMemory(mode+", the same without: memory, peak", 0, 0, peakWithout...)
	report(row{what: what + "others drained", unit: "s", values: figures(with, relief.took), limit: figures(without, relief.took), goal: hostileSlower, ofLimit: true})
}

// reportIMDS adds one that drains its node on its own, where the hostile pods are.
func (h *siege) reportIMDS() {
	h.Helper()
	what := fmt.Sprintf("imds that marks, %d hostile objects of each kind: memory, peak", h.objects)
	reportMemory(what, hostileIMDS, 0, h.marks)
	m := h.start(h.hostile[0], "imds")
	pause(h.B, h.ctx, settleTime)
	m.metadata.Interrupt("terminate", time.Now().Add(noticeTime))
	pause(h.B, h.ctx, hostileLasts)
	_, peak := m.resident.look()
	if code := m.Stop(); code != 0 {
		h.Errorf("the daemon ended with code %d", code)
	}
	reportMemory(fmt.Sprintf("imds on its own, %d hostile pods on its node: memory, peak", 2*h.objects/hostileNodes), hostileIMDS, 0, peak)
}
