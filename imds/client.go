package imds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"spot-handler/handler/awsfault"
)

const (
	// The service is a hop away: what takes longer will not come. Together they are shorter
	// than callTimeout, so a hanging token request is recognized as one.
	dialTimeout   = 500 * time.Millisecond
	headerTimeout = time.Second

	// idleTimeout outlasts the longest pause between polls.
	idleTimeout = time.Minute
)

// NewClient makes the SDK's client as a Poller needs it: version 2 of the service only, over
// one connection that is kept, without retries, proxy or redirects. The endpoint and its
// mode come from cfg's sources or AWS_EC2_METADATA_SERVICE_ENDPOINT.
func NewClient(cfg aws.Config) *imds.Client {
	return NewClientOver(cfg, &http.Client{
		Transport: &http.Transport{
			// Proxy stays nil: metadata is link-local, and a token is a credential.
			DialContext:           (&net.Dialer{Timeout: dialTimeout}).DialContext,
			ResponseHeaderTimeout: headerTimeout,
			IdleConnTimeout:       idleTimeout,
			MaxIdleConnsPerHost:   1,
			DisableCompression:    true, // maxBody is then what crosses the wire
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	})
}

// NewClientOver is NewClient over an HTTP client that has what a Poller needs.
func NewClientOver(cfg aws.Config, h imds.HTTPClient) *imds.Client {
	return imds.NewFromConfig(cfg, func(o *imds.Options) {
		o.HTTPClient = observer{h}
		o.Retryer = aws.NopRetryer{} // the poller decides when to ask again
		o.EnableFallback = aws.FalseTernary
	})
}

// An exchange is the last request of a call, and what came of it.
type exchange struct {
	token  bool // it was the request for a token
	status int  // zero without an answer
	err    error
}

type exchangeKey struct{}

// watchExchanges returns a context whose requests an observer notes in the exchange. The
// SDK's token request inherits the context of the call that needs the token.
func watchExchanges(ctx context.Context) (context.Context, *exchange) {
	last := &exchange{}
	return context.WithValue(ctx, exchangeKey{}, last), last
}

// An observer notes each exchange, and limits what is read of an answer, which the SDK would
// read to its end.
type observer struct{ next imds.HTTPClient }

func (o observer) Do(r *http.Request) (*http.Response, error) {
	last, _ := r.Context().Value(exchangeKey{}).(*exchange)
	if last == nil {
		last = &exchange{}
	}
	*last = exchange{token: r.Method == http.MethodPut} // nothing else is ever PUT

	resp, err := o.next.Do(r)
	if err != nil {
		last.err = err
		return resp, err
	}
	last.status = resp.StatusCode
	resp.Body = &limitedBody{ReadCloser: resp.Body, remaining: maxBody, last: last}
	return resp, nil
}

// A limitedBody fails instead of giving more than remains.
type limitedBody struct {
	io.ReadCloser
	remaining int
	last      *exchange
}

func (b *limitedBody) Read(p []byte) (int, error) {
	if len(p) > b.remaining+1 {
		p = p[:b.remaining+1] // one more byte tells a full answer from too long a one
	}
	n, err := b.ReadCloser.Read(p)
	if n > b.remaining {
		n, err = b.remaining, errTooLarge
	}
	b.remaining -= n
	if err != nil && err != io.EOF {
		b.last.err = err
	}
	return n, err
}

// The reasons that only this package knows.
const (
	reasonTokenTimeout  awsfault.Reason = "token_timeout"  // no answer to the token request
	reasonToken         awsfault.Reason = "token"          // the token request was refused
	reasonUnauthorized  awsfault.Reason = "unauthorized"   // 401: the token is not valid any more
	reasonForbidden     awsfault.Reason = "forbidden"      // 403: the service is switched off
	reasonStatus        awsfault.Reason = "status"         // any other status
	reasonTooLarge      awsfault.Reason = "too_large"      // more than maxBody
	reasonMalformed     awsfault.Reason = "malformed"      // not what is documented
	reasonUnknownAction awsfault.Reason = "unknown_action" // an action that is not documented
	reasonUnknownState  awsfault.Reason = "unknown_state"  // a state of a scheduled event that is not documented
)

func reasons() []awsfault.Reason {
	return []awsfault.Reason{
		reasonTokenTimeout, reasonToken, reasonUnauthorized, reasonForbidden, awsfault.Throttled, awsfault.Unavailable,
		reasonStatus, awsfault.Timeout, awsfault.Connection, reasonTooLarge, reasonMalformed, reasonUnknownAction,
		reasonUnknownState, awsfault.Other,
	}
}

func fault(reason awsfault.Reason, format string, args ...any) error {
	return &awsfault.Fault{Reason: reason, Err: fmt.Errorf(format, args...)}
}

// usable reports whether the reading is good in spite of the error: it said all that
// matters, in a way that somebody should look at.
func usable(err error) bool {
	r := awsfault.Of(err)
	return r == reasonUnknownAction || r == reasonUnknownState
}

var errTooLarge = fmt.Errorf("answer is larger than %d bytes", maxBody)

// notFound reports a 404 of the path itself. A 404 of the token request does not show, as
// the SDK hides what is below its token errors.
func notFound(err error) bool {
	r, ok := errors.AsType[*smithyhttp.ResponseError](err)
	return ok && r.HTTPStatusCode() == http.StatusNotFound
}

// classify names the call and finds the reason: what the last exchange saw, because the SDK's errors
// about tokens and 401s do not unwrap, or that there was no exchange.
func classify(path string, err error, last *exchange) error {
	reason := awsfault.Other
	switch {
	case errors.Is(last.err, errTooLarge):
		reason = reasonTooLarge
	case last.err != nil && awsfault.Of(last.err) == awsfault.Timeout:
		reason = awsfault.Timeout
	case last.err != nil:
		reason = awsfault.Connection
	case last.status >= http.StatusMultipleChoices:
		reason = statusReason(last.status)
	case awsfault.Of(err) == awsfault.Timeout, awsfault.Of(err) == awsfault.Connection:
		reason = awsfault.Of(err)
	case last.token: // answered, but in a way that the SDK could not read
		reason = reasonToken
	}

	if last.token {
		switch reason {
		case awsfault.Timeout:
			return fault(reasonTokenTimeout, "read %s: fetch token: no answer; the pod likely needs hostNetwork, "+
				"or the instance a metadata response hop limit of 2: %w", path, err)
		case reasonUnauthorized, reasonStatus:
			reason = reasonToken
		}
		return fault(reason, "read %s: fetch token: %w", path, err)
	}
	return fault(reason, "read %s: %w", path, err)
}

// statusReason differs from what a status means elsewhere at AWS: a 401 is about the token,
// and with a 403 the instance's owner has switched the service off.
func statusReason(status int) awsfault.Reason {
	switch {
	case status == http.StatusUnauthorized:
		return reasonUnauthorized
	case status == http.StatusForbidden:
		return reasonForbidden
	case status == http.StatusTooManyRequests:
		return awsfault.Throttled
	case status >= http.StatusInternalServerError:
		return awsfault.Unavailable
	}
	return reasonStatus
}
