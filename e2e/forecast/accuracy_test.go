package forecast

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
)

// A long run takes all settings in turn, with the whole two minutes.
var (
	rounds   = flag.Int("rounds", 0, "how many control planes, each with the next settings; 0 is the short run")
	clusters = flag.Int("clusters", 10, "random clusters on each")
	seed     = flag.Uint64("seed", 1, "of the first cluster")
	first    = flag.Int("settings", 0, "which settings come first")
)

// settings are those of a daemon, and the deadline that its nodes have.
type settings struct {
	flags    []string
	deadline time.Duration
	graces   []int64
	boot     time.Duration // of Karpenter's nodes; zero: nothing makes nodes
}

// karpenterTakes is what Karpenter needs to launch a node and to take it on.
const karpenterTakes = 3 * time.Second

// wrong is the part of the pods that can end otherwise than forecast. In the short run each of the
// few pods counts for more, and a machine that is busy for a moment can spoil a round by being late:
// it is played again, and a forecast that is wrong fails again.
const (
	wrong      = 0.01
	wrongShort = 0.05
	tries      = 3

	// onTime is the part of the pods that have to leave when they were to, and nearEnough the percent
	// of the drains that have to end as forecast.
	onTime     = 0.95
	nearEnough = 90
)

func TestMain(m *testing.M) {
	code := m.Run()
	controlplane.ReturnAll()
	os.Exit(code)
}

// TestForecast asks for forecasts and sees what happens.
func TestForecast(t *testing.T) {
	graces := []int64{0, 1, 5, 30, 30, 60, 100, 115, 300, 600}
	all := []settings{
		{nil, 2 * time.Minute, graces, 0},
		{[]string{"--blocked-pods=delete"}, 2 * time.Minute, graces, 0},
		{[]string{"--drain-strategy=hold"}, 2 * time.Minute, graces, 0},
		{[]string{"--drain-strategy=at-once", "--blocked-pods=delete", "--margin=5s"}, 2 * time.Minute, graces, 0},
		{[]string{"--release-node=false"}, 2 * time.Minute, graces, 25 * time.Second},
		{[]string{"--release-node=false", "--drain-strategy=hold", "--blocked-pods=delete"}, 2 * time.Minute, graces, 40 * time.Second},
	}
	if *rounds > 0 {
		a := newAccount()
		for i := range *rounds {
			t.Run(fmt.Sprintf("round-%d", i), func(t *testing.T) { play(t, all[(*first+i)%len(all)], *seed+uint64(i**clusters), *clusters, a) })
		}
		t.Logf("\n%s", a.table())
		if a.right() < 1-wrong {
			t.Errorf("%.2f%% of the pods ended as forecast", 100*a.right())
		}
		if a.timely() < onTime {
			t.Errorf("%.2f%% of the pods left when they were to", 100*a.timely())
		}
		if near := a.nearEnds(); near < len(a.ends)*nearEnough/100 {
			t.Errorf("%d of %d drains ended as forecast", near, len(a.ends))
		}
		return
	}
	short := settings{[]string{"--blocked-pods=delete"}, 40 * time.Second, []int64{0, 1, 5, 10, 25, 60, 600}, 0}
	for i := range tries {
		a := newAccount()
		if !t.Run(fmt.Sprintf("short-%d", i), func(t *testing.T) { play(t, short, *seed, 4, a) }) {
			return
		}
		t.Logf("\n%s", a.table())
		if a.right() >= 1-wrongShort {
			return
		}
	}
	t.Errorf("in %d rounds in a row fewer than %.0f%% of the pods ended as forecast", tries, 100*(1-wrongShort))
}

// play has several clusters interrupted side by side.
func play(t *testing.T, with settings, seed uint64, n int, a *account) {
	cluster := controlplane.ForTest(t, controlplane.Options{Karpenter: with.boot > 0})
	if with.boot == 0 {
		with.flags = append(with.flags, "--provisioner=none")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	if err := cluster.Announce(ctx, "spot-handler", "default", append([]string{"queue"}, with.flags...)...); err != nil {
		t.Fatal(err)
	}
	randoms := make([]*random, n)
	var making sync.WaitGroup
	for i := range n {
		making.Go(func() { randoms[i] = newRandom(t, cluster, seed+uint64(i), with) })
	}
	making.Wait()
	if t.Failed() {
		t.FailNow()
	}
	server := sqsemu.Start()
	t.Cleanup(server.Close)
	queue := server.Queue("spot-handler")
	d, err := daemon.Start(daemon.Options{
		Args:       append([]string{"queue", "--queue-url=" + queue.URL(), "--leader-elect=false"}, with.flags...),
		Kubeconfig: cluster.Kubeconfig, SQS: server.URL, Log: t.Output(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Kill)
	if err := d.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	l := watchLives(t, ctx, cluster)
	forecasts := make([]forecast, n)
	var plans sync.WaitGroup
	slots := make(chan struct{}, 2)
	for i, r := range randoms {
		plans.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			forecasts[i] = r.plan(ctx, with)
		})
	}
	plans.Wait()
	<-time.After(time.Until(time.Now().Truncate(time.Second).Add(time.Second))) // deadlines are whole seconds
	for _, r := range randoms {
		for _, node := range r.lost {
			now := time.Now()
			queue.Send(daemon.CapacityReservationInterruption("event-of-"+node.Name, controlplane.InstanceID(node.Name), now, now.Add(with.deadline)))
		}
	}
	for _, r := range randoms {
		for _, node := range r.lost {
			if _, err := cluster.WaitNode(ctx, node.Name, func(n *corev1.Node) bool {
				rec, err := interruption.ParseRecord(n.Annotations[interruption.Annotation])
				return err == nil && !rec.Ended.IsZero()
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, f := range forecasts {
		a.compare(t, cluster, f, l)
	}
}

// plan asks for the forecast as people do.
func (r *random) plan(ctx context.Context, with settings) (f forecast) {
	r.Helper()
	program, err := daemon.Build()
	r.must(err)
	args := []string{"plan", "-o", "json", "--kind=capacity-reservation-interruption", "--deadline=" + with.deadline.String(), "--stop-time=" + r.stop.String()}
	if with.boot > 0 {
		args = append(args, "--boot-time="+(with.boot+karpenterTakes).String())
	}
	for _, n := range r.lost {
		args = append(args, n.Name)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+r.cluster.Kubeconfig)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		r.Errorf("plan %q: %v\n%s", args, err, &errs)
		return f
	}
	r.must(json.Unmarshal(out, &f))
	return f
}
