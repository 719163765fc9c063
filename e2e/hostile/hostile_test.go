package hostile

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/drain"
	"spot-handler/e2e/chart"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/imdsemu"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
)

var (
	minutes = flag.Float64("minutes", 0, "no round begins later; 0 is one round, the short run")
	seed    = flag.Uint64("seed", 1, "of the first round; each has the next")
	size    = flag.Int("size", 2, "large objects of each kind")
)

const (
	lost  = 50 // nodes that are interrupted
	spare = 12 // that take their pods
	shop  = "shop"

	namespace       = "spot-handler" // of the installation
	tenantNamespace = "tenant"
)

// From the notice to the deadline there are leastLeft, which the shop's pods use half of where the tenant's
// objects take the control plane 20 s to write. Where they take longer, it is more; a queue's notice comes
// two minutes before.
const leastLeft, mostLeft = 70 * time.Second, 115 * time.Second

// A budget is updated, and the shop's pods are notified, within these, or within as many times what
// kube-controller-manager takes to update a budget in the same round, as the machine can be busy.
const (
	updated, updatedTimes   = 10 * time.Second, 5 // before the daemons start
	notified, notifiedTimes = 5 * time.Second, 3  // at any time
)

// Bounds, in MiB.
var bounds = map[string]int{"queue": 256, "drain": 256, "imds": 64, "audit": 1024, "plan": 1024, "status": 1024, "observe": 1024, "rehearse": 1024, "migrate": 1024}

// TestHostile plays rounds until the time is over.
func TestHostile(t *testing.T) {
	began := time.Now()
	for i := uint64(0); ; i++ {
		t.Run(fmt.Sprintf("seed-%d", *seed+i), func(t *testing.T) { play(t, *seed+i) })
		if t.Failed() || time.Since(began) > time.Duration(*minutes*float64(time.Minute)) {
			return
		}
	}
}

// round is one control plane, and what happens in it.
type round struct {
	*testing.T
	seed    uint64
	mode    string // of the chart
	cluster *controlplane.Cluster
	tenant  *Tenant

	rehearsed string // a node with the tenant's pods only

	mu      sync.Mutex
	daemons map[string]*daemon.Daemon // by mode and node
	peaks   map[string]int            // MiB, by mode or command
	heard   map[string]time.Time      // first notices to the shop's pods
	missed  map[string]int            // probes in a row
	broken  []string
}

// Errorf says which check has failed, here and at the end of all output, which is long and often cut.
func (r *round) Errorf(format string, args ...any) {
	r.Helper()
	r.T.Errorf(format, args...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = append(r.broken, fmt.Sprintf("%.600s", fmt.Sprintf(format, args...)))
}

func (r *round) must(err error) {
	r.Helper()
	if err != nil {
		r.Errorf("%v", err)
		r.FailNow()
	}
}

// conclude repeats which checks have failed.
func (r *round) conclude() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, text := range r.broken {
		r.Logf("seed %d, mode %s: FAILED: %s", r.seed, r.mode, text)
	}
}

