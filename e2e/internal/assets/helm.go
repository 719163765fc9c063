package assets

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// The programs of EnsureHelm: the major version that most people still have, and the
// present one.
const (
	HelmV3 = "helm3"
	HelmV4 = "helm4"
)

// Both are pinned by one module, so that they are built with the same libraries, which
// is most of the work.
var helm = collection{
	module: "e2e/chart/binaries", prefix: "helm-", flags: helmLinkFlags, takes: "3 minutes",
	programs: []program{
		{name: HelmV4, pkg: "helm.sh/helm/v4/cmd/helm"},
		{name: HelmV3, pkg: "helm.sh/helm/v3/cmd/helm"},
	},
}

var (
	helmPin   = regexp.MustCompile(`(?m)^\s*helm\.sh/helm/v3 (v\S+)`)
	clientPin = regexp.MustCompile(`(?m)^\s*k8s\.io/client-go v0\.(\d+)\.`)
)

// helmLinkFlags tell version 3 what `make` tells it in a release: its own version, and
// that of the Kubernetes that it takes for granted where it does not ask a cluster.
// Otherwise that is 1.20. Version 4 reads both from its build information.
func helmLinkFlags(moduleDir string) (string, error) {
	content, err := os.ReadFile(filepath.Join(moduleDir, "go.mod"))
	if err != nil {
		return "", fmt.Errorf("read the pins: %w", err)
	}
	helm, client := helmPin.FindSubmatch(content), clientPin.FindSubmatch(content)
	if helm == nil || client == nil {
		return "", fmt.Errorf("find the versions of helm.sh/helm/v3 and k8s.io/client-go in %s", filepath.Join(moduleDir, "go.mod"))
	}
	flags := fmt.Sprintf("-s -w -X helm.sh/helm/v3/internal/version.version=%s", helm[1])
	for _, pkg := range []string{"pkg/chartutil", "pkg/lint/rules"} {
		flags += fmt.Sprintf(" -X helm.sh/helm/v3/%[1]s.k8sVersionMajor=1 -X helm.sh/helm/v3/%[1]s.k8sVersionMinor=%[2]s", pkg, client[1])
	}
	return flags, nil
}
