package dryrun

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/runtime"
)

// Created is an object that would be created.
type Created struct {
	Resource string // such as nodeclaims
	Object   []byte // JSON
}

// Transport is the transport of clients that cannot change the cluster: a read goes to next, what
// would be created is noted and answered as if it existed now, and any other request fails. The
// clients have to write JSON. note is called from the goroutine of the request; nil: nobody wants to know.
func Transport(next http.RoundTripper, note func(Created)) http.RoundTripper {
	return promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		if Reads(r) {
			return next.RoundTrip(r)
		}
		if !Creates(r) {
			return nil, fmt.Errorf("%s %s: nothing is to be changed", r.Method, r.URL.Path)
		}
		c, err := CreatedBy(r)
		if err != nil {
			return nil, err
		}
		if note != nil {
			note(c)
		}
		return &http.Response{
			StatusCode: http.StatusCreated,
			Header:     http.Header{"Content-Type": {runtime.ContentTypeJSON}},
			Body:       io.NopCloser(bytes.NewReader(c.Object)),
			Request:    r,
		}, nil
	})
}

// Reads reports whether a request changes nothing.
func Reads(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// Creates reports whether a request creates an object. An eviction is posted too, and creates none.
func Creates(r *http.Request) bool {
	return r.Method == http.MethodPost && path.Base(r.URL.Path) != "eviction"
}

// CreatedBy is what a request that creates would create. It reads the request's body.
func CreatedBy(r *http.Request) (Created, error) {
	c := Created{Resource: path.Base(r.URL.Path)}
	if r.Body == nil {
		return c, nil
	}
	var err error
	c.Object, err = io.ReadAll(r.Body)
	return c, errors.Join(err, r.Body.Close())
}
