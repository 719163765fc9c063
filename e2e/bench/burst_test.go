package bench

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
)

// heartbeat is so long that no node is missed: they have no kubelet.
const heartbeat = time.Hour

// roundTimeout bounds one round, with the making of its nodes.
const roundTimeout = 8 * time.Minute

// usualBurst is how many notices the goal of every run is of.
const usualBurst = 1000

// stormGoal is of the memory at the peak of manyNodes notices at once, in MiB.
const stormGoal = 110.0

// BenchmarkCordonBurst sends the notices of many nodes at once through the queue and
// measures until all of them are cordoned, beside a raw loop of the same patches. The
// nodes have no pods: what the daemon does after the cordon is the least that it ever
// does, and competes with the cordons of the other nodes all the same.
//
// The daemon and the loops take turns, each on nodes of its own, which are deleted
// afterwards, so that all meet the API server with as many nodes and the same history.
func BenchmarkCordonBurst(b *testing.B) {
	for _, nodes := range []int{memoryBurst, usualBurst, manyNodes} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			for b.Loop() {
				measureBurst(b, nodes)
			}
		})
	}
}

// burst is what one round has measured, in seconds, requests and MiB.
type burst struct {
	p50, p99, all          float64 // from the message to the cordon; all: from the first message to the last cordon
	rawP50, rawP99, rawAll float64 // of the raw loop at the same concurrency
	boundless              float64 // as rawAll, with all patches at once
	cpu, rawCPU            float64 // of control plane, benchmark and daemon until the last cordon
	logP99                 float64 // as p99, by the audit log instead of the watch
	watching               float64 // of all: how long the watch was busy
	watchesEnded           int     // by the API server, before the last cordon
	idle, peak             memory
	settled                float64 // from the first message until nothing is left to do
	requests               requestCount
}

func measureBurst(b *testing.B, n int) {
	f := newField(b, n)
	rounds := noisyRounds
	if n == manyNodes {
		rounds = 5 // which take 20 minutes
	}
	// The first requests to a new API server are slow, no matter who sends them.
	warm := *f
	warm.n = min(n, usualBurst)
	warm.rawRound("warm-up", sameConcurrency)

	var all []burst
	for i := range rounds {
		var boundless burst
		if n == memoryBurst { // the API server breaks off connections with more requests
			boundless, _ = f.rawRound(fmt.Sprintf("boundless-%d", i), n)
		}
		raw, seen := f.rawRound(fmt.Sprintf("raw-%d", i), sameConcurrency)
		round := f.daemonRound(fmt.Sprintf("spot-%d", i), seen)
		round.rawP50, round.rawP99, round.rawAll, round.rawCPU = raw.p50, raw.p99, raw.all, raw.cpu
		round.boundless = boundless.all
		all = append(all, round)
	}
	reportBurst(b, n, all)
}

// field is where bursts are measured.
type field struct {
	*testing.B
	cluster *controlplane.Cluster
	client  kubernetes.Interface
	n       int // nodes

	unremembered bool // nodes are of no offering, so their losses are not remembered
	lostBefore   bool // one more node is lost before each of the daemon's bursts
}

// newField is an empty cluster, with the ConfigMap of lost offerings that the chart would make.
func newField(b *testing.B, n int) *field {
	b.Helper()
	cluster := controlplane.ForTest(b, controlplane.Options{Audit: true, Heartbeat: heartbeat})
	client, err := rawClient(cluster)
	must(b, err)
	kept := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: offerings.ConfigMap}}
	_, err = client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Create(b.Context(), kept, metav1.CreateOptions{})
	must(b, err)
	return &field{B: b, cluster: cluster, client: client, n: n}
}

func (f *field) create(ctx context.Context, prefix string, count int) []*corev1.Node {
	f.Helper()
	offering := corev1.LabelInstanceTypeStable
	if f.unremembered {
		offering = "bench.kubernetes.io/type-of-none" // as long
	}
	nodes, err := f.cluster.CreateBareNodes(ctx, controlplane.BareNodes{
		Count: count, Prefix: prefix, Unmanaged: true,
		Labels: map[string]string{"bench": prefix, "node-lifecycle": "spot", offering: "m5.large"},
	})
	must(f.B, err)
	return nodes
}

func (f *field) remove(ctx context.Context, prefix string) {
	f.Helper()
	must(f.B, f.client.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "bench=" + prefix}))
}

