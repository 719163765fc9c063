package chart

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func helms(t *testing.T) []Helm {
	t.Helper()
	found, err := Helms(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestLint(t *testing.T) {
	dir, err := Dir()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range helms(t) {
		if out, err := h.Run(t.Context(), "", "lint", "--strict", dir); err != nil || strings.Contains(out, "WARNING") {
			t.Errorf("%s: %v\n%s", h.Name, err, out)
		}
	}
}

// Everything renders, in every mode, to objects that keep the promises of the chart.
func TestMatrix(t *testing.T) {
	h := helms(t)[1]
	for _, c := range Matrix() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			objects, err := h.Render(t.Context(), c.Release)
			if err != nil {
				t.Fatal(err)
			}
			promises(t, c.Mode, objects)
		})
	}
}

// Both versions of Helm make the same of the chart.
func TestHelmsAgree(t *testing.T) {
	all := map[string]any{}
	for _, change := range changes {
		maps.Copy(all, change)
	}
	maps.Copy(all, map[string]any{"serviceMonitor.enabled": false, "flags.provisioner": "auto"})
	var outcomes [][]unstructured.Unstructured
	for _, h := range helms(t) {
		objects, err := h.Render(t.Context(), Release{Values: Values("both", all)})
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(objects, func(a, b unstructured.Unstructured) int { return strings.Compare(id(a), id(b)) })
		outcomes = append(outcomes, objects)
	}
	if diff := cmp.Diff(outcomes[0], outcomes[1]); diff != "" {
		t.Errorf("-Helm 3 +Helm 4:\n%s", diff)
	}
}

// Nonsense is refused, in words that name the value and what it may be.
func TestNonsenseIsRefused(t *testing.T) {
	for _, tt := range []struct {
		mode   string
		change map[string]any
		says   []string
	}{
		{"imds", map[string]any{"mode": "daemonset"}, []string{"mode", "'imds', 'queue', 'both'"}},
		{"imds", map[string]any{"modes": "imds"}, []string{"modes", "not allowed"}},
		{"imds", map[string]any{"image.repository": ""}, []string{"image.repository is not set"}},
		{"imds", map[string]any{"image.repository": "repository:v1"}, []string{"/image/repository"}},
		{"imds", map[string]any{"image.digest": "v1"}, []string{"/image/digest", "sha256"}},
		{"imds", map[string]any{"flags.drainStrategy": "fast"}, []string{"/flags/drainStrategy", "'hold'"}},
		{"imds", map[string]any{"flags.drainStrateggy": "hold"}, []string{"drainStrateggy", "not allowed"}},
		{"imds", map[string]any{"flags.margin": 10}, []string{"/flags/margin", "want string"}},
		{"imds", map[string]any{"flags.margin": "10"}, []string{"/flags/margin", "(ms|s|m|h)"}},
		{"imds", map[string]any{"flags.dryRun": "perhaps"}, []string{"/flags/dryRun", "true, false"}},
		{"imds", map[string]any{"flags.maxConcurrentRebalances": "101%"}, []string{"/flags/maxConcurrentRebalances", "pattern"}},
		{"imds", map[string]any{"flags.fallbackNodepool": "batch=batch-fallback"}, []string{"/flags/fallbackNodepool", "want object"}},
		{"imds", map[string]any{"imds.nodeExpressions": []any{map[string]any{"key": "a", "operator": "!="}}}, []string{"/imds/nodeExpressions/0/operator", "'NotIn'"}},
		{"imds", map[string]any{"imds.maxUnavailable": 1}, []string{"/imds/maxUnavailable", "want string"}},
		{"imds", map[string]any{"imds.maxUnavailable": "0%"}, []string{"/imds/maxUnavailable", "100)%"}},
		{"imds", map[string]any{"imds.port": 70000}, []string{"/imds/port", "65,535"}},
		{"imds", map[string]any{"audit.schedule": "weekly"}, []string{"/audit/schedule", "pattern"}},
		{"imds", map[string]any{"audit.failOn": "all"}, []string{"/audit/failOn", "'warning'"}},
		{"imds", map[string]any{"spotLabels": nil}, []string{"spotLabels is empty"}},
		{"queue", map[string]any{"flags.queueUrl": ""}, []string{"flags.queueUrl is not set", "https://sqs."}},
		{"queue", map[string]any{"flags.queueUrl": "spot-handler"}, []string{"/flags/queueUrl", "https?://"}},
		{"queue", map[string]any{"controller.replicas": "two"}, []string{"/controller/replicas", "want integer"}},
		{"queue", map[string]any{"controller.serviceAccount.roleArn": "spot-handler"}, []string{"roleArn", "arn:"}},
		{"queue", map[string]any{"flags.provisioner": "placeholder"}, []string{"flags.fallbackSelector is not set"}},
		{"imds", map[string]any{"flags.webhookProxy": "tcp://proxy:3128"}, []string{"/flags/webhookProxy", "socks5"}},
		{"imds", map[string]any{"podSecurityContext": nil}, []string{"podSecurityContext is null", "--reset-then-reuse-values"}},
		{"imds", map[string]any{"securityContext": nil}, []string{"securityContext is null"}},
		{"imds", map[string]any{"imds.tolerations": nil}, []string{"imds.tolerations is null"}},
		{"imds", map[string]any{"controller.podDisruptionBudget": nil}, []string{"controller.podDisruptionBudget is null"}},
		{"queue", map[string]any{"flags.nodeSelector": "team=blue"}, []string{"flags.nodeSelector is no longer a value", "flags.managedNodes", "controller.nodeSelector"}},
		{"imds", map[string]any{"imds.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms": []any{}}, []string{"imds.nodeExpressions"}},
		{"imds", map[string]any{"imds.podLabels": map[string]any{"app.kubernetes.io/component": "mine"}}, []string{"imds.podLabels", "app.kubernetes.io/component"}},
		{"imds", map[string]any{"commonLabels": map[string]any{"app.kubernetes.io/instance": "mine"}}, []string{"commonLabels", "app.kubernetes.io/instance"}},
		{"imds", map[string]any{"imagePullSecrets": []any{map[string]any{"secret": "mine"}}}, []string{"/imagePullSecrets/0"}},
		{"queue", map[string]any{"controller.podDisruptionBudget.maxUnavailable": "half"}, []string{"/controller/podDisruptionBudget/maxUnavailable"}},
		{"queue", map[string]any{"controller.podDisruptionBudget.maxUnavailable": ""}, []string{"neither minAvailable nor maxUnavailable"}},
		{"queue", map[string]any{"flags.webhookUrl": "https://hooks.example.com"}, []string{"flags.webhookUrl is no longer a value", "webhook.secretName"}},
		{"queue", map[string]any{"flags.webhookTemplate": "{}"}, []string{"flags.webhookTemplate is no longer a value", "webhook.templateKey"}},
		{"queue", map[string]any{"flags.rebalanceCapacity": "fallback"}, []string{"flags.rebalanceCapacity is no longer a value", "flags.rebalance=fallback"}},
		{"queue", map[string]any{"queue.flags.queueUrl": QueueURL}, []string{"queue is no longer a value", "controller", "flags.queueUrl"}},
		{"imds", map[string]any{"drain.replicas": 2}, []string{"drain is no longer a value", "controller"}},
		{"imds", map[string]any{"imds.flags.watchSpot": false}, []string{"imds.flags is no longer a value", "flags.watch"}},
		{"imds", map[string]any{"workloads.notices": true}, []string{"flags.workloadNotices"}},
		{"imds", map[string]any{"flags.watch": []any{"spots"}}, []string{"/flags/watch/0", "'scheduled-events'"}},
		{"both", map[string]any{"podMonitor.enabled": true, "serviceMonitor.enabled": true}, []string{"counted twice"}},
	} {
		for _, h := range helms(t) {
			_, err := h.Template(t.Context(), Release{Values: Values(tt.mode, tt.change)})
			if err == nil {
				t.Errorf("%s: mode %s takes %v", h.Name, tt.mode, tt.change)
				continue
			}
			for _, word := range tt.says {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%s: mode %s with %v: %v does not say %q", h.Name, tt.mode, tt.change, err, word)
				}
			}
		}
	}
}

