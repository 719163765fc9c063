// Package link is the way from one replica to a server, which can be cut, be slow, lose
// answers, or have the server refuse. It is an HTTP proxy on the loopback interface, with
// TLS and HTTP/2 if the server has them: a fault meets requests, not bytes, except for a
// cut, in which nothing passes on connections that stay open.
package link

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"
)

// Fault is what happens to requests that begin while it is set.
type Fault struct {
	Share float64 // of the requests, from 0 to 1

	// One of these: how long a request waits before it goes on; that it takes effect and its
	// answer is lost; or what is answered in the server's stead.
	Delay  time.Duration
	Lose   bool
	Answer func(w http.ResponseWriter, r *http.Request)
}

// Options describe a link.
type Options struct {
	To string // URL of the server

	// TLS is for the way to the server; nil: it is plain HTTP, and so is the link.
	TLS *tls.Config

	// Stamp may add headers to a request when it arrives here.
	Stamp func(r *http.Request)
}

// Link is one link. Its methods are safe for concurrent use.
type Link struct {
	URL string
	CA  []byte // PEM, of the link's own certificate; nil without TLS

	gate   *gate
	server *http.Server
	next   *http.Transport

	mu     sync.Mutex
	faults map[int]Fault
	number int
}

// New opens a link, which must be closed.
func New(o Options) (*Link, error) {
	to, err := url.Parse(o.To)
	if err != nil {
		return nil, fmt.Errorf("open a link: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open a link: %w", err)
	}
	l := &Link{
		gate:   newGate(listener),
		next:   &http.Transport{TLSClientConfig: o.TLS, ForceAttemptHTTP2: o.TLS != nil, DisableCompression: true, MaxIdleConnsPerHost: 100},
		faults: map[int]Fault{},
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			if o.Stamp != nil {
				o.Stamp(r.Out)
			}
		},
		Transport:     l.next,
		FlushInterval: -1, // watches
		// A server that is away is a connection that breaks.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:     quiet,
	}
	l.server = &http.Server{Handler: l.through(proxy), ErrorLog: quiet}
	l.URL = "http://" + listener.Addr().String()
	serve := func() error { return l.server.Serve(l.gate) }
	if o.TLS != nil {
		l.URL = "https://" + listener.Addr().String()
		certificate, pem, err := selfSigned()
		if err != nil {
			listener.Close()
			return nil, err
		}
		l.CA, l.server.TLSConfig = pem, &tls.Config{Certificates: []tls.Certificate{certificate}}
		serve = func() error { return l.server.ServeTLS(l.gate, "", "") }
	}
	go func() { _ = serve() }() // always ErrServerClosed, by Close
	return l, nil
}

var quiet = log.New(io.Discard, "", 0)

// Close breaks all connections.
func (l *Link) Close() {
	l.gate.open()
	_ = l.server.Close()
	l.next.CloseIdleConnections()
}

// Break sets a fault, until the returned function is called. Of several, one after the other
// meets a request.
func (l *Link) Break(f Fault) (mend func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.number++
	number := l.number
	l.faults[number] = f
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.faults, number)
	}
}

// Cut lets nothing pass until the returned function is called, which breaks the connections
// that were open: what was on its way in between is lost.
func (l *Link) Cut() (mend func()) { return l.gate.close() }

func (l *Link) through(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, f := range l.drawn() {
			switch {
			case f.Answer != nil:
				f.Answer(w, r)
				return
			case f.Lose && r.Method != http.MethodGet:
				next.ServeHTTP(&deaf{header: http.Header{}}, r.WithContext(context.WithoutCancel(r.Context())))
				panic(http.ErrAbortHandler)
			case f.Delay > 0:
				select {
				case <-r.Context().Done():
					panic(http.ErrAbortHandler)
				case <-time.After(f.Delay):
				}
			}
		}
		next.ServeHTTP(w, r)
	})
}

// drawn are the faults that meet a request.
func (l *Link) drawn() []Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	var met []Fault
	for _, f := range l.faults {
		if rand.Float64() < f.Share {
			met = append(met, f)
		}
	}
	return met
}

// deaf takes an answer that nobody hears.
type deaf struct{ header http.Header }

func (d *deaf) Header() http.Header         { return d.header }
func (d *deaf) WriteHeader(int)             {}
func (d *deaf) Write(p []byte) (int, error) { return len(p), nil }
