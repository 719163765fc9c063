package chart

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
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

// What people set for scheduling reaches the pods, and leaves in place what it does not name.
func TestScheduling(t *testing.T) {
	objects := render(t, Release{Values: Values("both", changes["scheduling"])})
	imds, drainer := workload(t, objects, "imds"), workload(t, objects, "queue")
	if want := map[string]string{"kubernetes.io/os": "linux", "pool": "batch"}; !maps.Equal(imds.Spec.NodeSelector, want) {
		t.Errorf("the DaemonSet runs on %v, want %v", imds.Spec.NodeSelector, want)
	}
	if a := imds.Spec.Affinity; a.PodAntiAffinity == nil ||
		len(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) != 1 ||
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		t.Errorf("affinity of the DaemonSet: %v, want what is given beside the spot labels", a)
	}
	if a := drainer.Spec.Affinity; a.PodAntiAffinity == nil || a.NodeAffinity == nil {
		t.Errorf("affinity of the Deployment: %v, want what is given beside the chart's", a)
	}
	want := map[string]string{
		"DaemonSet updateStrategy.type":    "OnDelete",
		"DaemonSet revisionHistoryLimit":   "0",
		"Deployment strategy.type":         "Recreate",
		"Deployment revisionHistoryLimit":  "2",
		"PodDisruptionBudget minAvailable": "50%",
	}
	for _, o := range objects {
		for field, value := range want {
			kind, path, _ := strings.Cut(field, " ")
			if o.GetKind() != kind {
				continue
			}
			got, _, _ := unstructured.NestedFieldNoCopy(o.Object, append([]string{"spec"}, strings.Split(path, ".")...)...)
			if fmt.Sprint(got) != value {
				t.Errorf("%s is %v, want %s", field, got, value)
			}
		}
		if _, both, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "maxUnavailable"); both && o.GetKind() == "PodDisruptionBudget" {
			t.Error("the PodDisruptionBudget has maxUnavailable beside minAvailable")
		}
	}

	own := render(t, Release{Values: Values("queue", map[string]any{
		"controller.affinity": map[string]any{
			"nodeAffinity": map[string]any{"preferredDuringSchedulingIgnoredDuringExecution": []any{map[string]any{
				"weight": 1, "preference": map[string]any{"matchExpressions": []any{map[string]any{"key": "pool", "operator": "Exists"}}},
			}}},
		},
		"controller.podDisruptionBudget.enabled": false,
		"controller.topologySpreadConstraints": []any{
			map[string]any{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
			map[string]any{
				"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule",
				"labelSelector": map[string]any{"matchLabels": map[string]any{"mine": "yes"}},
			},
		},
		"podSecurityContext.runAsUser": nil, "podSecurityContext.runAsGroup": nil,
	})})
	pod := workload(t, own, "queue")
	terms := pod.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	if len(terms) != 1 || terms[0].Preference.MatchExpressions[0].Key != "pool" {
		t.Errorf("node affinity %v, want the one given in place of the chart's", terms)
	}
	var spread []string
	for _, c := range pod.Spec.TopologySpreadConstraints {
		spread = append(spread, fmt.Sprint(c.TopologyKey, c.LabelSelector.MatchLabels))
	}
	ours := "map[app.kubernetes.io/component:queue app.kubernetes.io/instance:spot-handler app.kubernetes.io/name:spot-handler]"
	if want := []string{"zone" + ours, "rackmap[mine:yes]"}; !slices.Equal(spread, want) {
		t.Errorf("spread over %q, want %q", spread, want)
	}
	if s := pod.Spec.SecurityContext; s.RunAsUser != nil || s.RunAsNonRoot == nil {
		t.Errorf("security context %+v, want no user", s)
	}
	if slices.ContainsFunc(own, func(o unstructured.Unstructured) bool { return o.GetKind() == "PodDisruptionBudget" }) {
		t.Error("a PodDisruptionBudget that nobody wants")
	}
}

