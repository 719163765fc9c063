package plan

import (
	"fmt"
	"net/http"
)

// DryRun is a transport on which nothing is changed: every request that is no read asks the API
// server for a dry run. Whatever uses it cannot change the cluster by mistake.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run
func DryRun(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if !reads(r) {
			query := r.URL.Query()
			query.Set("dryRun", "All")
			r = r.Clone(r.Context())
			r.URL.RawQuery = query.Encode()
		}
		return next.RoundTrip(r)
	})
}

// ReadOnly is a transport that refuses every request that is no read.
func ReadOnly(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if !reads(r) {
			return nil, fmt.Errorf("%s %s: this command changes nothing", r.Method, r.URL.Path)
		}
		return next.RoundTrip(r)
	})
}

func reads(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
