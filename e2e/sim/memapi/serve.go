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
	"k8s.io/apimachinery/pkg/runtime"
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

	inProtobuf    bool // the body is
	wantsProtobuf bool // for an answer

	needs int64 // the version that the watch cache must have to answer it

	Code  int    // of the answer
	Error string // what the answer says is wrong
	Before,
	After Object // of what it has changed
	Lost   bool // the client has not had the answer
	Unread bool // the server has failed, or was too busy, before it looked at the request
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

// contentType is the form of the answer.
func (r *Request) contentType() string {
	switch {
	case !r.wantsProtobuf:
		return runtime.ContentTypeJSON
	case r.Verb == "watch":
		return runtime.ContentTypeProtobuf + ";stream=watch"
	}
	return runtime.ContentTypeProtobuf
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
			inProtobuf: q.wantsProtobuf,
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
		if at, f = s.update(c, q); f != nil {
			return nil, f
		}
	case "delete":
		var options metav1.DeleteOptions
		if len(q.Body) > 0 {
			if err := q.decode(&options); err != nil {
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
	return io.NopCloser(bytes.NewReader(at.text(q.Kind, q.wantsProtobuf))), nil
}

// update replaces an object by the request's body.
func (s *Server) update(c *collection, q *Request) (*stored, *Failure) {
	if !q.inProtobuf {
		made, err := decodeTree(q.Body)
		if err != nil {
			return nil, badRequest("%v", err)
		}
		return s.change(c, q.Key(), q.Subresource, made, q.By)
	}
	made := c.empty()
	if err := q.decode(made); err != nil {
		return nil, badRequest("%v", err)
	}
	if c.status {
		changed, err := decodeTree((&stored{obj: made}).json())
		if err != nil {
			return nil, badRequest("%v", err)
		}
		return s.change(c, q.Key(), q.Subresource, changed, q.By)
	}
	// Leases are renewed every few seconds: as trees, they would take a fifth of a round's time.
	at := c.objects[q.Key()]
	if f := at.isMeant(c.Kind, made.GetResourceVersion(), made.GetUID()); f != nil {
		return nil, f
	}
	made.SetResourceVersion(at.obj.GetResourceVersion())
	made.SetUID(at.obj.GetUID())
	made.SetCreationTimestamp(at.obj.GetCreationTimestamp())
	if bytes.Equal(at.protobuf(), mustMarshal(made.(message))) {
		return at, nil
	}
	s.Put(c.Kind, made, q.By)
	return c.objects[q.Key()], nil
}

func allowed(q *Request) (io.ReadCloser, *Failure) {
	review := &authorizationv1.SelfSubjectAccessReview{}
	if err := q.decode(review); err != nil {
		return nil, badRequest("%v", err)
	}
	review.TypeMeta = metav1.TypeMeta{Kind: "SelfSubjectAccessReview", APIVersion: "authorization.k8s.io/v1"}
	review.Status.Allowed = true
	q.Code = http.StatusCreated
	if q.wantsProtobuf {
		return io.NopCloser(bytes.NewReader(enveloped(review.GroupVersionKind(), mustMarshal(review)))), nil
	}
	text, _ := json.Marshal(review) // texts
	return io.NopCloser(bytes.NewReader(text)), nil
}

func (s *Server) create(c *collection, q *Request, fate Fate) (io.ReadCloser, *Failure) {
	q.Code = http.StatusCreated
	if q.Kind == Pods && q.Subresource == "eviction" {
		eviction := &policyv1.Eviction{}
		if err := q.decode(eviction); err != nil {
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
		done := &metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess, Code: http.StatusCreated,
		}
		return io.NopCloser(bytes.NewReader(statusText(done, q.wantsProtobuf))), nil
	}
	obj := c.empty()
	if err := q.decode(obj); err != nil {
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
	return io.NopCloser(bytes.NewReader(c.objects[Key(obj)].text(q.Kind, q.wantsProtobuf))), nil
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
		for _, key := range s.among(c, sel, keys, version) {
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
	return listOf(c.Kind, now, at.version, token, q.wantsProtobuf), nil
}
