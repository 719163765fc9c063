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
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
)

const (
	hostileObjects = 200
	hostileFew     = 20 // with -short
	hostileNodes   = 2
	hostileGoal    = 256.0
	hostileIMDS    = 64.0
	hostileTimeout = 40 * time.Minute

	peacefulNodes = 10 // interrupted, and as many that stay
	peacefulPods  = 4  // of each that stays, in the end
)

// BenchmarkHostile measures what a tenant achieves who writes objects of 1.3 MB of every kind that
// the daemon reads, with pods on nodes that are interrupted: the memory of each mode, and how long
// everybody else's drains take, beside the same without such objects.
func BenchmarkHostile(b *testing.B) {
	for b.Loop() {
		measureHostile(b)
	}
}

func measureHostile(b *testing.B) {
	ctx, cancel := context.WithTimeoutCause(b.Context(), hostileTimeout, fmt.Errorf("not within %s", hostileTimeout))
	defer cancel()
	cluster := controlplane.ForTest(b, controlplane.Options{Heartbeat: heartbeat})
	client, err := rawClient(cluster)
	must(b, err)
	h := &siege{fleet: &fleet{B: b, ctx: ctx, cluster: cluster, client: client}, objects: hostileObjects}
	if testing.Short() {
		h.objects = hostileFew
	}
	queue, drain := h.queue(), h.drain()
	h.begin()
	h.report("queue", hostileGoal, queue, h.queue())
	h.report("drain", hostileGoal, drain, h.drain())
	h.reportIMDS()
}

// siege is a cluster with a hostile tenant, once it has begun.
type siege struct {
	*fleet
	objects int
	hostile []*corev1.Node
	marks   memory // peak of imds that marks
	round   int
}

// relief is how it went for everybody else.
type relief struct {
	seconds    float64
	idle, peak memory
}

// begin has the tenant write.
func (h *siege) begin() {
	h.Helper()
	var err error
	h.hostile, err = h.cluster.CreateBareNodes(h.ctx, controlplane.BareNodes{Count: hostileNodes, Prefix: "hostile"})
	must(h.B, err)
	h.write()
}

// write makes what there is not.
func (h *siege) write() {
	h.Helper()
	must(h.B, h.cluster.CreateHostile(h.ctx, controlplane.Hostile{Namespace: "hostile", Count: h.objects, Nodes: h.hostile}))
}

// peaceful is a service with pods on nodes that are about to be interrupted.
func (h *siege) peaceful() []*corev1.Node {
	h.Helper()
	h.round++
	name := fmt.Sprint("peaceful-", h.round)
	nodes, err := h.cluster.CreateBareNodes(h.ctx, controlplane.BareNodes{Count: 2 * peacefulNodes, Prefix: name, Labels: map[string]string{"bench": name}})
	must(h.B, err)
	_, err = h.cluster.RunDeployment(h.ctx, controlplane.DeploymentSpec{
		Name: name, Replicas: peacefulNodes * peacefulPods, NodeSelector: map[string]string{"bench": name}, Spread: corev1.LabelHostname,
	})
	must(h.B, err)
	_, err = h.cluster.WaitReady(h.ctx, "", name, peacefulNodes*peacefulPods)
	must(h.B, err)
	pause(h.B, h.ctx, settleTime)
	return nodes[:peacefulNodes]
}

func (h *siege) queue() relief {
	h.Helper()
	nodes := h.peaceful()
	sqs := sqsemu.Start(sqsemu.Options{})
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
	return h.interrupt(m, nodes, func(all []*corev1.Node) {
		var marks *member
		if len(h.hostile) > 0 {
			marks, all = h.start(all[0], "imds", "--drain=false"), all[1:]
			marks.metadata.Interrupt("terminate", time.Now().Add(noticeTime))
			waitLine(h.B, h.ctx, marks.Daemon, "interruption accepted")
			_, h.marks = marks.resident.look()
		}
		for i, n := range all {
			var err error
			all[i], err = h.client.CoreV1().Nodes().Get(h.ctx, n.Name, metav1.GetOptions{})
			must(h.B, err)
		}
		_, err := rawCordon(h.ctx, h.client, all, sameConcurrency, interruption.IMDS)
		must(h.B, err)
	})
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
	for len(m.Lines("drained"))+len(m.Lines("deadline reached")) < len(all) {
		pause(h.B, alive, time.Second)
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
	if len(h.hostile) > 0 {
		h.write()
	}
	return r
}

func (h *siege) report(mode string, goal float64, without, with relief) {
	what := fmt.Sprintf("%s, %d hostile objects of each kind: ", mode, h.objects)
	reportMemory(what+"memory, idle", goal, 0, with.idle)
	reportMemory(what+"memory, peak", goal, 0, with.peak)
	reportMemory(mode+", the same without: memory, peak", 0, 0, without.peak)
	report(row{what: what + "others drained", unit: "s", values: []float64{with.seconds}, limit: []float64{without.seconds}, peer: true})
}

// reportIMDS adds one that drains its node on its own, where the hostile pods are.
func (h *siege) reportIMDS() {
	h.Helper()
	what := fmt.Sprintf("imds that marks, %d hostile objects of each kind: memory, peak", h.objects)
	reportMemory(what, hostileIMDS, 0, h.marks)
	m := h.start(h.hostile[0], "imds")
	pause(h.B, h.ctx, settleTime)
	m.metadata.Interrupt("terminate", time.Now().Add(noticeTime))
	for len(m.Lines("drained"))+len(m.Lines("deadline reached")) == 0 {
		pause(h.B, h.ctx, time.Second)
	}
	_, peak := m.resident.look()
	if code := m.Stop(); code != 0 {
		h.Errorf("the daemon ended with code %d", code)
	}
	reportMemory(fmt.Sprintf("imds on its own, %d hostile pods on its node: memory, peak", h.objects), hostileIMDS, 0, peak)
}
