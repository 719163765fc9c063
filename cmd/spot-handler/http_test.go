package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

func serveHTTP(t *testing.T, s httpServer) (url string, stop func() error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.listener = listener
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return "http://" + listener.Addr().String(), func() error { cancel(); return <-ended }
}

// A source that fails makes the process not ready, and never not alive: a restart would
// not help, and would drop what is kept in memory.
func TestHealth(t *testing.T) {
	for name, ready := range map[string]error{"ready": nil, "not ready": errors.New("SQS is away")} {
		url, stop := serveHTTP(t, httpServer{metrics: prometheus.NewRegistry(), ready: func() error { return ready }})
		want := map[string]int{"/healthz": http.StatusOK, "/readyz": http.StatusOK, "/metrics": http.StatusOK}
		if ready != nil {
			want["/readyz"] = http.StatusServiceUnavailable
		}
		for path, status := range want {
			resp, err := http.Get(url + path)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != status {
				t.Errorf("%s: %s answers %d, want %d", name, path, resp.StatusCode, status)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

// slowCollector has metrics when it is let go.
type slowCollector struct{ asked, answer chan struct{} }

var lastCount = prometheus.NewDesc("last_count", "The last one.", nil, nil)

func (s slowCollector) Describe(ch chan<- *prometheus.Desc) { ch <- lastCount }
func (s slowCollector) Collect(ch chan<- prometheus.Metric) {
	s.asked <- struct{}{}
	<-s.answer
	ch <- prometheus.MustNewConstMetric(lastCount, prometheus.CounterValue, 1)
}

// The last scrape is answered: it has the counts of the drain that has just ended.
func TestScrapeInProgressIsAnswered(t *testing.T) {
	slow := slowCollector{asked: make(chan struct{}), answer: make(chan struct{})}
	registry := prometheus.NewRegistry()
	registry.MustRegister(slow)
	url, stop := serveHTTP(t, httpServer{metrics: registry, ready: func() error { return nil }})
	body := make(chan string, 1)
	go func() {
		resp, err := http.Get(url + "/metrics")
		if err != nil {
			body <- err.Error()
			return
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			text = []byte(err.Error())
		}
		body <- string(text)
	}()
	<-slow.asked
	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	select {
	case err := <-ended:
		t.Fatalf("ended during a scrape: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	close(slow.answer)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if text := <-body; text != "# HELP last_count The last one.\n# TYPE last_count counter\nlast_count 1\n" {
		t.Errorf("scraped %q", text)
	}
}

// countingListener knows how many of its connections are open.
type countingListener struct {
	net.Listener
	open, most atomic.Int64
}

type countedConn struct {
	*net.TCPConn
	closed func()
}

func (c *countedConn) Close() error { c.closed(); return c.TCPConn.Close() }

func (l *countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if open := l.open.Add(1); open > l.most.Load() {
		l.most.Store(open) // one goroutine accepts
	}
	return &countedConn{conn.(*net.TCPConn), sync.OnceFunc(func() { l.open.Add(-1) })}, nil
}

// Whoever holds thousands of connections, and reads slowly or never asks, takes no memory for them
// and keeps no probe and no scrape from its answer.
func TestHeldConnectionsLeaveRoomForProbes(t *testing.T) {
	const readers, idle = 400, 600 // a benchmark has thousands
	registry := prometheus.NewRegistry()
	large := promauto.With(registry).NewCounterVec(prometheus.CounterOpts{Name: "large", Help: strings.Repeat("x", 100)}, []string{"k"})
	for i := range 200 {
		large.WithLabelValues(fmt.Sprint(i, strings.Repeat("y", 100))).Inc()
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	counting := &countingListener{Listener: listener}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- httpServer{listener: counting, metrics: registry, ready: func() error { return nil }}.Run(ctx)
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	url := "http://" + listener.Addr().String()
	get := func(path string) {
		t.Helper()
		resp, err := fresh.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v", path, resp.Status, err)
		}
	}
	before := runtime.NumGoroutine()
	var held []net.Conn
	defer func() {
		for _, conn := range held {
			_ = conn.Close()
		}
	}()
	for i := range readers + idle {
		// Another address than the probe's.
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
		if i < readers {
			_ = conn.(*net.TCPConn).SetReadBuffer(2 << 10)
			if _, err := io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
		}
		if i%50 == 0 {
			get("/healthz")
			get("/readyz")
			get("/metrics")
		}
	}
	get("/healthz")
	if most := counting.most.Load(); most > maxConnections+1 { // the one that takes another's place
		t.Errorf("%d connections at a time, want at most %d", most, maxConnections)
	}
	if after := runtime.NumGoroutine(); after-before > 5*maxConnections {
		t.Errorf("%d goroutines, %d before", after, before)
	}
}

// Closed connections make room for new ones: no open one is closed instead.
func TestClosedConnectionsMakeRoom(t *testing.T) {
	t.Parallel()
	var c connections
	first, _ := net.Pipe()
	c.changed(first, http.StateNew)
	for range 2 * maxConnections {
		conn, _ := net.Pipe()
		c.changed(conn, http.StateNew)
		c.changed(conn, http.StateClosed)
	}
	if err := first.SetDeadline(time.Now()); err != nil || len(c.open) != 1 || c.open[0] != first {
		t.Errorf("%d are open, and the first one is closed: %v", len(c.open), err)
	}
}

// A header without an end, and a request that comes in drops, are given up.
func TestLongAndSlowRequestsAreRefused(t *testing.T) {
	t.Parallel()
	url, stop := serveHTTP(t, httpServer{metrics: prometheus.NewRegistry(), ready: func() error { return nil }})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Long", strings.Repeat("x", 2*maxHeaderBytes))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("answered %s", resp.Status)
	}
	slow, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if _, err := io.WriteString(slow, "POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = slow.SetReadDeadline(time.Now().Add(2 * requestTimeout))
	if _, err := io.ReadAll(slow); err != nil {
		t.Errorf("still open after %s: %v", 2*requestTimeout, err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}
