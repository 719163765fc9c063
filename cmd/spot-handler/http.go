package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// httpServer serves metrics and health. ready gives the reason why the process is
// not ready, or nil.
type httpServer struct {
	listener net.Listener
	metrics  prometheus.Gatherer
	ready    func() error
}

// Anybody in the cluster may connect, and nobody may stall the process or fill its memory by it.
const (
	// maxConnections is how many there are at a time: a few Prometheus servers, the kubelet's
	// probes, and somebody who looks.
	maxConnections = 32

	// maxHeaderBytes is several times what Prometheus and the kubelet send.
	maxHeaderBytes = 8 << 10

	// requestTimeout bounds how long somebody takes to ask, and scrapeTimeout how long a scrape waits
	// for its turn. answerTimeout is for that and for reading the answer: as long as Prometheus waits
	// by default.
	requestTimeout = 5 * time.Second
	scrapeTimeout  = 5 * time.Second
	answerTimeout  = 10 * time.Second
)

// shutdownHTTP bounds how long a scrape in progress holds up the end of the process:
// a scrape takes milliseconds.
const shutdownHTTP = 2 * time.Second

func (s httpServer) Run(ctx context.Context) error {
	mux := http.NewServeMux()
	// TimeoutHandler keeps the answer until it is complete, so a slow reader holds up no other scrape.
	scrape := inTurn(promhttp.HandlerFor(s.metrics, promhttp.HandlerOpts{}))
	mux.Handle("GET /metrics", http.TimeoutHandler(scrape, scrapeTimeout, "metrics took too long"))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	server := &http.Server{
		Handler: mux, MaxHeaderBytes: maxHeaderBytes, ConnState: new(connections).changed,
		ReadTimeout: requestTimeout, WriteTimeout: answerTimeout, IdleTimeout: 2 * time.Minute,
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownHTTP)
		defer cancel()
		_ = server.Shutdown(bounded) // the process ends either way
	})
	if err := server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		stop()
		return fmt.Errorf("serve http: %w", err)
	}
	<-ended // Serve returns as soon as Shutdown begins
	return nil
}

// inTurn serves one request after the other.
func inTurn(next http.Handler) http.Handler {
	var turn sync.Mutex
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		turn.Lock()
		defer turn.Unlock()
		if r.Context().Err() == nil { // there is still somebody who waits for the answer
			next.ServeHTTP(w, r)
		}
	})
}

// connections are the open ones, oldest first. They are never more than maxConnections: the client
// that has the most then loses its oldest, so a probe finds a place whatever others hold.
type connections struct {
	mu   sync.Mutex
	open []net.Conn
}

// changed is called by http.Server before it reads from a new connection.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if len(c.open) == maxConnections {
			last := c.surplus()
			if tcp, ok := c.open[last].(interface{ SetLinger(int) error }); ok {
				_ = tcp.SetLinger(0) // what nobody has read yet is dropped, or the kernel would keep it
			}
			_ = c.open[last].Close()
			c.open = slices.Delete(c.open, last, last+1)
		}
		c.open = append(c.open, conn)
	case http.StateClosed:
		c.open = slices.DeleteFunc(c.open, func(o net.Conn) bool { return o == conn })
	}
}

// surplus is the oldest connection of the address that has the most.
func (c *connections) surplus() int {
	of := map[string]int{}
	for _, conn := range c.open {
		of[host(conn)]++
	}
	found := 0
	for i, conn := range c.open {
		if of[host(conn)] > of[host(c.open[found])] {
			found = i
		}
	}
	return found
}

func host(conn net.Conn) string {
	host, _, _ := net.SplitHostPort(conn.RemoteAddr().String()) // one that cannot be read counts with others such
	return host
}
