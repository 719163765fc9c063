package assets

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
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

var controlPlane = collection{
	module: "e2e/controlplane/binaries", prefix: "binaries-", flags: linkFlags, takes: "10 minutes", crds: true,
	programs: []program{
		{name: "kube-apiserver", pkg: "k8s.io/kubernetes/cmd/kube-apiserver", replaceable: true},
		{name: "kube-controller-manager", pkg: "k8s.io/kubernetes/cmd/kube-controller-manager"},
		{name: "kube-scheduler", pkg: "k8s.io/kubernetes/cmd/kube-scheduler"},
		{name: "etcd", pkg: "go.etcd.io/etcd/server/v3", replaceable: true},
		{name: "kwok", pkg: "sigs.k8s.io/kwok/cmd/kwok"},
		{name: "karpenter", pkg: "sigs.k8s.io/karpenter/kwok"},
		{name: "kubectl", pkg: "k8s.io/kubernetes/cmd/kubectl", replaceable: true},
	},
}

// karpenterModule brings its CRDs along, in these directories.
const karpenterModule = "sigs.k8s.io/karpenter"

var crdDirectories = []string{"pkg/apis/crds", "kwok/apis/crds"}

// kubernetesPin finds the version of Kubernetes in go.mod.
var kubernetesPin = regexp.MustCompile(`(?m)^\s*(?:require\s+)?k8s\.io/kubernetes (v(\d+)\.(\d+)\.\S+)`)

// linkFlags leaves symbols and DWARF out, which halves the programs, and tells
// the Kubernetes ones their version, which `make` does in a release: without it
// they say v0.0.0-master and clients refuse them.
func linkFlags(moduleDir string) (string, error) {
	content, err := os.ReadFile(filepath.Join(moduleDir, "go.mod"))
	if err != nil {
		return "", fmt.Errorf("read the pins: %w", err)
	}
	pin := kubernetesPin.FindSubmatch(content)
	if pin == nil {
		return "", fmt.Errorf("find the version of k8s.io/kubernetes in %s", filepath.Join(moduleDir, "go.mod"))
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
