package assets

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// program is one executable.
type program struct {
	name string
	// pkg is its main package, in a module that go.mod pins.
	pkg string
	// replaceable programs are taken from KUBEBUILDER_ASSETS where that has them: the
	// three that its users expect it to provide.
	replaceable bool
}

// KubernetesVariable and KarpenterVariable choose older versions of the two, such as 1.33, among those
// that have pins.
const (
	KubernetesVariable = "SPOT_HANDLER_E2E_KUBERNETES"
	KarpenterVariable  = "SPOT_HANDLER_E2E_KARPENTER"
)

// pins is the module of the newest versions. Below it are modules of older ones.
const pins = "e2e/controlplane/binaries"

// controlPlane is in parts whose versions are chosen separately. Those of the newest versions have
// one key in the cache, as they have the same pins and flags.
var controlPlane = []collection{
	{
		module: pins, prefix: "binaries-", flags: linkFlags, takes: "7 minutes", of: kubernetesModule, variable: KubernetesVariable,
		programs: []program{
			{name: "kube-apiserver", pkg: "k8s.io/kubernetes/cmd/kube-apiserver", replaceable: true},
			{name: "kube-controller-manager", pkg: "k8s.io/kubernetes/cmd/kube-controller-manager"},
			{name: "kube-scheduler", pkg: "k8s.io/kubernetes/cmd/kube-scheduler"},
		},
	},
	{
		module: pins, prefix: "binaries-", flags: linkFlags, takes: "2 minutes",
		programs: []program{
			{name: "etcd", pkg: "go.etcd.io/etcd/server/v3", replaceable: true},
			{name: "kwok", pkg: "sigs.k8s.io/kwok/cmd/kwok"},
			{name: "kubectl", pkg: "k8s.io/kubernetes/cmd/kubectl", replaceable: true},
		},
	},
	{
		module: pins, prefix: "binaries-", flags: linkFlags, takes: "a minute", of: karpenterModule, variable: KarpenterVariable, crds: true,
		programs: []program{{name: "karpenter", pkg: "sigs.k8s.io/karpenter/kwok"}},
	},
}

const kubernetesModule = "k8s.io/kubernetes"

// karpenterModule brings its CRDs along, in these directories.
const karpenterModule = "sigs.k8s.io/karpenter"

var crdDirectories = []string{"pkg/apis/crds", "kwok/apis/crds"}

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
			c.programs = slices.Clone(c.programs)
			for i := range c.programs {
				c.programs[i].replaceable = false // by a version that nobody has asked for
			}
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
	for _, c := range controlPlane {
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

// linkFlags leaves symbols and DWARF out, which halves the programs, and tells
// the Kubernetes ones their version, which `make` does in a release: without it
// they say v0.0.0-master and clients refuse them.
func linkFlags(moduleDir string) (string, error) {
	pin, err := pinOf(moduleDir, kubernetesModule)
	if err != nil {
		return "", err
	}
	if pin == nil {
		return "-s -w", nil // pins of Karpenter alone
	}
	const variable = "-X k8s.io/component-base/version."
	return fmt.Sprintf("-s -w %[1]sgitVersion=%[2]s %[1]sgitMajor=%[3]s %[1]sgitMinor=%[4]s", variable, pin[1], pin[2], pin[3]), nil
}

// Checkout finds the root of this module: upwards from the working directory,
// as that is right for a test binary and for `go run`, else from where this file
// was compiled.
func Checkout() (string, error) {
	var starts []string
	if dir, err := os.Getwd(); err == nil {
		starts = append(starts, dir)
	}
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		starts = append(starts, filepath.Dir(file))
	}
	for _, dir := range starts {
		for {
			if isCheckout(dir) {
				return dir, nil
			}
			parent := filepath.Dir(dir)
			if parent == dir {
				break
			}
			dir = parent
		}
	}
	return "", errors.New("find the checkout of spot-handler: no go.mod of it above the working directory")
}

func isCheckout(dir string) bool {
	file, err := os.Open(filepath.Join(dir, "go.mod"))
	if err != nil {
		return false
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if name, ok := strings.CutPrefix(lines.Text(), "module "); ok {
			return strings.TrimSpace(name) == "spot-handler"
		}
	}
	return false
}
