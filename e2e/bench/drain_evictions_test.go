package bench

import (
	"context"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
)

// The crowd of this benchmark: as many nodes as a zone may lose at once. One for the
// warm-up is smaller.
const (
	evictedNodes   = 100
	warmUpNodes    = 20
	evictedPerNode = 20

	// kubectls is how many processes of kubectl share the nodes. Each drains its own one
	// after the other, and the pods of a node at once; a single one takes minutes.
	// https://github.com/kubernetes/kubectl/blob/v0.36.3/pkg/cmd/drain/drain.go
	kubectls = 10
)

// BenchmarkEvictions has 2,000 pods leave 100 nodes: in a raw loop of evictions, by the
// daemon, and by kubectl, which is its own drain library as users have it. Rates are
// from the first eviction's arrival at the API server to the last one's answer, by the
// audit log, so that what each does before and after does not count; the time of the
// whole job does. The raw loop and the daemon take turns, and each daemon round's
// limit is the mean of the raw rounds before and after it, because single rounds differ by
// a third or more. kubectl is measured once: creating and ending 2,000 pods takes most of a
// minute.
//
// Where budgets cover the pods, as they do in real life, each eviction writes its
// budget's status too. Two that do so at the same time conflict, and the API server has
// one of them wait for half a second, up to twenty times over. The raw loop does not care
// and is several times slower than without budgets: no limit, but what to compare with. Both
// are measured once, the raw loop first.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/registry/core/pod/storage/eviction.go
func BenchmarkEvictions(b *testing.B) {
	for _, budgets := range []int{0, 10} {
		b.Run(fmt.Sprintf("budgets=%d", budgets), func(b *testing.B) {
			for b.Loop() {
				measureEvictions(b, budgets)
			}
		})
	}
}

// departure is what a round has measured.
type departure struct {
	rate     float64        // granted evictions per second, from the first to the last
	whole    float64        // seconds, from the order to when the last pod is gone
	slowest  float64        // seconds that one eviction in a hundred took at least
	refused  int            // evictions that were not granted
	requests int            // of the API server, in all
	cpu      float64        // of the program that drains, in seconds; 0 for the raw loop
	kinds    map[string]int // the requests by what they do
}

// exit is a way to have a crowd leave. It returns the processor time that it took.
type exit struct {
	name, agent string
	leave       func(context.Context, crowd) (cpu float64)
}

func measureEvictions(b *testing.B, budgets int) {
	cluster := controlplane.ForTest(b, controlplane.Options{Audit: true, Heartbeat: time.Minute})
	client, err := evictor(cluster)
	must(b, err)
	f := &exodus{B: b, cluster: cluster, client: client, budgets: budgets}
	raw := exit{"raw", rawAgent, f.raw}
	f.round("warm-up", warmUpNodes, raw) // the first requests to a new API server are slow, no matter who sends them

	raws := []departure{f.round("raw-0", evictedNodes, raw)}
	var ours []departure
	spot := exit{"daemon", "spot-handler/", f.daemon}
	if budgets > 0 { // the raw loop takes two minutes, and is far from a limit
		ours = append(ours, f.round("spot-0", evictedNodes, spot))
		reportEvictions(b, budgets, raws, ours, nil)
		return
	}
	for i := range noisyRounds {
		ours = append(ours, f.round(fmt.Sprintf("spot-%d", i), evictedNodes, spot))
		raws = append(raws, f.round(fmt.Sprintf("raw-%d", i+1), evictedNodes, raw))
	}
	kubectl := f.round("kubectl", evictedNodes, exit{"kubectl", "kubectl/", f.kubectl})
	reportEvictions(b, budgets, raws, ours, &kubectl)
}

// exodus is where departures are measured.
type exodus struct {
	*testing.B
	cluster *controlplane.Cluster
	client  rest.Interface
	budgets int
	ordered time.Time // when the present crowd was asked to leave
}

// round makes a crowd, has it leave, and reads of the audit log how it went.
func (f *exodus) round(prefix string, nodes int, by exit) departure {
	f.Helper()
	ctx, stop := context.WithTimeoutCause(f.Context(), 10*time.Minute, fmt.Errorf("not within 10 minutes"))
	defer stop()
	c := newCrowd(f.B, ctx, f.cluster, prefix, nodes, evictedPerNode, f.budgets)
	pause(f.B, ctx, settleTime)
	from, err := auditEnd(f.cluster.AuditLog)
	must(f.B, err)

	f.ordered = time.Now()
	gone := make(chan time.Time, 1)
	go func() {
		defer close(gone)
		_, err := f.cluster.WaitPods(ctx, "default", controlplane.Selector(prefix), func(pods []*corev1.Pod) bool { return len(pods) == 0 })
		if err == nil {
			gone <- time.Now()
		}
	}()
	d := departure{cpu: by.leave(ctx, c), kinds: map[string]int{}}
	at, ok := <-gone
	if !ok {
		f.Fatalf("the pods of %s did not leave", prefix)
	}
	d.whole = at.Sub(f.ordered).Seconds()

	requests, err := requestsOf(by.agent, f.cluster.AuditLog, from)
	must(f.B, err)
	var first, last time.Time
	var took []float64
	for _, r := range requests {
		if r.isLease() {
			continue
		}
		d.requests++
		d.kinds[r.what()]++
		if r.ObjectRef.Subresource != "eviction" {
			continue
		}
		if r.ResponseStatus.Code != 201 {
			d.refused++
			continue
		}
		took = append(took, r.StageTimestamp.Sub(r.RequestReceivedTimestamp).Seconds())
		if first.IsZero() || r.RequestReceivedTimestamp.Before(first) {
			first = r.RequestReceivedTimestamp
		}
		if r.StageTimestamp.After(last) {
			last = r.StageTimestamp
		}
	}
	// All pods have left. An eviction that its client gave up on is logged as refused, though its pod ends all the same.
	if unanswered := len(c.pods) - len(took); unanswered < 0 || unanswered > len(c.pods)/100 {
		f.Fatalf("%d evictions of %s granted, want one for each of %d pods", len(took), prefix, len(c.pods))
	}
	d.rate, d.slowest = float64(len(c.pods))/last.Sub(first).Seconds(), quantile(took, 0.99)
	must(f.B, f.cluster.Client.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "bench=" + prefix}))
	f.Logf("%s: %+v", by.name, d)
	return d
}

