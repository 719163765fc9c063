package plan

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// No request that changes something gets through without being a dry run.
func TestTransports(t *testing.T) {
	var seen []string
	server := promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		seen = append(seen, r.Method+" "+r.URL.RequestURI())
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	})
	tried, untried := &Requests{DryRun: true}, &Requests{}
	ask := func(q *Requests, method, path string) error {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, "http://server"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = q.Over(server).RoundTrip(r)
		return err
	}
	for _, method := range []string{http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodPost} {
		path := map[bool]string{true: "/pods/x/eviction", false: "/x"}[method == http.MethodPost]
		if err := ask(tried, method, path+"?a=1"); err != nil {
			t.Error(err)
		}
		if err := ask(untried, method, path); err == nil {
			t.Errorf("%s is let through", method)
		}
	}
	for _, q := range []*Requests{tried, untried} {
		if err := errors.Join(ask(q, http.MethodGet, "/x"), ask(q, http.MethodPost, "/pods")); err != nil {
			t.Error(err)
		}
		if made := q.collect(); len(made) != 1 || made[0].Resource != "pods" {
			t.Errorf("%v", made)
		}
	}
	want := []string{"PUT /x?a=1&dryRun=All", "PATCH /x?a=1&dryRun=All", "DELETE /x?a=1&dryRun=All", "POST /pods/x/eviction?a=1&dryRun=All", "GET /x", "POST /pods?dryRun=All", "GET /x"}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// What the API server refuses of a replacement is noted, and the provisioner sees it too.
func TestRefusedRequest(t *testing.T) {
	const status = `{"kind":"Status","status":"Failure","message":"nodeclaims \"a\" is forbidden: no","code":403,"details":{"kind":"nodeclaims","name":"a"}}`
	q := &Requests{DryRun: true}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://server/nodeclaims", strings.NewReader(`{"metadata":{"name":"a"}}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "application/vnd.kubernetes.protobuf,application/json") // as the daemon's clients ask
	answer, err := q.Over(promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		if accept := r.Header.Get("Accept"); accept != "application/json" {
			t.Errorf("asks for %s, want JSON, which is read here", accept)
		}
		return &http.Response{StatusCode: http.StatusForbidden, Body: io.NopCloser(strings.NewReader(status))}, nil
	})).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(answer.Body); err != nil || string(text) != status {
		t.Errorf("%q, %v", text, err)
	}
	want := &Answers{As: []string{"yourself"}, Tried: 1, Refused: []Refusal{{Verb: "request", Why: "no", Objects: []string{"nodeclaims/a"}}}}
	if diff := cmp.Diff(want, q.result()); diff != "" || len(q.collect()) > 0 {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
}

// The same answer about many objects is given once, in the API server's words.
func TestAnswers(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	denied := func(name string) error {
		return apierrors.NewForbidden(pods, name, errors.New("User \"x\" cannot create resource \"pods/eviction\""))
	}
	budget := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	budget.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget web needs 2 healthy pods and has 2 currently"}}
	var answers Requests
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
		if err := answers.note(tried.verb, tried.object, tried.err); err != nil {
			t.Error(err)
		}
	}
	want := &Answers{As: []string{"yourself"}, Tried: 6, Refused: []Refusal{
		{Verb: "evict", Why: `User "x" cannot create resource "pods/eviction"`, Objects: []string{"pods/default/a", "pods/default/b"}},
		{Verb: "evict", Why: "Cannot evict pod as it would violate the pod's disruption budget. The disruption budget web needs 2 healthy pods and has 2 currently", Budget: true, Objects: []string{"pods/default/c"}},
		{Verb: "surge", Why: `User "x" cannot create resource "pods/eviction"`, Objects: []string{"pods/default/a"}},
	}}
	if diff := cmp.Diff(want, answers.result()); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	if err := answers.note("evict", "pods/default/a", errors.New("connection refused")); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("%v, want an error: nobody has answered", err)
	}
}
