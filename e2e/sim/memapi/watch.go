package memapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// event is a change as watches see it.
type event struct {
	version       int64
	at            time.Time
	before, after *stored
	last          *stored // of one that was removed, with the version of its removal
}

// selection is which objects a list or a watch is about.
type selection struct {
	namespace string
	labels    labels.Selector
	fields    fields.Selector
	all       bool   // whatever their labels and fields
	node      string // of pods, the one that fields asks for; empty if it asks for none
}

func (sel selection) has(of *stored) bool {
	switch {
	case of == nil:
		return false
	case sel.namespace != "" && of.obj.GetNamespace() != sel.namespace:
		return false
	case sel.all:
		return true
	}
	if pod, ok := of.obj.(*corev1.Pod); ok && sel.node != "" && pod.Spec.NodeName != sel.node { // as of most, and the cheapest to say
		return false
	}
	return sel.labels.Matches(labels.Set(of.obj.GetLabels())) && sel.fields.Matches(fieldsOf(of.obj))
}

// ErrBroken is the error of a stream that breaks.
var ErrBroken = errors.New("connection reset by peer")

// watch is the body of the answer to a watch. One reader reads it.
type watch struct {
	server *Server
	of     *collection
	client *Client
	ctx    context.Context
	sel    selection
	lag    time.Duration // how long after a change it is seen

	until      time.Time // when the server ends it
	bookmarks  bool
	inProtobuf bool

	// Under the server's lock.
	pending []*event
	wake    chan struct{}
	end     error // nil: it goes on

	// The reader's.
	out    []byte
	seen   int64
	marked time.Time // when the last bookmark was sent
}

// bookmarkEvery is how often a watch has a bookmark, as the real one's: a minute.
const bookmarkEvery = time.Minute

func (w *watch) add(e *event) {
	if !w.sel.has(e.before) && !w.sel.has(e.after) {
		return
	}
	w.pending = append(w.pending, e)
	w.poke()
}

func (w *watch) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// stop ends a watch with an error, or io.EOF for its orderly end.
func (w *watch) stop(err error) {
	if w.end == nil {
		w.end = err
		delete(w.server.watches, w)
		if same := w.of.watches[w.sel.node]; same != nil {
			if delete(same, w); len(same) == 0 {
				delete(w.of.watches, w.sel.node)
			}
		}
	}
	w.poke()
}

func (w *watch) say(what string, object []byte) {
	w.out = appendEvent(w.out, what, object, w.inProtobuf)
}

func (w *watch) sayOf(what string, of *stored) { w.say(what, of.text(w.of.Kind, w.inProtobuf)) }

func (w *watch) write(e *event) {
	was, is := w.sel.has(e.before), w.sel.has(e.after)
	switch {
	case is && !was:
		w.sayOf("ADDED", e.after)
	case is:
		w.sayOf("MODIFIED", e.after)
	case was && e.after != nil: // no longer selected: as it is now
		w.sayOf("DELETED", e.after)
	case was:
		w.sayOf("DELETED", e.last)
	}
	w.seen = e.version
}

func (w *watch) bookmark(initial bool) {
	w.say("BOOKMARK", bookmarkOf(w.of.Kind, w.seen, initial, w.inProtobuf))
	w.marked = time.Now()
}

// Read implements io.Reader.
func (w *watch) Read(p []byte) (int, error) {
	for {
		if len(w.out) > 0 {
			n := copy(p, w.out)
			if w.out = w.out[n:]; len(w.out) == 0 {
				w.out = nil
			}
			return n, nil
		}
		wait, err := w.take()
		switch {
		case err != nil:
			return 0, err
		case len(w.out) > 0:
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-w.wake:
		case <-timer.C:
		case <-w.ctx.Done():
			timer.Stop()
			return 0, w.ctx.Err()
		}
		timer.Stop()
	}
}

