package plan

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// No request that changes something gets through without being a dry run.
func TestTransports(t *testing.T) {
	var seen []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Method+" "+r.URL.RequestURI())
	}))
	defer server.Close()
	ask := func(transport func(http.RoundTripper) http.RoundTripper, method, path string) error {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport(http.DefaultTransport).RoundTrip(r)
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		if err := ask(DryRun, method, "/x?a=1"); err != nil {
			t.Error(err)
		}
		if err := ask(ReadOnly, method, "/x"); err == nil {
			t.Errorf("%s is let through", method)
		}
	}
	for _, transport := range []func(http.RoundTripper) http.RoundTripper{DryRun, ReadOnly} {
		if err := ask(transport, http.MethodGet, "/x"); err != nil {
			t.Error(err)
		}
	}
	want := []string{"POST /x?a=1&dryRun=All", "PUT /x?a=1&dryRun=All", "PATCH /x?a=1&dryRun=All", "DELETE /x?a=1&dryRun=All", "GET /x", "GET /x"}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// The same answer about many objects is told once, in the API server's words.
func TestAnswers(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	denied := func(name string) error {
		return apierrors.NewForbidden(pods, name, errors.New("User \"x\" cannot create resource \"pods/eviction\""))
	}
	budget := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	budget.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget web needs 2 healthy pods and has 2 currently"}}
	var answers Trial
	for _, tried := range []struct {
		verb, object string
		err          error
	}{
		{"evict", "pods/default/b", denied("b")},
		{"evict", "pods/default/a", denied("a")},
		{"surge", "pods/default/a", denied("a")},
		{"evict", "pods/default/c", budget},
		{"evict", "pods/default/d", nil},
		{"evict", "pods/default/gone", apierrors.NewNotFound(pods, "gone")},
	} {
		if err := answers.Note(tried.verb, tried.object, tried.err); err != nil {
			t.Error(err)
		}
	}
	want := Answers{As: []string{"yourself"}, Tried: 6, Refused: []Refusal{
		{Verb: "evict", Why: `User "x" cannot create resource "pods/eviction"`, Objects: []string{"pods/default/a", "pods/default/b"}},
		{Verb: "evict", Why: "Cannot evict pod as it would violate the pod's disruption budget. The disruption budget web needs 2 healthy pods and has 2 currently", Budget: true, Objects: []string{"pods/default/c"}},
		{Verb: "surge", Why: `User "x" cannot create resource "pods/eviction"`, Objects: []string{"pods/default/a"}},
	}}
	if diff := cmp.Diff(want, answers.Answers()); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	if err := answers.Note("evict", "pods/default/a", errors.New("connection refused")); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("%v, want an error: nobody has answered", err)
	}
}
