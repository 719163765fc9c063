package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/imdsemu"
	"spot-handler/e2e/sqsemu"
)

const (
	slowReaders     = 2500
	idleConnections = 3000

	// reconnecting is how many of them come back at once whenever they are cut off, for heldTime.
	reconnecting = 50
	heldTime     = 15 * time.Second

	probeGoal = 1.0 // the kubelet's default timeout, in seconds
)

// BenchmarkMemoryConnections has somebody hold thousands of connections to each daemon's port of
// metrics, of which most ask for them and do not read, and measures the memory meanwhile, and how
// long probes take.
func BenchmarkMemoryConnections(b *testing.B) {
	for b.Loop() {
		measureConnections(b)
	}
}

func measureConnections(b *testing.B) {
	ctx, cancel := context.WithTimeoutCause(b.Context(), 2*memoryTimeout, fmt.Errorf("not within %s", 2*memoryTimeout))
	defer cancel()
	cluster := controlplane.ForTest(b, controlplane.Options{Heartbeat: heartbeat})
	nodes, err := cluster.CreateBareNodes(ctx, controlplane.BareNodes{Count: 1, Unmanaged: true})
	must(b, err)
	metadata := imdsemu.Start(imdsemu.Options{InstanceID: controlplane.InstanceID(nodes[0].Name)})
	defer metadata.Close()
	sqs := sqsemu.Start()
	defer sqs.Close()
	for _, tt := range []struct {
		options daemon.Options
		goal    float64
	}{
		{daemon.Options{Args: []string{"imds", "--drain=false", "--node-name=" + nodes[0].Name}, IMDS: metadata.URL}, 64},
		{daemon.Options{Args: []string{"drain"}}, 256},
		{daemon.Options{Args: []string{"queue", "--queue-url=" + sqs.Queue("spot-handler").URL()}, SQS: sqs.URL}, 256},
	} {
		tt.options.Kubeconfig = cluster.Kubeconfig
		d := start(b, tt.options)
		must(b, d.WaitReady(ctx))
		r := watchMemory(d)
		before, _ := r.look()
		slowest := holdConnections(b, ctx, d)
		_, peak := r.look()
		what := fmt.Sprintf("%s: memory with %d slow readers and %d idle connections", tt.options.Args[0], slowReaders, idleConnections)
		b.Logf("%s: %.0f MiB before", what, before.total)
		reportMemory(what, tt.goal, 0, peak)
		report(row{what: "  slowest probe meanwhile", unit: "s", goal: probeGoal, values: []float64{slowest.Seconds()}})
		if code := d.Stop(); code != 0 {
			b.Errorf("%s ended with code %d", tt.options.Args[0], code)
		}
	}
	b.ReportMetric(0, "ns/op") // of all that this took: says nothing
}

// holdConnections returns how long the slowest probe took. Probes have an address of their own, as
// the kubelet has.
func holdConnections(b *testing.B, ctx context.Context, d *daemon.Daemon) (slowest time.Duration) {
	b.Helper()
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	dial := func(reads bool) (net.Conn, error) {
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext(ctx, "tcp", strings.TrimPrefix(d.URL, "http://"))
		if err != nil || !reads {
			return conn, err
		}
		_ = conn.(*net.TCPConn).SetReadBuffer(2 << 10)
		_, err = io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
		return conn, err
	}
	probe := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	look := func() {
		for _, path := range []string{"/healthz", "/readyz"} {
			began := time.Now()
			resp, err := probe.Get(d.URL + path)
			must(b, err)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				b.Fatalf("%s answers %s", path, resp.Status)
			}
			slowest = max(slowest, time.Since(began))
		}
	}
	for i := range slowReaders + idleConnections {
		conn, err := dial(i < slowReaders)
		if conn != nil {
			defer conn.Close()
		}
		if err != nil && i >= slowReaders { // a reader might be cut off before it has asked
			b.Fatal(err)
		}
		if i%100 == 0 {
			look()
		}
	}
	for range reconnecting {
		all.Go(func() {
			for ctx.Err() == nil {
				conn, err := dial(true)
				if err != nil {
					continue
				}
				_ = conn.SetReadDeadline(time.Now().Add(time.Second))
				_, _ = conn.Read(make([]byte, 1)) // until it is cut off, or has the first byte
				_ = conn.Close()
			}
		})
	}
	for end := time.Now().Add(heldTime); time.Now().Before(end); pause(b, ctx, 100*time.Millisecond) {
		look()
	}
	return slowest
}
