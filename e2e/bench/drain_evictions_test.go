package bench

import (
	"context"
	"fmt"
	"os/exec"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
)

// The crowd of this benchmark: as many nodes as a zone may lose at once.
const (
	evictedNodes   = 100
	evictedPerNode = 20

	// evictionRounds are few, as making and ending 2,000 pods takes most of a minute.
	evictionRounds = 1
)

// BenchmarkEvictions has 2,000 pods leave 100 nodes: in a raw loop of evictions, by the
// daemon, and by kubectl, which is its own drain library as users have it. Rates are
// from the first eviction's arrival at the API server to the last one's answer, by the
// audit log, so that what each does before and after does not count; the time of the
// whole job does.
//
// kubectl drains the nodes that it is given one after the other, and the pods of a node
// at once. It is measured in one round only, as it takes minutes.
// https://github.com/kubernetes/kubectl/blob/v0.36.3/pkg/cmd/drain/drain.go
//
// Where budgets cover the pods, as they do in real life, each eviction writes its
// budget's status too. Two that do so at the same time conflict, and the API server has
// one of them wait for half a second, up to twenty times over.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/registry/core/pod/storage/eviction.go
func BenchmarkEvictions(b *testing.B) {
	for _, budgets := range []int{0, 10} {
		b.Run(fmt.Sprintf("budgets=%d", budgets), func(b *testing.B) {
			for b.Loop() {
				measureEvictions(b, budgets, false)
			}
		})
	}
	b.Run("kubectl", func(b *testing.B) {
		for b.Loop() {
			measureEvictions(b, 0, true)
		}
	})
}

// departure is what a round has measured.
type departure struct {
	rate     float64 // granted evictions per second, from the first to the last
	whole    float64 // seconds, from the order to when the last pod is gone
	refused  int     // evictions that were not granted
	requests int     // of the API server, in all
	cpu      float64 // of the program that drains, in seconds; 0 for the raw loop
}

func measureEvictions(b *testing.B, budgets int, kubectl bool) {
	cluster := controlplane.ForTest(b, controlplane.Options{Audit: true, Heartbeat: time.Minute})
	client, err := evictor(cluster)
	must(b, err)
	f := &exodus{B: b, cluster: cluster, client: client, budgets: budgets}
	f.round("warm-up", rawAgent, f.raw) // the first requests of a new API server are slow, whoever makes them

	var raw, ours []departure
	for i := range evictionRounds {
		raw = append(raw, f.round(fmt.Sprintf("raw-%d", i), rawAgent, f.raw))
		if kubectl {
			continue
		}
		ours = append(ours, f.round(fmt.Sprintf("spot-%d", i), "spot-handler/", f.daemon))
	}
	of := fmt.Sprintf("%d pods of %d nodes: ", evictedNodes*evictedPerNode, evictedNodes)
	if budgets > 0 {
		of = fmt.Sprintf("%d pods of %d nodes under %d budgets: ", evictedNodes*evictedPerNode, evictedNodes, budgets)
	}
	if kubectl {
		reportKubectl(b, of, raw, f.round("kubectl", "kubectl/", f.kubectl))
		return
	}
	reportEvictions(b, of, raw, ours)
}

// exodus is where departures are measured.
type exodus struct {
	*testing.B
	cluster *controlplane.Cluster
	client  rest.Interface
	budgets int
}

// round makes a crowd, has it leave, and reads of the audit log how it went.
func (f *exodus) round(prefix, agent string, leave func(context.Context, crowd) (cpu float64)) departure {
	f.Helper()
	ctx, stop := context.WithTimeoutCause(f.Context(), 10*time.Minute, fmt.Errorf("not within 10 minutes"))
	defer stop()
	c := newCrowd(f.B, ctx, f.cluster, prefix, evictedNodes, evictedPerNode, f.budgets)
	pause(f.B, ctx, settleTime)
	from, err := auditEnd(f.cluster.AuditLog)
	must(f.B, err)

	began := time.Now()
	gone := make(chan time.Time, 1)
	go func() {
		defer close(gone)
		_, err := f.cluster.WaitPods(ctx, "default", controlplane.Selector(prefix), func(pods []*corev1.Pod) bool { return len(pods) == 0 })
		if err == nil {
			gone <- time.Now()
		}
	}()
	d := departure{cpu: leave(ctx, c)}
	at, ok := <-gone
	if !ok {
		f.Fatalf("the pods of %s did not leave", prefix)
	}
	d.whole = at.Sub(began).Seconds()

	requests, err := requestsOf(agent, f.cluster.AuditLog, from)
	must(f.B, err)
	var first, last time.Time
	granted := 0
	for _, r := range requests {
		if r.isLease() {
			continue
		}
		d.requests++
		if r.ObjectRef.Subresource != "eviction" {
			continue
		}
		if r.ResponseStatus.Code != 201 {
			d.refused++
			continue
		}
		granted++
		if first.IsZero() || r.RequestReceivedTimestamp.Before(first) {
			first = r.RequestReceivedTimestamp
		}
		if r.StageTimestamp.After(last) {
			last = r.StageTimestamp
		}
	}
	if granted != len(c.pods) {
		f.Fatalf("%d evictions of %s granted, want one for each of %d pods", granted, prefix, len(c.pods))
	}
	d.rate = float64(granted) / last.Sub(first).Seconds()
	must(f.B, f.cluster.Client.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "bench=" + prefix}))
	return d
}