// processes are those of the control plane, the benchmark's own, and others.
func (f *field) processes(others ...int) []int {
	return append(append(others, os.Getpid()), f.cluster.Processes...)
}

// rawRound cordons with the raw loop.
func (f *field) rawRound(prefix string, atOnce int) (burst, map[string]sight) {
	f.Helper()
	ctx, stop := context.WithTimeoutCause(f.Context(), roundTimeout, fmt.Errorf("not within %s", roundTimeout))
	defer stop()
	f.create(ctx, prefix, f.n)
	calm(f.B, ctx, f.cluster)
	// Read again: the control plane has gone on writing them.
	list, err := f.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "bench=" + prefix})
	must(f.B, err)
	nodes := make([]*corev1.Node, len(list.Items))
	for i := range list.Items {
		nodes[i] = &list.Items[i]
	}
	watch, err := watchCordons(ctx, f.client)
	must(f.B, err)
	var r burst
	used := processorTime(f.processes()...)
	began := time.Now()
	must(f.B, rawCordon(ctx, f.client, nodes, atOnce, interruption.Queue))
	seen, err := watch.waitCordoned(ctx, f.n)
	must(f.B, err)
	r.cpu = processorTime(f.processes()...) - used
	r.p50, r.p99, r.all = times(seen, func(string) time.Time { return began })
	f.remove(ctx, prefix)
	return r, seen
}

// daemonRound has a new daemon cordon.
func (f *field) daemonRound(prefix string, raw map[string]sight) burst {
	f.Helper()
	ctx, stop := context.WithTimeoutCause(f.Context(), roundTimeout, fmt.Errorf("not within %s", roundTimeout))
	defer stop()
	nodes := f.create(ctx, prefix, f.n)
	must(f.B, f.forget(ctx))
	sqs := sqsemu.Start()
	defer sqs.Close()
	queue := sqs.Queue("spot-handler")
	d := startQueueMode(f.B, ctx, f.cluster.Kubeconfig, sqs, queue)
	alive, stopped := untilDead(ctx, d)
	defer stopped()
	waitLine(f.B, alive, d, "leading")
	calm(f.B, alive, f.cluster)
	if f.lostBefore {
		f.loseBefore(alive, prefix, queue)
	}

	var r burst
	resident := watchMemory(d)
	r.idle, _ = resident.look()
	from, err := auditEnd(f.cluster.AuditLog)
	must(f.B, err)
	watch, err := watchCordons(ctx, f.client)
	must(f.B, err)
	sent := map[string]time.Time{}
	used := processorTime(f.processes(d.Pid())...)
	began := time.Now()
	for _, node := range nodes {
		sent[node.Name] = time.Now()
		queue.Send(daemon.EventBridge(daemon.SpotInterruption, eventID(node.Name), controlplane.InstanceID(node.Name), sent[node.Name]))
	}
	seen, err := watch.waitCordoned(alive, f.n)
	must(f.B, err)
	r.cpu = processorTime(f.processes(d.Pid())...) - used
	r.watching, r.watchesEnded = watch.cost()
	must(f.B, watch.waitReleased(alive, f.n))
	must(f.B, queue.WaitEmpty(alive))
	r.settled = time.Since(began).Seconds()
	_, r.peak = resident.look()
	must(f.B, f.waitRemembered(alive, !f.unremembered))
	must(f.B, sameMarks(seen, raw))

	r.p50, r.p99, r.all = times(seen, func(node string) time.Time { return sent[node] })
	requests, err := daemonRequests(f.cluster.AuditLog, from)
	must(f.B, err)
	r.requests = count(requests)
	if written := writtenWithin(requests, began, r.all); f.lostBefore && written == f.unremembered {
		f.Errorf("round %s: losses written within the %.1f s of the burst: %t, want %t", prefix, r.all, written, !written)
	}
	r.logP99 = loggedP99(requests, sent)
	if code := d.Stop(); code != 0 {
		f.Errorf("the daemon ended with code %d", code)
	}
	f.remove(ctx, prefix)
	return r
}

// times are the quantiles of the time from start to sight, and the time from the
// first start to the last sight.
func times(seen map[string]sight, start func(node string) time.Time) (p50, p99, all float64) {
	var took []float64
	var first, last time.Time
	for node, s := range seen {
		took = append(took, s.at.Sub(start(node)).Seconds())
		if first.IsZero() || start(node).Before(first) {
			first = start(node)
		}
		if s.at.After(last) {
			last = s.at
		}
	}
	return median(took), quantile(took, 0.99), last.Sub(first).Seconds()
}

