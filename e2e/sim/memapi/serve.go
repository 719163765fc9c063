package memapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Request is one of a client, as far as it was understood, and what became of it.
type Request struct {
	By          string
	Verb        string // get, list, watch, create, update, patch, delete
	Kind        *Kind  // nil: none that the server has
	Namespace   string
	Name        string
	Subresource string
	Body        []byte
	Query       url.Values
	PatchType   types.PatchType

	Nth int // how many of this client's requests were the same before

	needs int64 // the version that the watch cache must have to answer it

	Code  int    // of the answer
	Error string // what the answer says is wrong
	Before,
	After Object // of what it has changed
	Lost bool // the client has not had the answer
}

// What the request is, in a line.
func (r *Request) What() string {
	kind := "?"
	if r.Kind != nil {
		kind = r.Kind.Plural
	}
	if r.Subresource != "" {
		kind += "/" + r.Subresource
	}
	return strings.TrimSuffix(fmt.Sprintf("%s %s %s", r.Verb, kind, keyOf(r.Namespace, r.Name)), " ")
}

// Key is the key of the object that the request names.
func (r *Request) Key() string { return keyOf(r.Namespace, r.Name) }

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
	q.Lost = fate.Lost != nil
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
	header := http.Header{"Content-Type": {"application/json"}}
	code := q.Code
	if answer != nil {
		code, body = int(answer.Code), io.NopCloser(bytes.NewReader(answer.body()))
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

// report tells whoever wants to know what became of a request. The lock is held.
func (s *Server) report(q *Request, f *Failure) {
	if f != nil {
		q.Code, q.Error = int(f.Code), f.Message
		for _, cause := range causes(f) {
			q.Error += " " + cause.Message
		}
	}
	if s.Requested != nil {
		s.Requested(*q)
	}
}

func causes(f *Failure) []metav1.StatusCause {
	if f.Details == nil {
		return nil
	}
	return f.Details.Causes
}

// serve answers a request.
func (s *Server) serve(ctx context.Context, client *Client, q *Request, fate Fate) (body io.ReadCloser, f *Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.report(q, f) }()
	q.Code = http.StatusOK
	if q.Kind == nil {
		if strings.HasSuffix(q.Name, "/selfsubjectaccessreviews") {
			return allowed(q)
		}
		return nil, noSuchAPI()
	}
	c := s.of(q.Kind)
	switch q.Verb {
	case "watch":
		sel, err := parseSelection(q.Namespace, q.Query.Get("labelSelector"), q.Query.Get("fieldSelector"))
		if err != nil {
			return nil, badRequest("%v", err)
		}
		timeout, _ := strconv.Atoi(q.Query.Get("timeoutSeconds"))
		if timeout == 0 {
			timeout = 1800
		}
		w, f := s.watch(ctx, client, c, q, sel, watchParameters{
			version: q.Query.Get("resourceVersion"), initial: q.Query.Get("sendInitialEvents") == "true",
			bookmarks: q.Query.Get("allowWatchBookmarks") == "true", timeout: time.Duration(timeout) * time.Second, lag: fate.Lag,
		})
		if f != nil {
			return nil, f
		}
		return w, nil
	case "list":
		text, f := s.list(c, q)
		return io.NopCloser(bytes.NewReader(text)), f
	case "create":
		return s.create(c, q, fate)
	}
	objects := c.objects
	if q.Verb == "get" {
		if objects, _, _, f = s.read(c, q); f != nil {
			return nil, f
		}
	}
	at := objects[q.Key()]
	if at == nil {
		return nil, notFound(q.Kind, q.Name)
	}
	q.Before = at.obj
	switch q.Verb {
	case "patch":
		made, f := apply(q.Kind, q.PatchType, at.json(), q.Body)
		if f == nil {
			at, f = s.change(c, q.Key(), q.Subresource, made, q.By)
		}
		if f != nil {
			return nil, f
		}
	case "update":
		made, err := decodeTree(q.Body)
		if err != nil {
			return nil, badRequest("%v", err)
		}
		if at, f = s.change(c, q.Key(), q.Subresource, made, q.By); f != nil {
			return nil, f
		}
	case "delete":
		var options metav1.DeleteOptions
		if len(q.Body) > 0 {
			if err := json.Unmarshal(q.Body, &options); err != nil {
				return nil, badRequest("%v", err)
			}
		}
		if f := s.meets(q.Kind, at.obj, options.Preconditions); f != nil {
			return nil, f
		}
		s.Delete(q.Kind, q.Key(), options.GracePeriodSeconds, q.By)
	}
	if at == nil {
		return nil, notFound(q.Kind, q.Name)
	}
	q.After = at.obj
	return io.NopCloser(bytes.NewReader(at.json())), nil
}

