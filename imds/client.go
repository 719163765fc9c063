package imds

import (
	"context"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
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
	return newClient(cfg, &http.Client{
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

func newClient(cfg aws.Config, h imds.HTTPClient) *imds.Client {
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