func play(t *testing.T, seed uint64) {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Minute, fmt.Errorf("a round took 10 minutes"))
	defer cancel()
	began := time.Now()
	d := rand.New(rand.NewPCG(seed, 1<<61))
	r := &round{T: t, seed: seed, mode: []string{"both", "imds"}[d.IntN(2)], daemons: map[string]*daemon.Daemon{}, peaks: map[string]int{}, heard: map[string]time.Time{}, missed: map[string]int{}}
	t.Cleanup(r.conclude) // the last of all
	// Nodes are not given up while the control plane is as busy as the tenant can make it. Services
	// with thousands of ports would keep controllers busy for ever whose work nobody here reads.
	r.cluster = controlplane.ForTest(t, controlplane.Options{Heartbeat: 40 * time.Second, NoEndpoints: true})
	nodes, pods := r.shop(ctx)
	shell := t.TempDir()
	path, err := bench(shell)
	r.must(err)
	r.tenant, err = NewTenant(ctx, r.cluster, tenantNamespace, seed)
	r.must(err)
	hangs := r.hangs(ctx)
	r.tenant.Canary, r.tenant.Hanging, r.tenant.Victims = filepath.Join(shell, "canary"), hangs, pods
	for _, n := range nodes {
		r.tenant.Nodes = append(r.tenant.Nodes, n.Name)
	}
	args, env := r.install(ctx)

	t.Logf("seed %d, mode %s, %.0fs: the cluster stands", seed, r.mode, time.Since(began).Seconds())
	each := map[string]int{"small Pod": 200, "decoy": 30, "small Event": 40, "ConfigMap": *size, "HorizontalPodAutoscaler": *size, "Job": *size}
	for _, kind := range Large() {
		each[kind] = *size
	}
	var background sync.WaitGroup
	meanwhile, stop := context.WithCancel(ctx)
	defer background.Wait()
	defer stop()
	lag := r.watchBudgets(meanwhile, &background)
	filling := time.Now()
	r.tenant.Fill(ctx, each)
	left := min(max(leastLeft, time.Since(filling)*7/2), mostLeft)
	before := lag()
	r.must(r.tenant.pod(ctx, dice{rand.New(rand.NewPCG(seed, 1<<60)), r.tenant.Canary, largest, false}, "rehearsed", 0, r.rehearsed))
	t.Logf("%.0fs: %s", time.Since(began).Seconds(), r.tenant)

	// The daemons come last, as after a restart.
	server := sqsemu.Start(sqsemu.Options{})
	defer server.Close()
	queue := server.Queue("spot-handler")
	instances := r.daemonsOn(ctx, nodes, server, queue, args, env)
	for name, one := range r.daemons {
		background.Go(func() { r.peak(name, peakOf(one.Pid(), 250*time.Millisecond, one.Done())) })
		background.Go(func() { siege(meanwhile, one.URL, map[bool]int{true: 20, false: 250}[name[0] == 'i']) })
		background.Go(func() {
			missed := probe(meanwhile, one.URL)
			r.mu.Lock()
			defer r.mu.Unlock()
			r.missed[name] = missed
		})
	}
	background.Go(func() { r.tenant.GoOn(meanwhile, 2*time.Second) })
	fewest := r.watchReady(meanwhile, &background)
	asked, enough := context.WithCancel(meanwhile)
	var people sync.WaitGroup
	people.Go(func() { r.people(asked, path, nodes) })
	people.Go(func() { r.observe(asked, path) })
	people.Go(func() { r.rehearse(meanwhile, path) })

	// All nodes at once.
	now := time.Now().Truncate(time.Second)
	for i, n := range nodes {
		if metadata := instances[n.Name]; metadata != nil {
			metadata.Interrupt("terminate", now.Add(left))
			continue
		}
		queue.Send(daemon.EventBridge(daemon.SpotInterruption, fmt.Sprint("event-", i), controlplane.InstanceID(n.Name), now.Add(left-2*time.Minute)))
	}
	t.Logf("%.0fs: %d nodes are interrupted", time.Since(began).Seconds(), len(nodes))
	off := r.waitOff(ctx, now.Add(left))
	t.Logf("%.0fs: the shop's pods were off the nodes after %.1fs; at least %d of %d were ready", time.Since(began).Seconds(), off.Sub(now).Seconds(), fewest(), len(pods))
	enough()
	people.Wait()
	r.migrate(ctx, path, d)
	// One more round of commands sees what is left behind.
	r.commands(ctx, path, nodes, 0)
	// A machine that is so busy gives replacement pods no time to be ready: then the shop's budget counts.
	spared, misses := 0, 3
	if lag() > updated/2 {
		spared, misses = 1, 2*misses
	}
	if n := fewest(); n < len(pods)-spared {
		r.Errorf("ready: %d of %d", n, len(pods))
	}
	t.Logf("kube-controller-manager has updated a budget within %.1fs, %.1fs while the tenant first wrote", lag().Seconds(), before.Seconds())
	if took := lag(); took > max(updated, updatedTimes*before) {
		r.Errorf("control plane: kube-controller-manager has taken %s to update a budget, %s while the tenant first wrote: what else is broken is for want of the control plane", took, before)
	}
	r.judgeNotices(now, pods, max(notified, notifiedTimes*lag()))
	stop()
	for name, one := range r.daemons {
		select {
		case <-one.Done():
			r.Errorf("daemons: %s ended with code %d: %v", name, one.ExitCode(), one.Lines("")[max(0, len(one.Lines(""))-3):])
		default:
			one.Kill()
		}
	}
	background.Wait()
	for name, missed := range r.missed {
		if missed >= misses {
			r.Errorf("probes: %s did not answer %d in a row", name, missed)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(r.peaks)) {
		if bound := bounds[what]; r.peaks[what] > bound {
			r.Errorf("memory: %s took %d MiB, want at most %d", what, r.peaks[what], bound)
		}
	}
	t.Logf("seed %d, mode %s: %.0fs; peaks in MiB %v; %s", seed, r.mode, time.Since(began).Seconds(), r.peaks, r.tenant)
}