// isLease tells the renewals of the leader's lease: they belong to no interruption.
func (r request) isLease() bool { return r.ObjectRef.Resource == "leases" }

func (f *exodus) raw(ctx context.Context, c crowd) float64 {
	f.Helper()
	must(f.B, rawEvict(ctx, f.client, c.pods))
	return 0
}

// daemon has a new daemon drain the nodes, with everything at its default.
func (f *exodus) daemon(ctx context.Context, c crowd) float64 {
	f.Helper()
	sqs := sqsemu.Start(sqsemu.Options{})
	defer sqs.Close()
	queue := sqs.Queue("spot-handler")
	d := startQueueMode(f.B, ctx, f.cluster.Kubeconfig, sqs, queue)
	alive, stopped := untilDead(ctx, d)
	defer stopped()
	waitLine(f.B, alive, d, "leading")
	pause(f.B, alive, settleTime)
	used := processorTime(d.Pid())
	for _, node := range c.nodes {
		queue.Send(daemon.EventBridge(daemon.SpotInterruption, eventID(node.Name), controlplane.InstanceID(node.Name), time.Now()))
	}
	for _, node := range c.nodes {
		_, err := f.cluster.WaitNode(alive, node.Name, func(n *corev1.Node) bool {
			rec, err := interruption.ParseRecord(n.Annotations[interruption.Annotation])
			return err == nil && rec.Phase == interruption.Released
		})
		must(f.B, err)
	}
	used = processorTime(d.Pid()) - used
	for _, line := range d.Lines("deadline reached") {
		f.Errorf("a node was not drained: %v", line)
	}
	if code := d.Stop(); code != 0 {
		f.Errorf("the daemon ended with code %d", code)
	}
	return used
}

// kubectl drains all nodes in one process.
func (f *exodus) kubectl(ctx context.Context, c crowd) float64 {
	f.Helper()
	args := []string{"--kubeconfig=" + f.cluster.Kubeconfig, "drain", "--force"} // the pods have no controller
	for _, node := range c.nodes {
		args = append(args, node.Name)
	}
	cmd := exec.CommandContext(ctx, f.cluster.Kubectl, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		f.Fatalf("kubectl drain: %v\n%s", err, out)
	}
	return (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
}

func valuesOf(all []departure, f func(departure) float64) (values []float64) {
	for _, d := range all {
		values = append(values, f(d))
	}
	return values
}

func (d departure) perPod() float64 { return float64(d.requests) / (evictedNodes * evictedPerNode) }

func reportEvictions(b *testing.B, of string, raw, ours []departure) {
	rate := func(d departure) float64 { return d.rate }
	whole := func(d departure) float64 { return d.whole }
	refused := func(d departure) float64 { return float64(d.refused) }
	rates := row{what: of + "evictions per second", unit: "/s", values: valuesOf(ours, rate), limit: valuesOf(raw, rate), goal: 0.8, ofLimit: true, atLeast: true}
	requests := row{what: of + "requests per pod", values: valuesOf(ours, departure.perPod), limit: valuesOf(raw, departure.perPod)}
	for _, r := range []row{rates, requests,
		{what: of + "from the notices until all are gone", unit: "s", values: valuesOf(ours, whole), limit: valuesOf(raw, whole)},
		{what: of + "evictions not granted at first", values: valuesOf(ours, refused), limit: valuesOf(raw, refused)},
		{what: of + "processor time of the daemon", unit: "s", values: valuesOf(ours, func(d departure) float64 { return d.cpu })},
	} {
		report(r)
	}
	b.ReportMetric(0, "ns/op") // of all rounds with their preparations: says nothing
	b.ReportMetric(median(rates.values), "evictions/s")
	b.ReportMetric(median(rates.ratios()), "x-raw")
	b.ReportMetric(median(requests.values), "requests/pod")
	for i := range ours {
		b.Logf("round %d: raw %+v, daemon %+v", i, raw[i], ours[i])
	}
}

func reportKubectl(b *testing.B, of string, raw []departure, kubectl departure) {
	limit := func(f func(departure) float64) []float64 { return []float64{median(valuesOf(raw, f))} }
	for _, r := range []row{
		{what: of + "kubectl drain, evictions per second", unit: "/s", values: []float64{kubectl.rate}, limit: limit(func(d departure) float64 { return d.rate })},
		{what: of + "kubectl drain, requests per pod", values: []float64{kubectl.perPod()}, limit: limit(departure.perPod)},
		{what: of + "kubectl drain, until all are gone", unit: "s", values: []float64{kubectl.whole}, limit: limit(func(d departure) float64 { return d.whole })},
		{what: of + "kubectl drain, processor time", unit: "s", values: []float64{kubectl.cpu}},
	} {
		report(r)
	}
	b.ReportMetric(kubectl.rate, "evictions/s-kubectl")
	b.ReportMetric(kubectl.perPod(), "requests/pod-kubectl")
	b.Logf("kubectl: %+v", kubectl)
}