// Charts hold no files from outside: those of deploy/alerts and deploy/dashboards are in
// the chart once more. `make chart` copies them.
func TestFilesAreCopies(t *testing.T) {
	dir, err := Dir()
	if err != nil {
		t.Fatal(err)
	}
	copies := map[string]string{filepath.Join("files", "spot-handler.json"): filepath.Join("..", "dashboards", "spot-handler.json")}
	for _, pattern := range []string{filepath.Join(dir, "..", "alerts", "*.yaml"), filepath.Join(dir, "files", "alerts", "*.yaml")} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("no files %s: %v", pattern, err)
		}
		for _, file := range files {
			name := filepath.Base(file)
			if text, err := os.ReadFile(file); err == nil && !strings.Contains("\n"+string(text), "\ngroups:") {
				continue // not alerting rules, such as the cases that test them
			}
			copies[filepath.Join("files", "alerts", name)] = filepath.Join("..", "alerts", name)
		}
	}
	for to, from := range copies {
		want, err := os.ReadFile(filepath.Join(dir, from))
		if err != nil {
			t.Errorf("%v: run make chart", err)
			continue
		}
		got, err := os.ReadFile(filepath.Join(dir, to))
		if err != nil || string(got) != string(want) {
			t.Errorf("deploy/chart/%s is not deploy/%s (%v): run make chart", to, filepath.Clean(from)[3:], err)
		}
		var groups struct{ Groups []any }
		if strings.HasSuffix(to, ".yaml") {
			if err := yaml.Unmarshal(want, &groups); err != nil || groups.Groups == nil {
				t.Errorf("%s is no file of alerting rules: %v", from, err)
			}
		}
	}
}

// A package is the chart and nothing else, and renders the same.
func TestPackage(t *testing.T) {
	dir, err := Dir()
	if err != nil {
		t.Fatal(err)
	}
	change := map[string]any{"prometheusRule.enabled": true, "dashboard.enabled": true}
	for _, h := range helms(t) {
		out := t.TempDir()
		if _, err := h.Run(t.Context(), "", "package", dir, "--destination="+out); err != nil {
			t.Fatal(err)
		}
		archives, err := filepath.Glob(filepath.Join(out, "spot-handler-*.tgz"))
		if err != nil || len(archives) != 1 {
			t.Fatalf("%s made %v: %v", h.Name, archives, err)
		}
		values := filepath.Join(out, "values.yaml")
		text, err := yaml.Marshal(Values("both", change))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(values, text, 0o644); err != nil {
			t.Fatal(err)
		}
		fromPackage, err := h.Run(t.Context(), "", "template", "spot-handler", archives[0], "--namespace=spot-handler", "--values="+values)
		if err != nil {
			t.Fatal(err)
		}
		fromFolder, err := h.Template(t.Context(), Release{Values: Values("both", change)})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fromFolder, fromPackage); diff != "" {
			t.Errorf("%s (-folder +package):\n%s", h.Name, diff)
		}
	}
}

func id(o unstructured.Unstructured) string {
	return fmt.Sprintf("%s/%s/%s", o.GetKind(), o.GetNamespace(), o.GetName())
}
