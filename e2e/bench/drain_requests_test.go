package bench

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/sqsemu"
)

const (
	// drainedPods is how many pods each measured node has: as many as it has room for.
	drainedPods = 15
	// drainedNodes are interrupted at once: what is asked once for all of them, such as
	// their pool, is shared, as it is in any burst.
	drainedNodes = 5
)

// BenchmarkDrainRequests counts what an interruption asks of the API server for each
// node, from the notice until the node is gone, by the audit log: nodes of Karpenter with
// 15 pods of three Deployments, their replacements, drains and releases. Beside it stands
// kubectl drain, which does the drain alone. Renewals of the leader's lease and Events are
// not counted, the latter apart; watches count when they are opened. The counts
// hardly vary, so that one round does.
func BenchmarkDrainRequests(b *testing.B) {
	for b.Loop() {
		measureDrainRequests(b)
	}
}

// emptied is what drainedNodes nodes have cost.
type emptied struct {
	requests map[string]int // by what they do
	events   int            // Events posted besides
}

// each is a count's share of one node.
func each(n int) float64 { return float64(n) / drainedNodes }

func (e emptied) total() float64 {
	n := 0
	for _, of := range e.requests {
		n += of
	}
	return each(n)
}

func measureDrainRequests(b *testing.B) {
	cluster := controlplane.ForTest(b, controlplane.Options{Karpenter: true, Audit: true})
	ctx, stop := context.WithTimeoutCause(b.Context(), 15*time.Minute, fmt.Errorf("not within 15 minutes"))
	defer stop()
	must(b, cluster.CreatePools(ctx,
		controlplane.PoolSpec{
			Name: "batch", Weight: 100, CPUs: 4, Boot: time.Second,
			Annotations: map[string]string{"spot-handler/fallback-nodepool": "batch-fallback"},
		},
		controlplane.PoolSpec{Name: "batch-fallback", Weight: 10, CPUs: 16, Boot: 5 * time.Second, Capacity: []string{controlplane.OnDemand}}))
	h := &household{B: b, cluster: cluster}
	by := map[string]func(context.Context, []*corev1.Node) emptied{
		"surge": h.daemon("surge"), "hold": h.daemon("hold"), "at-once": h.daemon("at-once"), "kubectl drain": h.kubectl,
	}
	got := map[string][]emptied{}
	for way, empty := range by {
		got[way] = append(got[way], h.round(ctx, empty))
	}
	for _, way := range []string{"hold", "surge", "at-once", "kubectl drain"} {
		reportRequests(b, way, got[way])
	}
}

// household is where nodes are emptied.
type household struct {
	*testing.B
	cluster *controlplane.Cluster
}

