package dryrun

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Only reads get through; what would be created is noted, and exists for the one who asked.
func TestTransport(t *testing.T) {
	var seen []string
	var noted []Created
	client := Transport(promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		seen = append(seen, r.Method+" "+r.URL.RequestURI())
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	}), func(c Created) { noted = append(noted, c) })
	for _, tt := range []struct {
		method, path string
		status       int // 0: refused
		body         string
	}{
		{http.MethodGet, "/pods?watch=true", http.StatusOK, ""},
		{http.MethodHead, "/pods", http.StatusOK, ""},
		{http.MethodPost, "/nodeclaims", http.StatusCreated, "{}"},
		{http.MethodPost, "/pods/web/eviction", 0, ""},
		{http.MethodPut, "/pods/web", 0, ""},
		{http.MethodPatch, "/nodes/a", 0, ""},
		{http.MethodDelete, "/nodeclaims/a", 0, ""},
	} {
		r, err := http.NewRequestWithContext(t.Context(), tt.method, "http://server"+tt.path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.RoundTrip(r)
		if err != nil {
			if tt.status != 0 {
				t.Errorf("%s %s: %v", tt.method, tt.path, err)
			}
			continue
		}
		body, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != tt.status || string(body) != tt.body {
			t.Errorf("%s %s: status %d, body %q, %v", tt.method, tt.path, answer.StatusCode, body, err)
		}
	}
	if diff := cmp.Diff([]string{"GET /pods?watch=true", "HEAD /pods"}, seen); diff != "" {
		t.Errorf("requests that got through (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]Created{{Resource: "nodeclaims", Object: []byte("{}")}}, noted); diff != "" {
		t.Errorf("noted (-want +got):\n%s", diff)
	}
}
