// Package link is the way from one replica to a server, which can be cut, be slow, lose
// answers, or have the server refuse. It is an HTTP proxy on the loopback interface, with
// TLS and HTTP/2 if the server has them: a fault meets requests, not bytes, except for a
// cut, in which nothing passes on connections that stay open.
package link

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"

	"spot-handler/e2e/internal/faulty"
)

// Fault is what happens to requests that begin while it is set, see [Link.Fail].
type Fault = faulty.Fault

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
	*faulty.Server

	gate *gate
	next *http.Transport
}

// New opens a link, which must be closed.
func New(o Options) (*Link, error) {
	to, err := url.Parse(o.To)
	if err != nil {
		return nil, fmt.Errorf("open a link: %w", err)
	}
	l := &Link{next: &http.Transport{
		TLSClientConfig:     o.TLS,
		ForceAttemptHTTP2:   o.TLS != nil,
		DisableCompression:  true,
		MaxIdleConnsPerHost: 100,
	}}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			if o.Stamp != nil {
				o.Stamp(r.Out)
			}
		},
		Transport:     l.next,
		FlushInterval: -1, // watches
		// A server that is unreachable is a connection that breaks.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:     log.New(io.Discard, "", 0),
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { l.Serve(w, r, "", nil, proxy.ServeHTTP) })
	l.Server = faulty.Start(handler, faulty.Options{
		TLS: o.TLS != nil,
		Listener: func(listener net.Listener) net.Listener {
			l.gate = newGate(listener)
			return l.gate
		},
	})
	return l, nil
}

// Close breaks all connections.
func (l *Link) Close() {
	l.gate.stayOpen()
	l.Server.Close()
	l.next.CloseIdleConnections()
}

// Cut lets nothing pass until the returned function is called, which breaks the connections
// that were open: what was on its way in between is lost.
func (l *Link) Cut() (restore func()) { return l.gate.close() }
