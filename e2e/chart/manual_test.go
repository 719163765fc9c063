package chart

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func render(t *testing.T, r Release) []unstructured.Unstructured {
	t.Helper()
	objects, err := helms(t)[1].Render(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// The page about the installation names the flags that are no values.
func TestManualNamesTheFlagsThatAreNoValues(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "deploy", "docs", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Values and permissions\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, flag := range ofTheChart {
		if !strings.Contains(section, "`--"+flag+"`") {
			t.Errorf("install.md does not say that --%s is not below flags", flag)
		}
	}
}

// Each term of the node affinity has what nodeExpressions add: the terms are alternatives.
func TestNodeExpressionsNarrowEveryLabel(t *testing.T) {
	pod := workload(t, render(t, Release{Values: Values("imds", changes["expressions"])}), "imds")
	for _, term := range pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		var others []string
		for _, e := range term.MatchExpressions[1:] {
			others = append(others, e.Key+" "+string(e.Operator)+" "+strings.Join(e.Values, ","))
		}
		if want := []string{"eks.amazonaws.com/compute-type NotIn auto", "ours Exists "}; !slices.Equal(others, want) {
			t.Errorf("beside %s: %q, want %q", term.MatchExpressions[0].Key, others, want)
		}
	}
}

// The comments of values.yaml say what names begin with, and which are always the same.
func TestNames(t *testing.T) {
	always := []string{
		"ConfigMap spot-handler-offerings", "Namespace spot-handler-placeholders", "PriorityClass spot-handler-placeholder",
	}
	for release, prefix := range map[string]string{"spot-handler": "spot-handler", "east": "east-spot-handler", "east-spot-handler-2": "east-spot-handler-2"} {
		objects := render(t, Release{Name: release, Values: Values("both", map[string]any{
			"flags.fallbackSelector": "node-lifecycle=on-demand", "audit.enabled": true, "podMonitor.enabled": true, "prometheusRule.enabled": true, "dashboard.enabled": true,
		})})
		accounts := map[string]bool{}
		for _, o := range objects {
			if o.GetKind() == "ServiceAccount" {
				accounts[o.GetName()] = true
			}
			if !strings.HasPrefix(o.GetName(), prefix) && !slices.Contains(always, o.GetKind()+" "+o.GetName()) && o.GetNamespace() != PlaceholderNamespace {
				t.Errorf("release %s: %s does not begin with %s", release, id(o), prefix)
			}
		}
		if !accounts[prefix+"-imds"] || !accounts[prefix+"-queue"] {
			t.Errorf("release %s has the service accounts %v", release, accounts)
		}
	}
}

// Alerts and dashboard use classic histograms, which a Prometheus that scrapes native ones drops
// unless it is asked to keep them.
func TestMonitorsKeepClassicHistograms(t *testing.T) {
	for _, kind := range []string{"podMonitor", "serviceMonitor"} {
		found := false
		for _, o := range render(t, Release{Values: Values("both", map[string]any{kind + ".enabled": true})}) {
			if !strings.EqualFold(o.GetKind(), kind) {
				continue
			}
			found = true
			if keeps, _, _ := unstructured.NestedBool(o.Object, "spec", "scrapeClassicHistograms"); !keeps {
				t.Errorf("%s drops classic histograms", id(o))
			}
		}
		if !found {
			t.Errorf("no %s", kind)
		}
	}
}

// The notes name the pods of the Deployment alone, as kubectl follows five logs at most, and offer the
// association of EKS Pod Identity only to those who do without the project's templates.
func TestNotes(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "chart", "templates", "NOTES.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"logs deployment/", "If you attach the policy to a role of your own, EKS Pod Identity needs:\n\n  aws eks create-pod-identity-association"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("NOTES.txt lacks %q", want)
		}
	}
}
