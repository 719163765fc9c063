package hostile

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/sqsemu"
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
// objects take the control plane 20 s to write. Where they take longer, it is more, even than EC2 gives: the
// speed of the machine is not what is tested.
const leastLeft, mostLeft = 70 * time.Second, 6 * time.Minute

// A budget is updated, and the shop's pods are notified, within these, or within as many times what
// kube-controller-manager takes to update a budget in the same round, as the machine can be busy.
const (
	updated, updatedTimes   = 10 * time.Second, 5 // before the daemons start
	notified, notifiedTimes = 5 * time.Second, 6  // at any time
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
	ctx, cancel := context.WithTimeoutCause(t.Context(), 15*time.Minute, fmt.Errorf("a round took 15 minutes"))
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
	needed := max(leastLeft, time.Since(filling)*7/2)
	left := min(needed, mostLeft)
	before := lag()
	pod := r.tenant.pod(dice{rand.New(rand.NewPCG(seed, 1<<60)), r.tenant.Canary, largest, false}, "rehearsed", 0)
	pod.Namespace, pod.Spec.NodeName = r.tenant.Namespace, r.rehearsed
	r.must(controlplane.Create(ctx, r.tenant.client, pod))
	t.Logf("%.0fs: %s", time.Since(began).Seconds(), r.tenant)

	// The daemons come last, as after a restart.
	server := sqsemu.Start()
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
	// A machine this slow gives replacement pods too little time to become ready: then the shop's PDB
	// counts, which lets one pod go.
	spared, misses := 0, 3
	if lag() > updated/2 || needed > mostLeft {
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