// shop is another tenant's: a Deployment with a budget, a pod on each of the nodes that are lost.
func (r *round) shop(ctx context.Context) ([]*corev1.Node, []corev1.Pod) {
	nodes, err := r.cluster.CreateBareNodes(ctx, controlplane.BareNodes{Count: lost, Labels: map[string]string{"node-lifecycle": "spot"}})
	r.must(err)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		var event struct{ Subject string }
		_ = json.NewDecoder(q.Body).Decode(&event)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.heard[event.Subject].IsZero() {
			r.heard[event.Subject] = time.Now()
		}
	}))
	r.Cleanup(receiver.Close)
	half, one := intstr.FromString("50%"), intstr.FromInt32(1)
	_, err = r.cluster.RunDeployment(ctx, controlplane.DeploymentSpec{
		Namespace: shop, Name: shop, Replicas: lost, Grace: 5 * time.Second, MaxSurge: &half, MaxUnavailable: &one, BudgetMaxUnavailable: &one,
		Annotations: map[string]string{
			"spot-handler/notice": receiver.URL[strings.LastIndexByte(receiver.URL, ':')+1:], "e2e.spot-handler/ip": "127.0.0.1",
		},
	})
	r.must(err)
	ready, err := r.cluster.WaitReady(ctx, shop, shop, lost)
	r.must(err)
	_, err = r.cluster.CreateBareNodes(ctx, controlplane.BareNodes{Count: spare, Prefix: "spare", CPUs: 32})
	r.must(err)
	others, err := r.cluster.CreateBareNodes(ctx, controlplane.BareNodes{Count: 1, Prefix: "rehearsed"})
	r.must(err)
	r.rehearsed = others[0].Name
	var pods []corev1.Pod
	for _, p := range ready {
		pods = append(pods, *p)
	}
	return nodes, pods
}

// hangs serves receivers that never answer, and returns their port.
func (r *round) hangs(ctx context.Context) (port string) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		select {
		case <-q.Context().Done():
		case <-ctx.Done():
		}
	}))
	r.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server.URL[strings.LastIndexByte(server.URL, ':')+1:]
}

// install installs the chart. Its pods are only there to be seen: the processes are ours. It returns
// the names of the accounts, and what the chart says of memory, by component.
func (r *round) install(ctx context.Context) (accounts, limits map[string]string) {
	r.must(r.cluster.CreateNamespace(ctx, namespace))
	release := chart.Release{Values: chart.Values(r.mode, map[string]any{"flags.workloadNotices": true})}
	objects, err := chart.Create(ctx, r.cluster.Dynamic, release, append([]string{"Deployment", "DaemonSet"}, chart.Around...), r.Output())
	r.must(err)
	accounts, limits = map[string]string{}, map[string]string{}
	for _, o := range objects {
		if kind := o.GetKind(); kind != "Deployment" && kind != "DaemonSet" {
			continue
		}
		component := map[string]string{"DaemonSet": "imds"}[o.GetKind()]
		if component == "" {
			component = r.leads()
		}
		accounts[component], limits[component] = podOf(r, o)
	}
	for component, account := range accounts {
		r.must(chart.WaitAllowed(ctx, r.cluster.Client, namespace, account, component != "imds"))
	}
	return accounts, limits
}

// leads is the mode of the process that drains.
func (r *round) leads() string {
	if r.mode == "imds" {
		return "drain"
	}
	return "queue"
}

// podOf is the account of a workload's pods, and the limit that Go is given for its memory.
func podOf(r *round, workload unstructured.Unstructured) (account, limit string) {
	inner, _, err := unstructured.NestedMap(workload.Object, "spec", "template")
	r.must(err)
	var template corev1.PodTemplateSpec
	r.must(runtime.DefaultUnstructuredConverter.FromUnstructured(inner, &template))
	c := template.Spec.Containers[0]
	for _, e := range c.Env {
		if e.Name != "GOMEMLIMIT" {
			continue
		}
		limit = e.Value
		if e.ValueFrom != nil {
			limit = fmt.Sprint(c.Resources.Limits.Memory().Value())
		}
	}
	return template.Spec.ServiceAccountName, limit
}

