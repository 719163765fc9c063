package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
		url, stop := serveHTTP(t, httpServer{registry: prometheus.NewRegistry(), ready: func() error { return ready }})
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
	url, stop := serveHTTP(t, httpServer{registry: registry, ready: func() error { return nil }})
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