func allowed(q *Request) (io.ReadCloser, *Failure) {
	review := &authorizationv1.SelfSubjectAccessReview{}
	if err := json.Unmarshal(q.Body, review); err != nil {
		return nil, badRequest("%v", err)
	}
	review.TypeMeta = metav1.TypeMeta{Kind: "SelfSubjectAccessReview", APIVersion: "authorization.k8s.io/v1"}
	review.Status.Allowed = true
	text, _ := json.Marshal(review) // texts
	q.Code = http.StatusCreated
	return io.NopCloser(bytes.NewReader(text)), nil
}

func (s *Server) create(c *collection, q *Request, fate Fate) (io.ReadCloser, *Failure) {
	q.Code = http.StatusCreated
	if q.Kind == Pods && q.Subresource == "eviction" {
		eviction := &policyv1.Eviction{}
		if err := json.Unmarshal(q.Body, eviction); err != nil {
			return nil, badRequest("%v", err)
		}
		if eviction.DeleteOptions == nil {
			eviction.DeleteOptions = &metav1.DeleteOptions{}
		}
		if pod := Get[*corev1.Pod](s, Pods, q.Key()); pod != nil {
			q.Before = pod
		}
		if fate.Cut && s.GrantOnly(q.Key(), uidOf(eviction.DeleteOptions), q.By) {
			return nil, Trouble(http.StatusInternalServerError)
		}
		if f := s.Evict(q.Key(), eviction.DeleteOptions, q.By); f != nil {
			return nil, f
		}
		return io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}`)), nil
	}
	obj := c.empty()
	if err := json.Unmarshal(q.Body, obj); err != nil {
		return nil, badRequest("%v", err)
	}
	if q.Namespace != "" {
		obj.SetNamespace(q.Namespace)
	}
	if obj.GetName() == "" && obj.GetGenerateName() != "" {
		obj.SetName(obj.GetGenerateName() + strconv.FormatInt(s.version, 36))
	}
	q.Name = obj.GetName()
	if q.Kind == Events { // their names are times: in virtual time, two have the same
		for n := 0; c.objects[Key(obj)] != nil; n++ {
			obj.SetName(fmt.Sprintf("%s.%d", q.Name, n))
		}
	}
	if c.objects[Key(obj)] != nil {
		return nil, failed(apierrors.NewAlreadyExists(q.Kind.resource(), obj.GetName()))
	}
	obj.SetUID("")
	obj.SetResourceVersion("")
	s.Put(q.Kind, obj, q.By)
	q.After = obj
	return io.NopCloser(bytes.NewReader(c.objects[Key(obj)].json())), nil
}

func uidOf(o *metav1.DeleteOptions) *types.UID {
	if o.Preconditions == nil {
		return nil
	}
	return o.Preconditions.UID
}

// page is the rest of a list.
type page struct {
	of      *Kind
	version int64
	rest    []*stored
}

func (s *Server) list(c *collection, q *Request) ([]byte, *Failure) {
	sel, err := parseSelection(q.Namespace, q.Query.Get("labelSelector"), q.Query.Get("fieldSelector"))
	if err != nil {
		return nil, badRequest("%v", err)
	}
	if asked, _ := strconv.ParseInt(q.Query.Get("resourceVersion"), 10, 64); asked > s.version {
		return nil, tooLargeVersion(asked, s.version)
	}
	objects, keys, version, f := s.read(c, q)
	if f != nil {
		return nil, f
	}
	limit, _ := strconv.Atoi(q.Query.Get("limit"))
	at := &page{of: c.Kind, version: version}
	if token := q.Query.Get("continue"); token != "" {
		if at = s.tokens[token]; at == nil {
			return nil, expired("The provided continue parameter is too old to display a consistent list result.")
		}
	} else {
		for _, key := range keys {
			if obj := objects[key]; sel.has(obj) {
				at.rest = append(at.rest, obj)
			}
		}
		if q.Query.Get("resourceVersion") == "0" { // answered from the watch cache, in one piece
			limit = 0
		}
	}
	now, token := at.rest, ""
	if limit > 0 && len(now) > limit {
		now = now[:limit]
		token = fmt.Sprintf("%s-%d-%d", c.Plural, at.version, len(at.rest))
		s.tokens[token] = &page{of: at.of, version: at.version, rest: at.rest[limit:]}
	}
	out := fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":%q,"continue":%q},"items":[`,
		c.Kind.Kind+"List", c.GroupVersion().String(), strconv.FormatInt(at.version, 10), token)
	for i, obj := range now {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, obj.json()...)
	}
	return append(out, ']', '}'), nil
}