// take takes in the next event that is due, or returns how long to wait.
func (w *watch) take() (time.Duration, error) {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	now := time.Now()
	if !w.client.reaches() {
		if w.end != nil {
			return 0, w.end
		}
		return time.Hour, nil // poked when that ends
	}
	cached := w.server.cacheVersion(w.of)
	held := len(w.pending) > 0 && w.pending[0].version > cached // poked when the cache has it
	if len(w.pending) > 0 && !held {
		if due := w.pending[0].at.Add(w.lag); !due.After(now) {
			w.write(w.pending[0])
			w.pending = w.pending[1:]
			return 0, nil
		}
	}
	if w.end != nil {
		return 0, w.end
	}
	if !now.Before(w.until) {
		w.stop(io.EOF)
		return 0, io.EOF
	}
	next := w.until
	if len(w.pending) > 0 && !held {
		if due := w.pending[0].at.Add(w.lag); due.Before(next) {
			next = due
		}
	} else if w.bookmarks {
		due := w.marked.Add(bookmarkEvery)
		if !due.After(now) {
			w.seen = max(w.seen, cached)
			w.bookmark(false)
			return 0, nil
		}
		if due.Before(next) {
			next = due
		}
	}
	return time.Until(next), nil
}

// Close implements io.Closer.
func (w *watch) Close() error {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	w.stop(io.EOF)
	return nil
}

// BreakWatches breaks the streams of a client, or of all if it is nil, of whose kinds pick says so.
func (s *Server) BreakWatches(of *Client, pick func(*Kind) bool) {
	for w := range s.watches {
		if (of == nil || w.client == of) && pick(w.of.Kind) {
			w.stop(ErrBroken)
		}
	}
}

// watchParameters are those of a request that matter.
type watchParameters struct {
	version   string
	initial   bool // sendInitialEvents
	bookmarks bool
	timeout   time.Duration
	lag       time.Duration

	inProtobuf bool
}

// watch begins a watch. The lock is held.
func (s *Server) watch(
	ctx context.Context, client *Client, c *collection, q *Request, sel selection, p watchParameters,
) (*watch, *Failure) {
	w := &watch{
		server: s, of: c, client: client, ctx: ctx, sel: sel, lag: p.lag, wake: make(chan struct{}, 1),
		until: time.Now().Add(p.timeout), bookmarks: p.bookmarks, inProtobuf: p.inProtobuf, marked: time.Now(),
	}
	from, err := strconv.ParseInt(p.version, 10, 64)
	if p.version != "" && err != nil {
		return nil, badRequest("resourceVersion: Invalid value: %q", p.version)
	}
	switch {
	case from > s.version:
		return nil, tooLargeVersion(from, s.version)
	case p.initial, from == 0: // of what there is
		objects, keys, version, f := s.read(c, q)
		if f != nil {
			return w.refused(f), nil
		}
		for _, key := range s.among(c, sel, keys, version) {
			if obj := objects[key]; sel.has(obj) {
				w.sayOf("ADDED", obj)
			}
		}
		w.seen = version
		for _, e := range c.history { // what the cache has yet to get
			if e.version > version && (sel.has(e.before) || sel.has(e.after)) {
				w.pending = append(w.pending, e)
			}
		}
		if p.initial && p.bookmarks {
			w.bookmark(true)
		}
	case from < c.expired:
		return w.refused(expired(fmt.Sprintf("too old resource version: %d (%d)", from, c.expired))), nil
	default:
		w.seen = from
		for _, e := range c.history {
			if e.version > from && (sel.has(e.before) || sel.has(e.after)) {
				w.pending = append(w.pending, e)
			}
		}
	}
	s.watches[w] = true
	if c.watches[sel.node] == nil {
		c.watches[sel.node] = map[*watch]bool{}
	}
	c.watches[sel.node][w] = true
	return w, nil
}

// refused ends a watch that cannot begin, with an event that says why.
func (w *watch) refused(f *Failure) *watch {
	w.say("ERROR", f.body(w.inProtobuf))
	w.end = io.EOF
	return w
}

func parseSelection(namespace, labelText, fieldText string) (selection, error) {
	sel := selection{namespace: namespace, all: labelText == "" && fieldText == ""}
	var err error
	if sel.labels, err = labels.Parse(labelText); err != nil {
		return sel, err
	}
	if sel.fields, err = fields.ParseSelector(strings.TrimSpace(fieldText)); err == nil {
		sel.node, _ = sel.fields.RequiresExactMatch("spec.nodeName")
	}
	return sel, err
}
