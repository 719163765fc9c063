package main

import (
	"context"
	"os"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
)

// counting counts the notices that it accepts.
type counting struct{ counter prometheus.Counter }

func (c counting) Accept(context.Context, interruption.Notice) (interruption.Verdict, error) {
	c.counter.Inc()
	return interruption.Accepted, nil
}

// A lost lease begins a leadership that knows nothing of the last, also in its metrics. A process that
// stops keeps its last ones until it has ended.
func TestLeaderships(t *testing.T) {
	made := 0
	leaderships := newLeaderships(func(reg *prometheus.Registry) leadership {
		made++
		counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "accepted"})
		reg.MustRegister(counter)
		return leadership{counting{counter}, func(ctx context.Context) error { <-ctx.Done(); return nil }, func() {}, reg}
	})
	accept := func(n int) {
		for range n {
			if _, err := leaderships.Accept(t.Context(), interruption.Notice{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := func(leadership int, accepted float64) {
		t.Helper()
		families, err := leaderships.Gather()
		if err != nil || len(families) != 1 {
			t.Fatalf("%d metrics, want one: %v", len(families), err)
		}
		if got := families[0].GetMetric()[0].GetCounter().GetValue(); made != leadership || got != accepted {
			t.Errorf("in leadership %d %v were accepted, want leadership %d and %v", made, got, leadership, accepted)
		}
	}
	end := func(cause error) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		if err := leaderships.Run(ctx); err != nil {
			t.Error(err)
		}
	}
	accept(2)
	want(1, 2)
	end(errLostLease)
	want(2, 0)
	accept(1)
	want(2, 1)
	end(context.Canceled)
	want(2, 1)
}

// Without leader election, a process drains without a lease.
func TestNobodyToElect(t *testing.T) {
	for name, cfg := range map[string]settings{"a single replica": {mode: modeQueue}, "a process on each node": {mode: modeIMDS, leaderElect: true}} {
		leader, began := prometheus.NewGauge(prometheus.GaugeOpts{Name: "leader"}), false
		leads := func() float64 {
			var m dto.Metric
			if err := leader.Write(&m); err != nil {
				t.Fatal(err)
			}
			return m.GetGauge().GetValue()
		}
		p := &process{cfg: cfg, leader: leader, leaderships: newLeaderships(func(reg *prometheus.Registry) leadership {
			return leadership{nil, func(context.Context) error { began = leads() == 1; return nil }, func() {}, reg}
		})}
		if err := p.drain(t.Context(), nil); err != nil || !began || leads() != 0 {
			t.Errorf("%s: %v, led by itself %t, and %v afterwards", name, err, began, leads())
		}
	}
}

// Events are about the process's own pod, which the downward API names. Without it, the hostname is the pod's name.
func TestOwnPod(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		cfg  settings
		want types.NamespacedName
	}{
		{settings{mode: modeQueue, podNamespace: "ops", podName: "spot-handler-0"}, types.NamespacedName{Namespace: "ops", Name: "spot-handler-0"}},
		{settings{mode: modeQueue, podNamespace: "ops"}, types.NamespacedName{Namespace: "ops", Name: host}},
		{settings{mode: modeQueue, podName: "spot-handler-0"}, types.NamespacedName{}},
		{settings{mode: modeIMDS, podNamespace: "ops", podName: "spot-handler-0"}, types.NamespacedName{}},
	} {
		if got := ownPod(tt.cfg); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.cfg, got, tt.want)
		}
	}
}