// daemonsOn starts the processes: one that drains, and on some nodes, or on all where there is no
// queue, one that marks. It returns the metadata services of those.
func (r *round) daemonsOn(ctx context.Context, nodes []*corev1.Node, server *sqsemu.Server, queue *sqsemu.Queue, accounts, limits map[string]string) map[string]*imdsemu.Server {
	dir := r.TempDir()
	start := func(name, component, pod string, o daemon.Options) {
		o.Kubeconfig = filepath.Join(dir, name+".kubeconfig")
		r.must(r.cluster.WriteKubeconfig(ctx, o.Kubeconfig, namespace, accounts[component], pod))
		if limits[component] != "" {
			o.Env = append(o.Env, "GOMEMLIMIT="+limits[component])
		}
		log, err := os.Create(filepath.Join(r.cluster.Dir, name+".daemon"))
		r.must(err)
		r.Cleanup(func() { _ = log.Close() })
		o.Log = log
		one, err := daemon.Start(o)
		r.must(err)
		r.Cleanup(one.Kill)
		r.daemons[name] = one
	}
	o := daemon.Options{Args: []string{r.leads(), "--lease-namespace=" + namespace, "--workload-notices", "--notice-networks=127.0.0.0/8"}}
	marking := len(nodes)
	if r.mode != "imds" {
		o.Args, o.SQS, marking = append(o.Args, "--queue-url="+queue.URL()), server.URL, 5
	}
	start(r.leads(), r.leads(), "", o)

	// The DaemonSet is for spot nodes alone.
	pods, err := r.cluster.WaitPods(ctx, namespace, "app.kubernetes.io/component=imds", func(pods []*corev1.Pod) bool {
		return len(pods) >= lost && !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return !controlplane.Ready(p) })
	})
	r.must(err)
	instances := map[string]*imdsemu.Server{}
	for _, n := range nodes[:marking] {
		i := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return p.Spec.NodeName == n.Name })
		if i < 0 {
			r.must(fmt.Errorf("no pod of the DaemonSet is on node %s", n.Name))
		}
		metadata := imdsemu.Start(imdsemu.Options{InstanceID: controlplane.InstanceID(n.Name)})
		r.Cleanup(metadata.Close)
		instances[n.Name] = metadata
		start("imds "+n.Name, "imds", pods[i].Name, daemon.Options{Args: []string{"imds", "--drain=false", "--node-name=" + n.Name}, IMDS: metadata.URL})
	}
	for _, one := range r.daemons {
		r.must(one.WaitReady(ctx))
	}
	return instances
}

func (r *round) peak(name string, peak int) {
	what, _, _ := strings.Cut(name, " ")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.peaks[what] = max(r.peaks[what], peak)
}

// watchReady follows the shop, and says how few of its pods were ready at any moment.
func (r *round) watchReady(ctx context.Context, background *sync.WaitGroup) (fewest func() int) {
	var mu sync.Mutex
	least := lost
	background.Go(func() {
		_, _ = r.cluster.WaitPods(ctx, shop, "", func(pods []*corev1.Pod) bool {
			n, others := 0, ""
			for _, p := range pods {
				if controlplane.Ready(p) {
					n++
				} else {
					others += fmt.Sprintf("\n%s on %q: surged %t, deleted %v", p.Name, p.Spec.NodeName, p.Labels[drain.SurgedLabel] != "", p.DeletionTimestamp)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if len(pods) > 0 && n < least { // before the list is complete
				least = n
				r.Logf("%s: %d of the shop's pods are ready, and not:%s", time.Now().Format(time.TimeOnly), n, others)
			}
			return false
		})
	})
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return least
	}
}

// watchBudgets writes a disruption budget of somebody who has nothing else, again and again, and says
// how long kube-controller-manager has taken at most to see it. While that is busy with the tenant, no
// budget of the cluster is updated, and whoever keeps to the shop's has to wait.
func (r *round) watchBudgets(ctx context.Context, background *sync.WaitGroup) (longest func() time.Duration) {
	const namespace = "bystander"
	r.must(r.cluster.CreateNamespace(ctx, namespace))
	budgets := r.cluster.Client.PolicyV1().PodDisruptionBudgets(namespace)
	one := intstr.FromInt32(1)
	budget, err := budgets.Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: namespace}, Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"no": "pod"}}},
	}, metav1.CreateOptions{})
	r.must(err)
	var mu sync.Mutex
	var most time.Duration
	background.Go(func() {
		wrote, seen := time.Now(), false
		for i := 2; ; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(250 * time.Millisecond):
			}
			now, err := budgets.Get(ctx, namespace, metav1.GetOptions{})
			if err != nil {
				continue
			}
			seen = now.Status.ObservedGeneration >= budget.Generation
			mu.Lock()
			most = max(most, time.Since(wrote))
			mu.Unlock()
			if !seen {
				continue
			}
			wrote = time.Now()
			patch := fmt.Appendf(nil, `{"spec":{"minAvailable":%d}}`, i)
			if changed, err := budgets.Patch(ctx, namespace, types.MergePatchType, patch, metav1.PatchOptions{}); err == nil {
				budget, i = changed, i+1
			}
		}
	})
	return func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return most
	}
}

