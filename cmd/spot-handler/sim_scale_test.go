package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"spot-handler/e2e/sim"
)

// simScale is set where large clusters are to be played, see the Makefile.
const simScale = "SIM_SCALE"

// A control plane, as far as the daemon notices how large it is: a share of its seats, and how long a request takes.
//
// The seats are those of the priority level workload-low, which serves all clients that nobody has assigned elsewhere:
// 100 of 245 shares, of which half are taken by others here. Upstream's default is 600 in all; EKS' tiers have 1,700
// (XL) and 6,800 (4XL).
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/
// https://docs.aws.amazon.com/eks/latest/userguide/eks-provisioned-control-plane.html
type controlPlane struct {
	name  string
	seats int
	takes time.Duration
}

func seatsOf(all int) int { return all * 100 / 245 / 2 }

var controlPlanes = []controlPlane{
	{"600 seats, 15 ms", seatsOf(600), 15 * time.Millisecond},
	{"600 seats, 50 ms", seatsOf(600), 50 * time.Millisecond},
	{"600 seats, 200 ms", seatsOf(600), 200 * time.Millisecond},
	{"XL, 50 ms", seatsOf(1700), 50 * time.Millisecond},
	{"4XL, 50 ms", seatsOf(6800), 50 * time.Millisecond},
}

// TestScale plays clusters of 10,000 and 50,000 nodes that lose 1,000 and 5,000 at once, on control planes of several
// sizes, and prints the outcome. The time is virtual and says nothing about what the processors can do, so the
// processor time, with that of the simulated cluster, is printed beside it.
func TestScale(t *testing.T) {
	if os.Getenv(simScale) == "" {
		t.Skip("make scale plays it")
	}
	played := 0
	for _, size := range []struct{ nodes, lost, pods int }{{10000, 1000, 15}, {50000, 5000, 5}} {
		for _, cp := range controlPlanes {
			if only := os.Getenv(simScale); only != "all" && only != strconv.Itoa(size.nodes) {
				continue
			}
			played++
			t.Run(fmt.Sprintf("%d nodes, %s", size.nodes, cp.name), func(t *testing.T) {
				playCrowd(t, sim.Crowd{
					Nodes: size.nodes, Lost: size.lost, Pods: size.pods, Grace: 30, Boot: 45 * time.Second, Seats: cp.seats, Takes: cp.takes,
				}, cp.name)
			})
		}
	}
	if played == 0 {
		t.Errorf("%s=%s: want 10000, 50000 or all", simScale, os.Getenv(simScale))
	}
}

func playCrowd(t *testing.T, c sim.Crowd, name string) {
	p := newPlayer(t)
	debug.SetGCPercent(100) // what a crowd keeps alive is large enough
	var got sim.Crowded
	var grown uint64
	began, cpu := time.Now(), processorTime(t)
	synctest.Test(t, func(t *testing.T) {
		world := sim.NewCrowd(c)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go world.Run(ctx)
		before := heap()
		p.start(t, world)
		time.Sleep(sim.CrowdAt - time.Second)
		grown = (heap() - before) / sim.Replicas
		cpu = processorTime(t)
		time.Sleep(3 * time.Minute)
		got = world.Crowded()
		world.End()
		cancel() // the outcome is known: nothing after this counts
		time.Sleep(calmsDown)
	})
	t.Logf("%d nodes, %d lost, %s: last cordon %.1f s, last replacement requested %.1f s, %d of %d pods asked to end, the last after %.1f s, %d late, %d left; "+
		"%d requests, longest in line %.2f s; heap of an idle replica %d MiB; processor time of all %.0f s, in %.0f s",
		c.Nodes, c.Lost, name, got.Cordoned.Seconds(), got.Replaced.Seconds(), got.Evicted, c.Lost*c.Pods, got.Ended.Seconds(), got.Late, got.Left,
		got.Requests, got.Queued.Seconds(), grown>>20, (processorTime(t) - cpu).Seconds(), time.Since(began).Seconds())
}

// heap is what lives on it.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func processorTime(t *testing.T) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
