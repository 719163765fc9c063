package assets

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// KubernetesVariable and KarpenterVariable choose other versions of the two, such as 1.33, among those
// that have pins.
const (
	KubernetesVariable = "SPOT_HANDLER_E2E_KUBERNETES"
	KarpenterVariable  = "SPOT_HANDLER_E2E_KARPENTER"
)

const kubernetesModule = "k8s.io/kubernetes"

// karpenterModule brings its CRDs along.
const karpenterModule = "sigs.k8s.io/karpenter"

// chosen is the collection with the pins of the version that its variable asks for.
func (c collection) chosen(checkout string) (collection, error) {
	version := os.Getenv(c.variable)
	if version == "" {
		return c, nil
	}
	dirs, err := filepath.Glob(filepath.Join(checkout, c.module, "*", "go.mod"))
	if err != nil {
		return c, fmt.Errorf("find the pins: %w", err)
	}
	var known []string
	for _, file := range append(dirs, filepath.Join(checkout, c.module, "go.mod")) {
		pin, err := pinOf(filepath.Dir(file), c.of)
		if err != nil {
			return c, err
		}
		if pin == nil {
			continue // it pins the other
		}
		minor := pin[2] + "." + pin[3]
		if known = append(known, minor); minor == version {
			c.module, err = filepath.Rel(checkout, filepath.Dir(file))
			return c, err
		}
	}
	return c, fmt.Errorf("build %s %s, which %s asks for: there are pins only of %s", c.of, version, c.variable, strings.Join(known, ", "))
}

// pinOf finds the version of a module in the go.mod of dir, and the parts of it; nil if it is not
// there.
func pinOf(dir, module string) ([]string, error) {
	content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return nil, fmt.Errorf("read the pins: %w", err)
	}
	return regexp.MustCompile(`(?m)^\s*(?:require\s+)?` + regexp.QuoteMeta(module) + ` (v(\d+)\.(\d+)\.\S+)`).FindStringSubmatch(string(content)), nil
}

// Versions are those of Kubernetes and Karpenter that a control plane has here, such as v1.36.3.
func Versions() (kubernetes, karpenter string, err error) {
	checkout, err := Checkout()
	if err != nil {
		return "", "", err
	}
	versions := map[string]string{}
	for _, c := range sets[ControlPlane] {
		if c.of == "" {
			continue
		}
		chosen, err := c.chosen(checkout)
		if err != nil {
			return "", "", err
		}
		pin, err := pinOf(filepath.Join(checkout, chosen.module), c.of)
		if err != nil || pin == nil {
			return "", "", cmp.Or(err, fmt.Errorf("no pin of %s in %s", c.of, chosen.module))
		}
		versions[c.of] = pin[1]
	}
	return versions[kubernetesModule], versions[karpenterModule], nil
}

// kubernetesFlags leaves symbols and DWARF out, which halves the programs, and tells
// the Kubernetes ones their version, which `make` does in a release: without it
// they say v0.0.0-master and clients refuse them.
func kubernetesFlags(moduleDir string) (string, error) {
	pin, err := pinOf(moduleDir, kubernetesModule)
	if err != nil {
		return "", err
	}
	if pin == nil {
		return stripped, nil // pins of Karpenter alone
	}
	const variable = "-X k8s.io/component-base/version."
	return fmt.Sprintf("-s -w %[1]sgitVersion=%[2]s %[1]sgitMajor=%[3]s %[1]sgitMinor=%[4]s", variable, pin[1], pin[2], pin[3]), nil
}

// stripped leaves symbols and DWARF out, which halves the programs.
const stripped = "-s -w"

// helmFlags give version 3 what `make` gives it in a release: its own version, and
// that of the Kubernetes that it takes for granted where it does not ask a cluster.
// Otherwise that is 1.20. Version 4 reads both from its build information.
func helmFlags(moduleDir string) (string, error) {
	helm, err := pinOf(moduleDir, "helm.sh/helm/v3")
	if err != nil {
		return "", err
	}
	client, err := pinOf(moduleDir, "k8s.io/client-go")
	if err != nil {
		return "", err
	}
	if helm == nil || client == nil {
		return "", fmt.Errorf("no pins of helm.sh/helm/v3 and k8s.io/client-go in %s", moduleDir)
	}
	flags := stripped + " -X helm.sh/helm/v3/internal/version.version=" + helm[1]
	for _, pkg := range []string{"pkg/chartutil", "pkg/lint/rules"} {
		flags += fmt.Sprintf(" -X helm.sh/helm/v3/%[1]s.k8sVersionMajor=1 -X helm.sh/helm/v3/%[1]s.k8sVersionMinor=%[2]s", pkg, client[3])
	}
	return flags, nil
}