// What people take away with null, as they do with a default that they don't want, is as if it were
// empty.
func TestNulls(t *testing.T) {
	for _, mode := range Modes {
		changes := map[string]any{}
		for _, path := range []string{
			"imds.affinity", "imds.nodeSelector", "imds.nodeExpressions", "imds.updateStrategy", "imds.revisionHistoryLimit",
			"imds.podLabels", "controller.affinity", "controller.nodeSelector", "controller.tolerations",
			"controller.topologySpreadConstraints", "controller.updateStrategy", "controller.revisionHistoryLimit",
			"controller.podLabels", "image.pullSecrets", "imagePullSecrets", "commonLabels", "extraObjects", "namespaceOverride",
			"podMonitor.relabelings", "podMonitor.metricRelabelings", "podMonitor.labels", "podMonitor.scrapeTimeout",
			"podMonitor.scrapeClassicHistograms",
		} {
			changes[path] = nil
		}
		changes["podMonitor.enabled"] = true
		for _, h := range helms(t) {
			if _, err := h.Render(t.Context(), Release{Values: Values(mode, changes)}); err != nil {
				t.Errorf("%s, mode %s: %v", h.Name, mode, err)
			}
		}
	}
}

// Secrets for the registry are named in either form, in any of three places.
func TestPullSecrets(t *testing.T) {
	objects := render(t, Release{Values: Values("both", changes["digest"])})
	for _, component := range []string{"imds", "queue"} {
		var names []string
		for _, s := range workload(t, objects, component).Spec.ImagePullSecrets {
			names = append(names, s.Name)
		}
		if want := []string{"registry", "second", "third", "fourth"}; !slices.Equal(names, want) {
			t.Errorf("%s pulls with %q, want %q", component, names, want)
		}
	}
}

// Common labels are on all objects and pods, more special ones win, and selectors stay as they are:
// those of a Deployment cannot change.
func TestCommonLabels(t *testing.T) {
	objects := render(t, Release{Values: Values("both", changes["labels, extras"])})
	if !slices.ContainsFunc(objects, func(o unstructured.Unstructured) bool {
		return o.GetName() == "extra" && o.GetNamespace() == "spot-handler"
	}) {
		t.Error("no extra object with its template rendered")
	}
	for _, o := range objects {
		want := map[string]string{"PrometheusRule": "prometheus"}[o.GetKind()]
		if !slices.Contains(extras, o.GetName()) && (o.GetLabels()["team"] != "sre" || o.GetLabels()["release"] != cmp.Or(want, "ours")) {
			t.Errorf("%s has the labels %v", id(o), o.GetLabels())
		}
		if selects, _, _ := unstructured.NestedStringMap(o.Object, "spec", "selector", "matchLabels"); selects["team"] != "" {
			t.Errorf("%s selects %v", id(o), selects)
		}
	}
	if team := workload(t, objects, "imds").Labels["team"]; team != "batch" {
		t.Errorf("pods of the DaemonSet are of team %q", team)
	}
	if team := workload(t, objects, "queue").Labels["team"]; team != "sre" {
		t.Errorf("pods of the Deployment are of team %q", team)
	}
}

// Everything is in the namespace that overrides the release's, and accounts are meant by it.
func TestNamespaceOverride(t *testing.T) {
	h := helms(t)[1]
	values := Values("both", map[string]any{
		"audit.enabled": true, "serviceMonitor.enabled": true, "prometheusRule.enabled": true, "dashboard.enabled": true,
		"flags.fallbackSelector": "node-lifecycle=on-demand",
	})
	release := Release{Namespace: "elsewhere", Values: values}
	want, err := h.Template(t.Context(), release)
	if err != nil {
		t.Fatal(err)
	}
	set(values, "namespaceOverride", "elsewhere")
	release.Namespace = "spot-handler"
	got, err := h.Template(t.Context(), release)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("-release's namespace +overridden:\n%s", diff)
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