// loggedP99 is when the API server had written the cordons, by its own clock, which
// is the same machine's. It shows whether the watch is late.
func loggedP99(requests []request, sent map[string]time.Time) float64 {
	took := map[string]float64{}
	for _, r := range requests {
		if !r.isNodePatch() || r.ResponseStatus.Code != 200 {
			continue
		}
		t := r.StageTimestamp.Sub(sent[r.ObjectRef.Name]).Seconds()
		if before, ok := took[r.ObjectRef.Name]; !ok || t < before {
			took[r.ObjectRef.Name] = t
		}
	}
	return quantile(slices.Collect(maps.Values(took)), 0.99)
}

func reportBurst(b *testing.B, n int, all []burst) {
	get := func(f func(burst) float64) []float64 { return figures(all, f) }
	perNode := func(f func(requestCount) int) []float64 {
		return get(func(r burst) float64 { return float64(f(r.requests)) / float64(n) })
	}
	of := fmt.Sprintf("%d notices: ", n)
	whole := row{
		what: of + "all cordoned", unit: "s", goal: 1.3, ofLimit: true,
		values: get(func(r burst) float64 { return r.all }), limit: get(func(r burst) float64 { return r.rawAll }),
	}
	boundless := row{
		what: of + "all cordoned, beside a raw loop of all at once", unit: "s",
		values: whole.values, limit: get(func(r burst) float64 { return r.boundless }),
	}
	p50 := row{what: of + "notice to cordon, p50", unit: "s",
		values: get(func(r burst) float64 { return r.p50 }), limit: get(func(r burst) float64 { return r.rawP50 })}
	p99 := row{what: of + "notice to cordon, p99", unit: "s",
		values: get(func(r burst) float64 { return r.p99 }), limit: get(func(r burst) float64 { return r.rawP99 })}
	accept := row{what: of + "requests per notice, to the cordon", goal: 1,
		values: perNode(func(c requestCount) int { return c.accept })}
	var idles, peaks []memory
	for _, r := range all {
		idles, peaks = append(idles, r.idle), append(peaks, r.peak)
	}
	peakGoal := 0.0
	switch n {
	case memoryBurst:
		p99.goal, peakGoal = 3, burstGoal
	case usualBurst:
		whole.goal = 1.2
	case manyNodes:
		whole.goal, peakGoal = 1.2, stormGoal
	}
	peak := memoryRows(of+"memory, peak", peakGoal, 0, peaks)

	cpu := row{what: of + "processor time of all processes until all are cordoned", unit: "s",
		values: get(func(r burst) float64 { return r.cpu }), limit: get(func(r burst) float64 { return r.rawCPU })}

	rows := []row{p50, p99, whole}
	if n == memoryBurst { // the others are not measured beside it
		rows = append(rows, boundless)
	}
	rows = append(rows, cpu, accept,
		row{what: of + "other requests per notice, before the last cordon", values: perNode(func(c requestCount) int { return c.meanwhile })})
	kinds := map[string]bool{}
	for _, r := range all {
		for kind := range r.requests.after {
			kinds[kind] = true
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		rows = append(rows, row{what: of + "after the cordon: " + kind, values: perNode(func(c requestCount) int { return c.after[kind] })})
	}
	rows = append(rows,
		row{what: of + "p99 by the audit log, to check the watch", unit: "s", values: get(func(r burst) float64 { return r.logP99 })},
		row{what: of + "until nothing is left to do", unit: "s", values: get(func(r burst) float64 { return r.settled })})
	rows = slices.Concat(rows, memoryRows(of+"memory before", 0, 0, idles), peak)
	for _, r := range rows {
		report(r)
	}

	b.ReportMetric(0, "ns/op") // of all rounds with their preparations: says nothing
	b.ReportMetric(median(p50.values), "s-p50")
	b.ReportMetric(median(p99.values), "s-p99")
	b.ReportMetric(median(whole.values), "s-all")
	b.ReportMetric(median(whole.ratios()), "x-raw")
	b.ReportMetric(median(cpu.ratios()), "x-raw-cpu")
	b.ReportMetric(median(accept.values), "requests/notice")
	b.ReportMetric(median(peak[0].values), "MiB-peak")
	for i, r := range all {
		b.Logf("round %d: %+v", i, r)
	}
}
