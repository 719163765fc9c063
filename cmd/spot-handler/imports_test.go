package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Imports point one way: sources and drain know nothing of each other nor of the
// handler, and only the leaves are everybody's. The generated clientset stays out, as
// cluster.go says.
func TestImportsPointDown(t *testing.T) {
	allowed := map[string][]string{
		"spot-handler/cmd/spot-handler/internal/console":  {},
		"spot-handler/cmd/spot-handler/internal/cluster":  {"spot-handler/drain/plan"},
		"spot-handler/cmd/spot-handler/internal/audit":    {"spot-handler/cmd/spot-handler/internal/cluster", "spot-handler/cmd/spot-handler/internal/console", "spot-handler/drain/plan", "spot-handler/drain/rewatch", "spot-handler/handler/interruption", "spot-handler/handler/marks", "spot-handler/handler/nodes", "spot-handler/handler/offerings", "spot-handler/handler/provisioner", "spot-handler/handler/provisioner/karpenter", "spot-handler/handler/provisioner/room", "spot-handler/handler/readcache"},
		"spot-handler/cmd/spot-handler/internal/status":   {"spot-handler/cmd/spot-handler/internal/cluster", "spot-handler/cmd/spot-handler/internal/console", "spot-handler/drain/plan", "spot-handler/drain/rewatch", "spot-handler/drain/watch", "spot-handler/handler/interruption", "spot-handler/handler/marks", "spot-handler/handler/nodes", "spot-handler/handler/notify", "spot-handler/handler/offerings", "spot-handler/handler/provisioner", "spot-handler/handler/provisioner/karpenter", "spot-handler/handler/provisioner/room", "spot-handler/handler/readcache", "spot-handler/handler/turns"},
		"spot-handler/cmd/spot-handler/internal/observe":  {"spot-handler/cmd/spot-handler/internal/cluster", "spot-handler/cmd/spot-handler/internal/console", "spot-handler/cmd/spot-handler/internal/plan", "spot-handler/cmd/spot-handler/internal/status", "spot-handler/drain", "spot-handler/drain/plan", "spot-handler/drain/rewatch", "spot-handler/drain/watch", "spot-handler/handler/dryrun", "spot-handler/handler/interruption", "spot-handler/handler/marks", "spot-handler/handler/nodes", "spot-handler/handler/notify", "spot-handler/handler/offerings", "spot-handler/handler/provisioner", "spot-handler/handler/provisioner/karpenter", "spot-handler/handler/provisioner/room", "spot-handler/handler/turns", "spot-handler/handler/readcache"},
		"spot-handler/cmd/spot-handler/internal/report":   {"spot-handler/cmd/spot-handler/internal/cluster", "spot-handler/cmd/spot-handler/internal/console", "spot-handler/cmd/spot-handler/internal/observe", "spot-handler/cmd/spot-handler/internal/plan", "spot-handler/cmd/spot-handler/internal/status", "spot-handler/drain", "spot-handler/drain/plan", "spot-handler/drain/rewatch", "spot-handler/drain/watch", "spot-handler/handler/dryrun", "spot-handler/handler/interruption", "spot-handler/handler/marks", "spot-handler/handler/nodes", "spot-handler/handler/notify", "spot-handler/handler/offerings", "spot-handler/handler/provisioner", "spot-handler/handler/provisioner/karpenter", "spot-handler/handler/provisioner/room", "spot-handler/handler/turns", "spot-handler/handler/readcache"},
		"spot-handler/cmd/spot-handler/internal/plan":     {"spot-handler/cmd/spot-handler/internal/cluster", "spot-handler/cmd/spot-handler/internal/console", "spot-handler/drain", "spot-handler/drain/plan", "spot-handler/drain/rewatch", "spot-handler/drain/watch", "spot-handler/handler/dryrun", "spot-handler/handler/interruption", "spot-handler/handler/marks", "spot-handler/handler/nodes", "spot-handler/handler/offerings", "spot-handler/handler/provisioner", "spot-handler/handler/provisioner/karpenter", "spot-handler/handler/provisioner/room", "spot-handler/handler/readcache"},
		"spot-handler/cmd/spot-handler/internal/rehearse": {"spot-handler/cmd/spot-handler/internal/plan", "spot-handler/cmd/spot-handler/internal/cluster", "spot-handler/cmd/spot-handler/internal/console", "spot-handler/drain", "spot-handler/drain/plan", "spot-handler/drain/rewatch", "spot-handler/drain/watch", "spot-handler/handler/dryrun", "spot-handler/handler/interruption", "spot-handler/handler/marks", "spot-handler/handler/nodes", "spot-handler/handler/offerings", "spot-handler/handler/provisioner", "spot-handler/handler/provisioner/karpenter", "spot-handler/handler/provisioner/room", "spot-handler/handler/readcache"},
		"spot-handler/cmd/spot-handler/internal/migrate":  {"spot-handler/handler/interruption"},
		"spot-handler/handler/interruption":               {},
		"spot-handler/handler/readcache":                  {},
		"spot-handler/handler/ratelimit":                  {},
		"spot-handler/imds":                               {"spot-handler/handler/awsfault", "spot-handler/handler/interruption"},
		"spot-handler/queue":                              {"spot-handler/handler/awsfault", "spot-handler/handler/interruption", "spot-handler/handler/readcache"},
		"spot-handler/drain/rewatch":                      {},
		"spot-handler/drain/narrow":                       {},
		"spot-handler/drain/plan":                         {},
		"spot-handler/drain/watch":                        {"spot-handler/drain/plan", "spot-handler/drain/rewatch"},
		"spot-handler/drain":                              {"spot-handler/drain/plan", "spot-handler/drain/rewatch", "spot-handler/drain/watch"},
		"spot-handler/handler/awsfault":                   {},
		"spot-handler/drain/fair":                         {},
		"spot-handler/handler/lifecycle":                  {"spot-handler/drain/rewatch", "spot-handler/handler/awsfault", "spot-handler/handler/interruption", "spot-handler/handler/nodes", "spot-handler/handler/readcache"},
		"spot-handler/handler/offerings":                  {"spot-handler/drain/rewatch", "spot-handler/handler/interruption", "spot-handler/handler/nodes"},
		"spot-handler/handler/early":                      {"spot-handler/drain/rewatch", "spot-handler/handler/interruption", "spot-handler/handler/nodes"},
		"spot-handler/handler/workloads":                  {"spot-handler/drain/plan", "spot-handler/handler/interruption", "spot-handler/handler/readcache"},
		"spot-handler/handler/marks":                      {"spot-handler/drain/rewatch", "spot-handler/handler/interruption", "spot-handler/handler/nodes"},
		"spot-handler/handler/turns":                      {"spot-handler/drain/rewatch", "spot-handler/handler/interruption", "spot-handler/handler/nodes"},
		"spot-handler/handler/nodes":                      {"spot-handler/drain/rewatch", "spot-handler/handler/interruption"},
		"spot-handler/handler/notify":                     {"spot-handler/handler/interruption"},
		"spot-handler/handler/webhook":                    {"spot-handler/handler/interruption", "spot-handler/handler/notify"},
		"spot-handler/handler/provisioner":                {"spot-handler/drain/plan", "spot-handler/handler/interruption"},
		"spot-handler/handler/provisioner/karpenter":      {"spot-handler/drain/plan", "spot-handler/drain/rewatch", "spot-handler/handler/interruption", "spot-handler/handler/nodes", "spot-handler/handler/offerings", "spot-handler/handler/provisioner", "spot-handler/handler/provisioner/room", "spot-handler/handler/readcache"},
		"spot-handler/handler/provisioner/asg":            {"spot-handler/drain/plan", "spot-handler/drain/rewatch", "spot-handler/handler/awsfault", "spot-handler/handler/interruption", "spot-handler/handler/nodes", "spot-handler/handler/provisioner"},
		"spot-handler/handler/provisioner/placeholder":    {"spot-handler/drain/plan", "spot-handler/drain/rewatch", "spot-handler/handler/interruption", "spot-handler/handler/nodes", "spot-handler/handler/provisioner", "spot-handler/handler/readcache"},
		"spot-handler/handler/provisioner/room":           {"spot-handler/drain/plan", "spot-handler/drain/rewatch", "spot-handler/handler/interruption", "spot-handler/handler/nodes", "spot-handler/handler/provisioner"},
	}
	everybodys := []string{"spot-handler/drain/fair", "spot-handler/drain/narrow", "spot-handler/handler/interruption", "spot-handler/handler/ratelimit"}
	for pkg, want := range allowed {
		for _, dep := range deps(t, pkg) {
			if strings.HasPrefix(dep, "spot-handler/") && dep != pkg && !slices.Contains(append(everybodys, want...), dep) {
				t.Errorf("%s imports %s", pkg, dep)
			}
		}
	}
	for _, dep := range deps(t, "spot-handler/cmd/spot-handler") {
		if strings.HasPrefix(dep, "k8s.io/client-go/kubernetes") {
			t.Errorf("the daemon imports %s", dep)
		}
		if strings.HasPrefix(dep, "spot-handler/e2e") {
			t.Errorf("the daemon imports %s", dep)
		}
		// resource.go and notify's recorder say what these cost.
		if dep == "k8s.io/client-go/gentype" || dep == "k8s.io/client-go/tools/record" || dep == "k8s.io/client-go/testing" {
			t.Errorf("the daemon imports %s", dep)
		}
	}
}

// Most of what an idle process holds in memory are pages of the program's file, on each spot node. So
// the program has a limit; a dependency that needs more has to be worth it.
func TestProgramIsSmall(t *testing.T) {
	const limit = 36 << 20 // 33.5 MiB were enough when this was set, of which 25 were resident
	program := filepath.Join(t.TempDir(), "spot-handler")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, ".") // as in a release
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	info, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > limit {
		t.Errorf("the program has %d bytes, want at most %d", info.Size(), limit)
	}
}

func deps(t *testing.T, pkg string) []string {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", pkg).Output()
	if err != nil {
		t.Fatalf("list imports of %s: %v", pkg, err)
	}
	return strings.Fields(string(out))
}