// waitOff waits until the shop has left the lost nodes, at most until the deadline.
func (r *round) waitOff(ctx context.Context, deadline time.Time) time.Time {
	lostNodes := map[string]bool{}
	for _, n := range r.tenant.Nodes {
		lostNodes[n] = true
	}
	bounded, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	pods, err := r.cluster.WaitPods(bounded, shop, "", func(pods []*corev1.Pod) bool {
		return len(pods) > 0 && !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return lostNodes[p.Spec.NodeName] })
	})
	if err != nil {
		still := 0
		for _, p := range pods {
			if lostNodes[p.Spec.NodeName] {
				still++
			}
		}
		r.Errorf("ready: %d pods of the shop were on their nodes at the deadline", still)
		how := map[string]int{}
		for _, p := range pods {
			how[fmt.Sprintf("surged %t, has a node %t, ready %t", p.Labels[drain.SurgedLabel] != "", p.Spec.NodeName != "", controlplane.Ready(p))]++
		}
		r.Logf("the shop's pods: %v", how)
		leader := r.daemons[r.leads()].Lines("")
		for _, line := range leader[max(0, len(leader)-5):] {
			r.Logf("%s: %.400v", r.leads(), line)
		}
		o, err := Command(ctx, r.cluster.Kubeconfig, "status", "--node="+r.tenant.Nodes[0])
		r.Logf("%v\n%s", err, o.Out)
	}
	return time.Now()
}

// judgeNotices: the tenant's receivers delay nobody else's.
func (r *round) judgeNotices(sent time.Time, pods []corev1.Pod, within time.Duration) {
	recorded := map[string]time.Time{}
	nodes, err := r.cluster.Client.CoreV1().Nodes().List(r.Context(), metav1.ListOptions{})
	r.must(err)
	for _, n := range nodes.Items {
		if rec, err := interruption.ParseRecord(n.Annotations[interruption.Annotation]); err == nil {
			recorded[n.Name] = rec.Received
		}
	}
	var slowest time.Duration
	silent := 0
	r.mu.Lock()
	all := maps.Clone(r.heard)
	r.mu.Unlock()
	for _, p := range pods {
		heard, ok := all[p.Namespace+"/"+p.Name]
		if !ok {
			silent++
			continue
		}
		from := sent
		if at := recorded[p.Spec.NodeName]; !at.IsZero() {
			from = at
		}
		slowest = max(slowest, heard.Sub(from))
	}
	r.Logf("the shop's pods were notified within %.1fs of the record; %d of %d were not", slowest.Seconds(), silent, len(pods))
	if silent > 0 || slowest > within {
		r.Errorf("notices: %d of %d pods of the shop were not notified, the last after %s, want %s", silent, len(pods), slowest, within)
	}
}

// people run commands, one after the other, until ctx ends.
func (r *round) people(ctx context.Context, path string, nodes []*corev1.Node) {
	for ctx.Err() == nil {
		r.commands(ctx, path, nodes, 2*time.Second)
	}
}

