package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"

	"spot-handler/cmd/spot-handler/internal/console"
)

func TestBaseline(t *testing.T) {
	known := Finding{ID: "SH104", Severity: Warning, Namespace: "shop", Object: "deployment/web", Pods: 3}
	fresh := Finding{ID: "SH101", Severity: Critical, Namespace: "shop", Object: "poddisruptionbudget/db"}
	text, err := json.Marshal(Report{Accepted: []Finding{known}})
	if err != nil {
		t.Fatal(err)
	}
	known.Pods = 4 // it is still the same
	r, err := Report{Findings: []Finding{fresh, known}}.Accept(text)
	if err != nil || len(r.Findings) != 1 || r.Findings[0].ID != "SH101" || len(r.Accepted) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if !r.Fails(Critical) || !r.Fails(Warning) || (Report{Findings: []Finding{known}}).Fails(Critical) {
		t.Error("critical is worse than a warning")
	}
	if _, err := r.Accept([]byte("no JSON")); err == nil {
		t.Error("a baseline that is none is taken")
	}
	lines := strings.Join(r.Lines(0), "\n")
	for _, want := range []string{"SH101  critical  shop poddisruptionbudget/db", "The baseline accepts 1 more."} {
		if !strings.Contains(lines, want) {
			t.Errorf("no %q in\n%s", want, lines)
		}
	}
}

// Hundreds of findings stay readable, on any terminal.
func TestReportFits(t *testing.T) {
	var r Report
	for _, id := range ids() {
		for i := range 42 {
			r.Findings = append(r.Findings, Finding{
				ID: id, Severity: Warning, Namespace: "a-namespace-of-a-team", Object: fmt.Sprint("deployment/of-a-long-name-", i), Pods: 2, Page: page(id),
				What: "has something that takes some words to say", Why: "it ends badly, which takes some more words to say than one line has", Fix: "kubectl",
			})
		}
	}
	for _, width := range []int{80, 120} {
		lines := r.Lines(width)
		if most := len(ids()) * 2 * (shown + 4); len(lines) > most {
			t.Errorf("%d lines for %d checks, want at most %d", len(lines), len(ids()), most)
		}
		for _, line := range lines {
			if n := console.Width(line); n > width {
				t.Errorf("%d columns of %d: %s", n, width, line)
			}
		}
	}
	text := strings.Join(r.Lines(0), "\n")
	for want, n := range map[string]int{"and 37 more": 2 * len(ids()), "  74 ": len(ids()), "it ends badly": len(ids())} {
		if got := strings.Count(text, want); got != n {
			t.Errorf("%q is there %d times, want %d:\n%s", want, got, n, text)
		}
	}
}

func ids() (list []string) {
	for _, c := range checks {
		list = append(list, c.id)
	}
	return list
}

// Every finding leads to its page.
func TestFindingsOfManual(t *testing.T) {
	text, err := os.ReadFile("../../../../deploy/docs/findings.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, h := range regexp.MustCompile(`(?m)^\| <a id="(sh\d+)"></a>(SH\d+) \| .+ \| .+ \|$`).FindAllStringSubmatch(string(text), -1) {
		if h[1] != strings.ToLower(h[2]) {
			t.Errorf("the anchor of %s is %s", h[2], h[1])
		}
		documented = append(documented, h[2])
	}
	if diff := cmp.Diff(ids(), documented); diff != "" {
		t.Errorf("checks (-defined +manual):\n%s", diff)
	}
}

func TestMissing(t *testing.T) {
	list := []Permission{
		{Verb: "get", Resource: "nodes"},
		{Verb: "create", Resource: "pods/eviction"},
		{Verb: "list", Group: "karpenter.sh", Resource: "nodepools"},
		{Verb: "update", Group: "coordination.k8s.io", Resource: "leases", Namespace: "spot-handler"},
	}
	var mu sync.Mutex
	asked := map[authorizationv1.ResourceAttributes]bool{}
	missing, err := Missing(t.Context(), list, func(_ context.Context, to *authorizationv1.ResourceAttributes) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		asked[*to] = true
		return to.Verb == "get" || to.Verb == "list", nil
	})
	if diff := cmp.Diff([]Permission{list[1], list[3]}, missing); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	want := map[authorizationv1.ResourceAttributes]bool{
		{Verb: "get", Resource: "nodes"}:                                                              true,
		{Verb: "create", Resource: "pods", Subresource: "eviction"}:                                   true,
		{Verb: "list", Group: "karpenter.sh", Resource: "nodepools"}:                                  true,
		{Verb: "update", Group: "coordination.k8s.io", Resource: "leases", Namespace: "spot-handler"}: true,
	}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	_, err = Missing(t.Context(), list, func(context.Context, *authorizationv1.ResourceAttributes) (bool, error) {
		return false, errors.New("no answer")
	})
	if err == nil || !strings.Contains(err.Error(), "check permission to") {
		t.Errorf("%v, want it to name a permission", err)
	}
}
