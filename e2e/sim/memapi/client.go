package memapi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// Fate is what happens to a request on its way.
type Fate struct {
	Before  time.Duration // until it is served
	After   time.Duration // until the answer arrives
	Refused *Failure      // the answer, in place of the server's
	Dropped error         // it never arrives
	Lost    error         // it is served, and the answer never arrives
	Cut     bool          // an eviction ends after its first step
	Lag     time.Duration // of a watch: how long after a change it is seen

	RetryAfter int // seconds, of an answer 429; 0: one
}

// Client is one process's way to the server. Its fields are set before its first request.
type Client struct {
	Name string
	// Fate says what happens to a request; nil: nothing. It is called without the lock.
	Fate func(*Request) Fate

	server *Server

	// Under the server's lock.
	down   error         // every request fails with it
	silent bool          // nothing passes, and nothing is said
	change chan struct{} // closed when that changes
	asked  map[string]int
}

// Client returns a way to the server for a client of that name.
func (s *Server) Client(name string) *Client {
	return &Client{Name: name, server: s, change: make(chan struct{}), asked: map[string]int{}}
}

// Down has every request fail from now on, and breaks the streams; nil ends that. The lock is held.
func (c *Client) Down(err error) {
	c.down = err
	c.changed()
	if err != nil {
		c.server.BreakWatches(c, func(*Kind) bool { return true })
	}
}

// Silent has nothing pass in either direction, or ends that. The lock is held.
func (c *Client) Silent(silent bool) {
	c.silent = silent
	c.changed()
	for w := range c.server.watches {
		if w.client == c {
			w.poke()
		}
	}
}

func (c *Client) changed() {
	close(c.change)
	c.change = make(chan struct{})
}

// reaches reports whether anything passes. The lock is held.
func (c *Client) reaches() bool { return !c.silent }

// pass waits until the request passes, or returns its error.
func (c *Client) pass(ctx context.Context) error {
	for {
		c.server.mu.Lock()
		down, silent, change := c.down, c.silent, c.change
		c.server.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case down != nil:
			return down
		case !silent:
			return nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// RoundTrip implements http.RoundTripper.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	q, err := c.understand(r)
	if err != nil {
		return nil, err
	}
	ctx := r.Context()
	var fate Fate
	if c.Fate != nil {
		fate = c.Fate(q)
	}
	if err := sleep(ctx, fate.Before); err != nil {
		return nil, err
	}
	if err := c.pass(ctx); err != nil {
		return nil, err
	}
	if fate.Dropped != nil {
		return nil, fate.Dropped
	}
	q.Lost, q.Unread = fate.Lost != nil, fate.Refused != nil
	answer := fate.Refused
	var body io.ReadCloser
	if answer == nil && c.server.Admit != nil {
		if err := c.server.Admit(ctx, q); err != nil {
			answer, _ = err.(*Failure)
		}
		if ctx.Err() != nil { // the real one ends what the client has given up
			return nil, ctx.Err()
		}
	}
	if answer == nil {
		c.server.awaitCache(ctx, q)
		body, answer = c.server.serve(ctx, c, q, fate)
	} else {
		c.server.mu.Lock()
		c.server.report(q, answer)
		c.server.mu.Unlock()
	}
	if fate.Lost != nil {
		return nil, fate.Lost
	}
	if err := sleep(ctx, fate.After); err != nil {
		return nil, err
	}
	if err := c.pass(ctx); err != nil {
		return nil, err
	}
	header := http.Header{"Content-Type": {q.contentType()}}
	code := q.Code
	if answer != nil {
		code, body = int(answer.Code), io.NopCloser(bytes.NewReader(answer.body(q.wantsProtobuf)))
		if answer.plain {
			header.Set("Content-Type", "text/plain; charset=utf-8")
		}
		if code == http.StatusTooManyRequests && answer.plain {
			header.Set("Retry-After", strconv.Itoa(max(1, fate.RetryAfter)))
		}
	}
	return &http.Response{
		Status: fmt.Sprintf("%d %s", code, http.StatusText(code)), StatusCode: code, Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: header, Body: body, ContentLength: -1, Request: r,
	}, nil
}

func sleep(ctx context.Context, for_ time.Duration) error {
	if for_ <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(for_)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// understand reads what the request asks for.
func (c *Client) understand(r *http.Request) (*Request, error) {
	q := &Request{By: c.Name, Query: r.URL.Query()}
	if r.Body != nil {
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		q.Body = body
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	group := ""
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		group, parts = parts[1], parts[3:]
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		q.Namespace, parts = parts[1], parts[2:]
	}
	if of := c.server.byPath[group+"/"+parts[0]]; of != nil {
		q.Kind = of.Kind
	}
	if len(parts) > 1 {
		q.Name = parts[1]
	}
	if len(parts) > 2 {
		q.Subresource = parts[2]
	}
	switch r.Method {
	case http.MethodGet:
		switch {
		case q.Query.Get("watch") == "true" || q.Query.Get("watch") == "1":
			q.Verb = "watch"
		case q.Name == "":
			q.Verb = "list"
		default:
			q.Verb = "get"
		}
	case http.MethodPost:
		q.Verb = "create"
	case http.MethodPut:
		q.Verb = "update"
	case http.MethodPatch:
		q.Verb, q.PatchType = "patch", types.PatchType(r.Header.Get("Content-Type"))
	case http.MethodDelete:
		q.Verb = "delete"
	}
	q.inProtobuf = r.Header.Get("Content-Type") == runtime.ContentTypeProtobuf
	q.wantsProtobuf = prefersProtobuf(r.Header.Get("Accept")) && (q.Kind == nil || q.Kind.builtIn())
	if q.Kind == nil {
		q.Name = strings.Join(append([]string{group}, parts...), "/")
	}
	c.server.mu.Lock()
	what := q.What() + " " + q.Query.Get("fieldSelector") + " " + q.Query.Get("labelSelector")
	q.Nth = c.asked[what]
	c.asked[what]++
	c.server.mu.Unlock()
	return q, nil
}