// round fills nodes, empties them, and takes all away again.
func (h *household) round(ctx context.Context, empty func(context.Context, []*corev1.Node) emptied) emptied {
	h.Helper()
	nodes, err := h.cluster.CreateNodes(ctx, "batch", drainedNodes)
	must(h.B, err)
	const services = 3
	const replicas = drainedNodes * drainedPods / services
	ready, end := time.Second, 2*time.Second
	for i := range services {
		_, err := h.cluster.RunDeployment(ctx, controlplane.DeploymentSpec{
			Name: fmt.Sprint("web-", i), Replicas: replicas, CPU: "250m",
			Behaviour: controlplane.Behaviour{ReadyAfter: &ready, StopAfter: &end},
		})
		must(h.B, err)
	}
	for i := range services {
		_, err := h.cluster.WaitReady(ctx, "", fmt.Sprint("web-", i), replicas)
		must(h.B, err)
	}
	result := empty(ctx, nodes)
	foreground := metav1.DeletePropagationForeground
	for i := range services {
		must(h.B, h.cluster.Client.AppsV1().Deployments("default").Delete(ctx, fmt.Sprint("web-", i), metav1.DeleteOptions{PropagationPolicy: &foreground}))
	}
	_, err = h.cluster.WaitPods(ctx, "default", "", func(pods []*corev1.Pod) bool { return len(pods) == 0 })
	must(h.B, err)
	must(h.B, h.cluster.Dynamic.Resource(controlplane.NodeClaims).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	for {
		nodes, err := h.cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		must(h.B, err)
		if len(nodes.Items) == 0 {
			return result
		}
		pause(h.B, ctx, 100*time.Millisecond)
	}
}

// daemon empties nodes by an interruption of all of them.
func (h *household) daemon(strategy string) func(context.Context, []*corev1.Node) emptied {
	return func(ctx context.Context, nodes []*corev1.Node) emptied {
		h.Helper()
		sqs := sqsemu.Start()
		defer sqs.Close()
		queue := sqs.Queue("spot-handler")
		d := start(h.B, daemon.Options{
			Args: []string{"queue", "--queue-url=" + queue.URL(), "--drain-strategy=" + strategy}, Kubeconfig: h.cluster.Kubeconfig, SQS: sqs.URL,
		})
		must(h.B, d.WaitReady(ctx))
		alive, stopped := untilDead(ctx, d)
		defer stopped()
		waitLine(h.B, alive, d, "leading")
		pause(h.B, alive, settleTime)
		from, err := auditEnd(h.cluster.AuditLog)
		must(h.B, err)
		posted := h.events(alive)
		for _, node := range nodes {
			queue.Send(daemon.EventBridge(daemon.SpotInterruption, eventID(node.Name), controlplane.InstanceID(node.Name), time.Now()))
		}
		for _, node := range nodes {
			_, err = h.cluster.WaitNode(alive, node.Name, func(n *corev1.Node) bool { return n == nil })
			must(h.B, err)
		}
		pause(h.B, alive, settleTime) // for what comes after
		e := emptied{requests: h.requests("spot-handler/", from), events: h.events(alive) - posted}
		for _, line := range d.Lines("drained") {
			if line["graceful"] != float64(drainedPods) {
				h.Errorf("want all %d pods graceful: %v", drainedPods, line)
			}
		}
		if code := d.Stop(); code != 0 || len(d.Lines("drained")) != drainedNodes {
			h.Errorf("the daemon ended with code %d and %d drains", code, len(d.Lines("drained")))
		}
		return e
	}
}

// kubectl empties nodes as an administrator would.
func (h *household) kubectl(ctx context.Context, nodes []*corev1.Node) emptied {
	h.Helper()
	from, err := auditEnd(h.cluster.AuditLog)
	must(h.B, err)
	args := []string{"--kubeconfig=" + h.cluster.Kubeconfig, "drain", "--ignore-daemonsets", "--delete-emptydir-data"}
	for _, node := range nodes {
		args = append(args, node.Name)
	}
	cmd := exec.CommandContext(ctx, h.cluster.Kubectl, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		h.Fatalf("kubectl drain: %v\n%s", err, out)
	}
	return emptied{requests: h.requests("kubectl/", from)}
}

func (h *household) requests(agent string, from int64) map[string]int {
	h.Helper()
	made, err := requestsOf(agent, h.cluster.AuditLog, from)
	must(h.B, err)
	by := map[string]int{}
	for _, r := range made {
		if !r.isLease() {
			by[r.what()]++
		}
	}
	return by
}

// events counts those that the daemon has posted.
func (h *household) events(ctx context.Context) int {
	h.Helper()
	list, err := h.cluster.Client.CoreV1().Events("").List(ctx, metav1.ListOptions{})
	must(h.B, err)
	n := 0
	for _, e := range list.Items {
		if e.Source.Component == "spot-handler" || e.ReportingController == "spot-handler" {
			n++
		}
	}
	return n
}

func reportRequests(b *testing.B, way string, all []emptied) {
	of := fmt.Sprintf("node of %d pods, %s: ", drainedPods, way)
	total := row{what: of + "requests"}
	switch way {
	case "hold", "at-once":
		total.goal = drainedPods + 13
	case "surge": // each pod's labels are changed, too
		total.goal = 2*drainedPods + 14
	}
	events := row{what: of + "Events besides"}
	kinds := map[string]bool{}
	for _, e := range all {
		total.values = append(total.values, e.total())
		events.values = append(events.values, each(e.events))
		for kind := range e.requests {
			kinds[kind] = true
		}
	}
	report(total)
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		r := row{what: of + kind}
		for _, e := range all {
			r.values = append(r.values, each(e.requests[kind]))
		}
		report(r)
	}
	if way != "kubectl drain" {
		report(events)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(total.values), "requests-"+strings.ReplaceAll(way, " ", "-"))
	b.Logf("%s: %+v", way, all)
}
