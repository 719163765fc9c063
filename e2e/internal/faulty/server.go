// Package faulty serves HTTP on the loopback interface, and makes requests fail on demand: they are answered late,
// with an error, or never, or they take effect and their reply is lost. The emulators of AWS's services are such
// servers, and so are the links of chaos.
package faulty

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
)

// Server is a running server. Its methods are safe for concurrent use.
type Server struct {
	// URL is the endpoint, without a trailing slash.
	URL string

	http   *httptest.Server
	closed context.Context
	close  context.CancelFunc

	mu          sync.Mutex
	faults      []*active
	requests    map[string]int
	connections int
}

// Options say how a server listens. The zero value is plain HTTP.
type Options struct {
	// TLS has the server speak TLS and HTTP/2, see [Server.CA].
	TLS bool
	// Listener may wrap the server's listener.
	Listener func(net.Listener) net.Listener
}

// Start serves on a free port of 127.0.0.1 until Close. The handler passes each request on to [Server.Serve]; what
// it answers by itself is neither counted nor made to fail. Like httptest.NewServer, Start panics if it cannot
// listen.
func Start(handler http.Handler, o Options) *Server {
	s := New()
	s.http = httptest.NewUnstartedServer(handler)
	s.http.Config.ErrorLog = log.New(io.Discard, "", 0) // of broken connections
	s.http.Config.ConnState = s.countConnection
	if o.Listener != nil {
		s.http.Listener = o.Listener(s.http.Listener)
	}
	if o.TLS {
		s.http.EnableHTTP2 = true
		s.http.StartTLS()
	} else {
		s.http.Start()
	}
	s.URL = s.http.URL
	return s
}

// New returns a server that does not listen: somebody calls its handler. It has no URL, and is not closed.
func New() *Server {
	s := &Server{requests: map[string]int{}}
	s.closed, s.close = context.WithCancel(context.Background())
	return s
}

// Close breaks all connections, including those whose requests are unanswered, and frees the port. Unlike httptest's,
// it does not wait for requests to end, whose clients may connect again until the port is free.
func (s *Server) Close() {
	s.close()
	_ = s.http.Config.Close()
}

// Closed is closed by Close.
func (s *Server) Closed() <-chan struct{} { return s.closed.Done() }

// CA is the certificate of a server with TLS, as PEM.
func (s *Server) CA() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.http.Certificate().Raw})
}

// Requests returns how many requests of an action there have been, whatever the answer was.
func (s *Server) Requests(action string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[action]
}

// Connections returns how many connections have been opened since Start. A client that reads its bodies to the end
// stays at one, however often it polls.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connections
}

func (s *Server) countConnection(_ net.Conn, state http.ConnState) {
	if state != http.StateNew {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connections++
}

// Reset is the effect of a connection that breaks. The client gets an RST, not the end of a stream.
func Reset(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil { // HTTP/2, which resets the stream
		panic(http.ErrAbortHandler)
	}
	if encrypted, ok := conn.(*tls.Conn); ok {
		conn = encrypted.NetConn()
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
