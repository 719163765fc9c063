// Package chart runs the real Helm on deploy/chart: Helm 3, which many still have, and
// Helm 4, both built from their Go modules. What it renders is read with [Render]; the
// stories install it into a real API server.
//
// The tests of this package hold the chart to the daemon: every flag has a value, every
// value has its place in the schema, and what is nonsense is refused.
package chart

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"spot-handler/e2e/internal/assets"
)

// Helm is one version of Helm. Its methods are safe for concurrent use.
type Helm struct {
	Name string // helm3 or helm4
	Path string // of the program
}

// Helms returns each version, and builds those that are not in the cache, which takes
// minutes; it says so on progress.
func Helms(ctx context.Context, progress io.Writer) ([]Helm, error) {
	programs, err := assets.Ensure(ctx, assets.Helm, progress)
	if err != nil {
		return nil, err
	}
	var found []Helm
	for _, name := range []string{assets.HelmV3, assets.HelmV4} {
		found = append(found, Helm{Name: name, Path: programs.Path(name)})
	}
	return found, nil
}

// Dir is deploy/chart of the checkout.
func Dir() (string, error) {
	checkout, err := assets.Checkout()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(checkout, "deploy", "chart")
	// The go command notices what a test reads, and not what Helm reads for it: without this
	// a result would come from its cache though the chart has changed.
	err = filepath.WalkDir(dir, func(_ string, _ fs.DirEntry, err error) error { return err })
	if err != nil {
		return "", fmt.Errorf("read chart: %w", err)
	}
	return dir, nil
}

// Run runs Helm against the cluster of the kubeconfig, or none where that is empty, and
// returns what it prints. The error has what it complains of.
func (h Helm) Run(ctx context.Context, kubeconfig string, args ...string) (string, error) {
	home, err := os.MkdirTemp("", "helm-")
	if err != nil {
		return "", fmt.Errorf("make a home for helm: %w", err)
	}
	defer os.RemoveAll(home)
	if kubeconfig == "" {
		kubeconfig = filepath.Join(home, "none")
	}
	cmd := exec.CommandContext(ctx, h.Path, args...)
	// Nothing of whoever runs the tests: no plugins, no cluster, no repositories.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig,
		"HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "HELM_PLUGINS="+home)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w\n%s", h.Name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()+stdout.String()))
	}
	return stdout.String(), nil
}

// Release says what is rendered.
type Release struct {
	Name, Namespace string         // spot-handler by default, both
	Values          map[string]any // over those of the chart
	Chart           string         // directory; deploy/chart of the checkout by default
}

// args are those of template, install and upgrade, with the values in a file of dir.
func (r Release) args(dir string) ([]string, error) {
	chart := r.Chart
	if chart == "" {
		var err error
		if chart, err = Dir(); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(r.Values)
	if err != nil {
		return nil, fmt.Errorf("write values: %w", err)
	}
	file := filepath.Join(dir, "values.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, fmt.Errorf("write values: %w", err)
	}
	return []string{cmp.Or(r.Name, "spot-handler"), chart, "--namespace=" + cmp.Or(r.Namespace, "spot-handler"), "--values=" + file}, nil
}

// Template renders the chart without a cluster, as text.
func (h Helm) Template(ctx context.Context, r Release, more ...string) (string, error) {
	return h.with(ctx, "", "template", r, more...)
}

// Install installs the chart and does not wait for its pods.
func (h Helm) Install(ctx context.Context, kubeconfig string, r Release, more ...string) (string, error) {
	return h.with(ctx, kubeconfig, "install", r, append(more, "--create-namespace")...)
}

// Upgrade upgrades what Install has installed.
func (h Helm) Upgrade(ctx context.Context, kubeconfig string, r Release, more ...string) (string, error) {
	return h.with(ctx, kubeconfig, "upgrade", r, more...)
}

func (h Helm) with(ctx context.Context, kubeconfig, command string, r Release, more ...string) (string, error) {
	dir, err := os.MkdirTemp("", "values-")
	if err != nil {
		return "", fmt.Errorf("write values: %w", err)
	}
	defer os.RemoveAll(dir)
	args, err := r.args(dir)
	if err != nil {
		return "", err
	}
	return h.Run(ctx, kubeconfig, append(append([]string{command}, args...), more...)...)
}

// Render renders the chart without a cluster, as objects.
func (h Helm) Render(ctx context.Context, r Release) ([]unstructured.Unstructured, error) {
	text, err := h.Template(ctx, r)
	if err != nil {
		return nil, err
	}
	return Objects(text)
}

// Objects reads the documents of a YAML stream.
func Objects(text string) ([]unstructured.Unstructured, error) {
	var found []unstructured.Unstructured
	for doc := range strings.SplitSeq("\n"+text, "\n---") {
		var object map[string]any
		// Strict: a key that is there twice is an error.
		if err := yaml.UnmarshalStrict([]byte(doc), &object); err != nil {
			return nil, fmt.Errorf("read %q: %w", doc, err)
		}
		if len(object) > 0 {
			found = append(found, unstructured.Unstructured{Object: object})
		}
	}
	return found, nil
}

// MonitoringCRDs are the files of the Prometheus Operator's custom resource definitions,
// from its Go module, which e2e/chart/crds pins. Nothing of it is compiled.
func MonitoringCRDs(ctx context.Context) ([]string, error) {
	checkout, err := assets.Checkout()
	if err != nil {
		return nil, err
	}
	dir, err := assets.ModuleDir(ctx, filepath.Join(checkout, "e2e", "chart", "crds"), "github.com/prometheus-operator/prometheus-operator")
	if err != nil {
		return nil, fmt.Errorf("find the CRDs of the Prometheus Operator: %w", err)
	}
	var files []string
	for _, kind := range []string{"podmonitors", "servicemonitors", "prometheusrules"} {
		files = append(files, filepath.Join(dir, "example", "prometheus-operator-crd", "monitoring.coreos.com_"+kind+".yaml"))
	}
	return files, nil
}