func (r *round) commands(ctx context.Context, path string, nodes []*corev1.Node, pause time.Duration) {
	for _, args := range [][]string{
		{"status"}, {"audit"}, {"plan", nodes[0].Name}, {"status", "--node=" + nodes[1].Name}, {"plan", "-o", "json", nodes[2].Name}, {"audit", "-o", "json"},
		{"status", "-o", "json"},
	} {
		o, err := Command(ctx, r.cluster.Kubeconfig, args...)
		if ctx.Err() != nil {
			return
		}
		r.judge(o, err, path)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// observe follows all interruptions until ctx ends, and writes a report.
func (r *round) observe(ctx context.Context, path string) {
	report := filepath.Join(r.TempDir(), "report.html")
	o, err := Command(ctx, r.cluster.Kubeconfig, "observe", "--all", "--report="+report)
	r.judge(o, err, path)
	page, err := os.ReadFile(report)
	r.check(err)
	if found := (Outcome{Out: page}).controls(); found != "" {
		r.Errorf("controls: the report of observe has a control character: %s", found)
	}
	if strings.Contains(string(page), "<script>alert") {
		r.Errorf("the report of observe has a tenant's script")
	}
}

// rehearse rehearses the loss of a node with the tenant's pods only.
func (r *round) rehearse(ctx context.Context, path string) {
	o, err := Command(ctx, r.cluster.Kubeconfig, "rehearse", r.rehearsed, "--yes", "--despite-findings", "--deadline=25s", "--max-share=100")
	r.judge(o, err, path)
}

// migrate converts the settings of a program that the tenant calls aws-node-termination-handler.
func (r *round) migrate(ctx context.Context, path string, d *rand.Rand) {
	odd := dice{d, r.tenant.Canary, largest, false}
	pod := corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "aws-node-termination-handler", Annotations: odd.annotations()}}
	c := corev1.Container{Name: "aws-node-termination-handler", Image: "aws-node-termination-handler"}
	for _, name := range []string{
		"QUEUE_URL", "WEBHOOK_URL", "WEBHOOK_HEADERS", "WEBHOOK_TEMPLATE", "WEBHOOK_PROXY", "POD_TERMINATION_GRACE_PERIOD", "NODE_TERMINATION_GRACE_PERIOD",
		"TAINT_NODE", "DRY_RUN", "MANAGED_TAG", "LOG_LEVEL", "PROMETHEUS_SERVER_PORT", "ENABLE_SQS_TERMINATION_DRAINING", "SPOT_HANDLER\x1b[31m", odd.odd() + "x",
	} {
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: odd.odd()})
		c.Args = append(c.Args, "--"+strings.ToLower(strings.ReplaceAll(name, "_", "-"))+"="+odd.odd())
	}
	odd.swell(&pod.ObjectMeta, &corev1.PodSpec{Containers: []corev1.Container{c}}, largest)
	pod.Spec.Containers = []corev1.Container{c}
	text, err := json.Marshal(pod)
	r.check(err)
	file := filepath.Join(r.TempDir(), "pod.json")
	r.check(os.WriteFile(file, text, 0o600))
	o, err := Command(ctx, r.cluster.Kubeconfig, "migrate", file)
	r.judge(o, err, path)
}

func (r *round) check(err error) {
	r.Helper()
	if err != nil {
		r.Errorf("%v", err)
	}
}

// judge judges how a command has ended, and what it has printed.
func (r *round) judge(o Outcome, err error, path string) {
	r.Helper()
	what := strings.Join(o.Args, " ")
	if err != nil {
		r.Errorf("run %s: %v", what, err)
		return
	}
	r.peak(o.Args[0], o.Peak)
	// With code 1 they say what they left out as too large, which is the tenant's alone; migrate says of
	// most settings that it cannot read them.
	leftOut := o.Code == 1 && strings.Count(string(o.Err), "left out: ") == strings.Count(string(o.Err), fmt.Sprintf(" of namespace %q: larger than", tenantNamespace)) && strings.Contains(string(o.Err), "left out: ")
	if o.Code != 0 && o.Code != 3 && !leftOut && o.Args[0] != "migrate" {
		r.Errorf("commands: %s ended with code %d, %d MiB: %.500q", what, o.Code, o.Peak, o.Err)
	}
	if found := o.controls(); found != "" {
		r.Errorf("controls: %s printed a control character: %s", what, found)
	}
	offered := o.commands()
	ran, err := runs(r.Context(), path, r.tenant.Canary, offered)
	r.check(err)
	if ran != "" {
		r.Errorf("quoting: %s printed what runs a tenant's command: %q", what, ran)
	}
	for _, text := range offered {
		if strings.Contains(text, "ServiceAccount") && strings.Contains(text, `"`+tenantNamespace+`"`) {
			r.Errorf("grants: %s printed a grant for a tenant's account: %q", what, text)
		}
	}
}