// isLease recognises the renewals of the leader's lease: they belong to no interruption.
func (r request) isLease() bool { return r.ObjectRef.Resource == "leases" }

func (f *exodus) raw(ctx context.Context, c crowd) float64 {
	f.Helper()
	must(f.B, rawEvict(ctx, f.client, c.pods))
	return 0
}

// daemon has a new daemon drain the nodes, with everything at its default.
func (f *exodus) daemon(ctx context.Context, c crowd) float64 {
	f.Helper()
	sqs := sqsemu.Start()
	defer sqs.Close()
	queue := sqs.Queue("spot-handler")
	d := startQueueMode(f.B, ctx, f.cluster.Kubeconfig, sqs, queue)
	alive, stopped := untilDead(ctx, d)
	defer stopped()
	waitLine(f.B, alive, d, "leading")
	pause(f.B, alive, settleTime)
	used := processorTime(d.Pid())
	f.ordered = time.Now()
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

// kubectl drains all nodes.
func (f *exodus) kubectl(ctx context.Context, c crowd) float64 {
	f.Helper()
	var g errgroup.Group
	used := make([]time.Duration, kubectls)
	for i := range kubectls {
		g.Go(func() error {
			args := []string{"--kubeconfig=" + f.cluster.Kubeconfig, "drain", "--force"} // the pods have no controller
			for n := i; n < len(c.nodes); n += kubectls {
				args = append(args, c.nodes[n].Name)
			}
			cmd := exec.CommandContext(ctx, f.cluster.Kubectl, args...)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("kubectl drain: %w\n%s", err, out)
			}
			used[i] = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
			return nil
		})
	}
	must(f.B, g.Wait())
	var all time.Duration
	for _, d := range used {
		all += d
	}
	return all.Seconds()
}

func (d departure) perPod() float64 { return float64(d.requests) / (evictedNodes * evictedPerNode) }

// reportEvictions takes the daemon's rounds and the raw loop's: raw[i] ran before ours[i], and
// raw[i+1], if there is one, after it.
func reportEvictions(b *testing.B, budgets int, raw, ours []departure, kubectl *departure) {
	of := fmt.Sprintf("%d pods of %d nodes: ", evictedNodes*evictedPerNode, evictedNodes)
	if budgets > 0 {
		of = fmt.Sprintf("%d pods of %d nodes under %d budgets: ", evictedNodes*evictedPerNode, evictedNodes, budgets)
	}
	figure := func(what, unit string, of func(departure) float64) row {
		r := row{what: what, unit: unit, values: figures(ours, of)}
		for i := range ours {
			before, after := raw[i], raw[min(i+1, len(raw)-1)]
			r.limit = append(r.limit, (of(before)+of(after))/2)
		}
		return r
	}
	rates := figure(of+"evictions per second", "/s", func(d departure) float64 { return d.rate })
	rates.goal, rates.ofLimit, rates.atLeast = 0.8, true, true
	requests := figure(of+"requests per pod", "", departure.perPod)
	for _, r := range []row{rates, requests,
		figure(of+"from the notices until all are gone", "s", func(d departure) float64 { return d.whole }),
		figure(of+"evictions not granted at first", "", func(d departure) float64 { return float64(d.refused) }),
		figure(of+"p99 of one eviction", "s", func(d departure) float64 { return d.slowest }),
		{what: of + "processor time of the daemon", unit: "s", values: figures(ours, func(d departure) float64 { return d.cpu })},
	} {
		report(r)
	}
	b.ReportMetric(0, "ns/op") // of all rounds with their preparations: says nothing
	b.ReportMetric(median(rates.values), "evictions/s")
	b.ReportMetric(median(rates.ratios()), "x-raw")
	b.ReportMetric(median(requests.values), "requests/pod")
	if kubectl == nil {
		return
	}
	of += fmt.Sprintf("beside %d times kubectl drain, ", kubectls)
	beside := func(what, unit string, of func(departure) float64) row {
		return row{what: what, unit: unit, values: []float64{median(figures(ours, of))}, limit: []float64{of(*kubectl)}, peer: true}
	}
	report(beside(of+"evictions per second", "/s", func(d departure) float64 { return d.rate }))
	report(beside(of+"requests per pod", "", departure.perPod))
	report(beside(of+"until all are gone", "s", func(d departure) float64 { return d.whole }))
	report(beside(of+"processor time", "s", func(d departure) float64 { return d.cpu }))
	b.ReportMetric(median(rates.values)/kubectl.rate, "x-kubectl")
}
