// Package narrow drops what nobody reads from the API server's answers while they arrive, and
// bounds what is left. The decoders of client-go and of everybody else see only the rest.
//
// A tenant decides how large the objects are that we read. client-go reads an answer whole before
// it decodes it, and the Go values of a JSON text can be thirty times as long as the text: ten
// ReplicaSets of 1.3 MB, unused, made a process of 33 MiB one of 590. Here an object is never in
// memory as a whole: of 1.3 MB of environment variables nothing is kept, of a list as much as is
// used of its objects, and of one field of an object a few KiB at most.
//
// So lists need no pages for the sake of memory. A list with resourceVersion=0 is never paged by
// the API server; it answers it from its watch cache and writes one object after the other, which
// costs it time but little memory, and no read of etcd. Pages, which it reads from etcd or from a
// copy of the cache, cost it more. What bounds its time, and ours, is [Limit].
//
// It reads JSON only: clients have to ask for that. All of it is safe for concurrent use.
package narrow

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"
)

// CutKey is the member that is added to an object of which more was dropped than what nobody
// reads, as a field was longer than its bound.
const CutKey = "spotHandlerCut"

// ErrTooLong is the error of an answer that is longer than its Limit.
var ErrTooLong = errors.New("the API server's answer is longer than what is read of it")

type limitKey struct{}

type limit struct{ read, kept int64 }

// Limit bounds the answers to requests with the context, in bytes: as they arrive, and what is kept
// of them. Reading a longer one fails with ErrTooLong, and the API server writes no more of it.
func Limit(ctx context.Context, read, kept int64) context.Context {
	return context.WithValue(ctx, limitKey{}, limit{read, kept})
}

// Transport narrows the answers of next.
func Transport(next http.RoundTripper) http.RoundTripper {
	bound(next)
	return transport{next}
}

// streamBuffer is how much of an answer can arrive before somebody reads it. By default it is 4 MiB
// for each of hundreds of watches.
const streamBuffer = 128 << 10

// silence is how long a connection to the API server may be silent before it is asked whether it
// lives, and pingTimeout how long the answer may take. Until then requests wait on one that has died
// without a word, as when the host of an API server is lost: by default for 45 s of the 120.
const (
	silence     = 10 * time.Second
	pingTimeout = 5 * time.Second
)

func bound(next http.RoundTripper) {
	switch t := next.(type) {
	case *http.Transport:
		if t.HTTP2 == nil {
			t.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: streamBuffer, SendPingTimeout: silence, PingTimeout: pingTimeout}
		}
	case interface{ WrappedRoundTripper() http.RoundTripper }:
		bound(t.WrappedRoundTripper())
	}
}

type transport struct{ next http.RoundTripper }

// WrappedRoundTripper is what client-go asks, by this name, to reach the connections.
func (t transport) WrappedRoundTripper() http.RoundTripper { return t.next }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := t.next.RoundTrip(r)
	if err != nil || answer.StatusCode >= http.StatusMultipleChoices || !strings.HasPrefix(answer.Header.Get("Content-Type"), "application/json") {
		return answer, err
	}
	most, limited := r.Context().Value(limitKey{}).(limit)
	of, known := kinds[resourceOf(r.URL.Path)]
	if !known {
		of = kind{field: passes, object: passes}
	}
	if known || limited {
		body := newReader(answer.Body, of)
		if limited {
			body.left = most
		}
		answer.Body, answer.ContentLength = body, -1
		answer.Header.Del("Content-Length")
	}
	return answer, nil
}

// passes is the bound of what is not narrowed.
const passes = 1 << 62

// resourceOf is the group and the plural of a path such as /apis/apps/v1/namespaces/a/deployments,
// with the group left out where it is the core one.
func resourceOf(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	for i, part := range parts { // the server's address can have a path of its own
		var group string
		switch {
		case part == "api" && len(parts) > i+2:
			parts = parts[i+2:]
		case part == "apis" && len(parts) > i+3:
			group, parts = parts[i+1]+"/", parts[i+3:]
		default:
			continue
		}
		if parts[0] == "namespaces" && len(parts) > 2 {
			parts = parts[2:]
		}
		return group + parts[0]
	}
	return ""
}
