package release

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// A tag of somebody else's repository can be moved: actions are named by commit, with the
// version beside it. And whoever runs a workflow gets no more rights than it says.
func TestWorkflowsArePinned(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(checkout(t), ".github", "workflows", "*.yaml"))
	if err != nil || len(files) < 2 {
		t.Fatalf("workflows %v: %v", files, err)
	}
	uses := regexp.MustCompile(`(?m)^\s*(?:- )?uses: (.*)$`)
	pinned := regexp.MustCompile(`^[\w-]+(/[\w-]+)+@[0-9a-f]{40} # v\d+\.\d+\.\d+$|^\./`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range uses.FindAllStringSubmatch(string(text), -1) {
			if !pinned.MatchString(m[1]) {
				t.Errorf("%s: %s is not pinned", filepath.Base(file), m[1])
			}
		}
		if !strings.Contains(string(text), "\npermissions:") {
			t.Errorf("%s gives all rights: no permissions at its top", filepath.Base(file))
		}
	}
}

// Every module's dependencies are kept up to date by Dependabot, but for those whose versions are chosen by hand.
func TestDependabotKnowsTheModules(t *testing.T) {
	root := checkout(t)
	text, err := os.ReadFile(filepath.Join(root, ".github", "dependabot.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Updates []struct {
			Ecosystem   string `json:"package-ecosystem"`
			Directories []string
		}
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, u := range config.Updates {
		for _, dir := range u.Directories {
			known[strings.TrimPrefix(dir, "/")] = u.Ecosystem == "gomod"
		}
	}
	out, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "go.mod", "*/go.mod").Output()
	if err != nil {
		t.Fatal(err)
	}
	chosen := regexp.MustCompile(`^e2e/(controlplane/binaries|foreign/binaries|chart/crds)(/|$)`)
	for _, file := range strings.Fields(string(out)) {
		dir := strings.TrimSuffix(strings.TrimSuffix(file, "go.mod"), "/")
		if known[dir] == chosen.MatchString(dir) {
			t.Errorf("module in /%s: Dependabot has it %t, chosen by hand %t", dir, known[dir], chosen.MatchString(dir))
		}
		delete(known, dir)
	}
	if len(known) > 0 {
		t.Errorf("Dependabot looks at %v, which are no modules", known)
	}
}

// workflow is what a test looks at in one.
type workflow struct {
	Permissions map[string]string
	Jobs        map[string]struct {
		Needs       any
		Environment string
		Permissions map[string]string
		Uses        string
		Steps       []struct {
			Name, Uses, Run string
			With            map[string]any
		}
	}
}

func releaseWorkflow(t *testing.T) workflow {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(checkout(t), ".github", "workflows", "release.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var w workflow
	if err := yaml.Unmarshal(text, &w); err != nil {
		t.Fatal(err)
	}
	return w
}

// Each job may do what it is for. What signs, or writes the release, runs no code of a checkout, and
// what runs such code can do neither; nothing that CI's jobs might have left in a cache is used.
func TestReleaseRights(t *testing.T) {
	w := releaseWorkflow(t)
	want := map[string]map[string]string{
		"commit":  {"contents": "read"},
		"test":    {"contents": "read"},
		"image":   {"contents": "read", "packages": "write"},
		"files":   {"contents": "read", "packages": "write"},
		"sign":    {"packages": "write", "id-token": "write", "attestations": "write"},
		"release": {"contents": "write"},
	}
	got := map[string]map[string]string{}
	for name, job := range w.Jobs {
		got[name] = job.Permissions
		if logsIn := job.Permissions["packages"] != ""; logsIn != (job.Environment == "release") {
			t.Errorf("job %s: environment %q", name, job.Environment)
		}
		trusted := job.Permissions["id-token"] != "" || job.Permissions["contents"] == "write"
		for _, step := range job.Steps {
			action, _, _ := strings.Cut(step.Uses, "@")
			switch {
			case action == "actions/checkout" && (trusted || step.With["persist-credentials"] != false),
				strings.HasPrefix(action, "actions/cache"),
				action == "actions/setup-go" && (trusted || step.With["cache"] != false),
				action == "docker/setup-buildx-action" && (trusted || step.With["cache-binary"] != false),
				strings.HasPrefix(fmt.Sprint(step.With["cache-from"]), "type="),
				strings.Contains(step.Run, "cosign") && job.Permissions["id-token"] == "":
				t.Errorf("job %s: step %s%s with %v, permissions %v", name, step.Name, step.Uses, step.With, job.Permissions)
			case action == "docker/login-action":
				if password := step.With["password"]; password != "${{ vars.REGISTRY_LOGIN == 'github' && secrets.GITHUB_TOKEN || secrets.REGISTRY_PASSWORD }}" {
					t.Errorf("job %s logs in with %s", name, password)
				}
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || len(w.Permissions) != 0 {
		t.Errorf("at the top %v, of the jobs (-want +got):\n%s", w.Permissions, diff)
	}
	var after func(name string) bool // the check of the commit
	after = func(name string) bool {
		if name == "commit" {
			return true
		}
		needs, ok := w.Jobs[name].Needs.([]any)
		if one, is := w.Jobs[name].Needs.(string); is {
			needs, ok = []any{one}, true
		}
		return ok && slices.ContainsFunc(needs, func(n any) bool { return after(n.(string)) })
	}
	for name := range w.Jobs {
		if !after(name) {
			t.Errorf("job %s does not wait for the check of the commit", name)
		}
	}
}

// Of a tag on a commit that main does not have, nothing is released.
func TestOnlyMainIsReleased(t *testing.T) {
	steps := releaseWorkflow(t).Jobs["commit"].Steps
	check := steps[len(steps)-1].Run
	origin, clone := t.TempDir(), t.TempDir()
	run := func(dir, command string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", command)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GITHUB_REF_NAME=v1.2.3")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	commit := `git -c user.name=a -c user.email=a@example.com commit --quiet --allow-empty -m `
	if out, err := run(origin, `git init --quiet -b main . && `+commit+`one && git tag -m on v1.0.0 2>/dev/null || git tag v1.0.0; `+commit+`two; git checkout --quiet -b aside; `+commit+`three; git tag v1.2.3; git checkout --quiet main`); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := run(clone, `git clone --quiet '`+origin+`' .`); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for tag, released := range map[string]bool{"v1.0.0": true, "v1.2.3": false} {
		out, err := run(clone, `export GITHUB_SHA=$(git rev-parse `+tag+"); "+check)
		if (err == nil) != released || !released && !strings.Contains(out, "is not a commit of main") {
			t.Errorf("%s: %v, %s", tag, err, out)
		}
	}
}

// The image that builds is one by digest: the one that is configured, or the Dockerfile's as it is now.
func TestBuilderIsPinned(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	var pin string
	for _, step := range releaseWorkflow(t).Jobs["image"].Steps {
		if strings.Contains(step.Name, "Pin") {
			pin = step.Run
		}
		if strings.HasPrefix(step.Uses, "docker/build-push-action@") && !strings.Contains(fmt.Sprint(step.With["build-args"]), "BUILDER=${{ steps.builder.outputs.name }}\n") {
			t.Errorf("it is built with %v", step.With["build-args"])
		}
	}
	dockerfile, err := os.ReadFile(filepath.Join(checkout(t), "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`(?m)^ARG BUILDER=(.*)$`).FindStringSubmatch(string(dockerfile))[1]
	for _, tt := range []struct{ configured, answer, want string }{
		{"", digest, named + "@" + digest},
		{"registry.example.com/go:1", digest, "registry.example.com/go:1@" + digest},
		{"registry.example.com/go:1@" + digest, "", "registry.example.com/go:1@" + digest},
		{"registry.example.com/go:1@sha256:0a", "", ""},
		{"", "", ""},
	} {
		dir := t.TempDir()
		docker := "#!/bin/sh\necho '\"" + tt.answer + "\"'\n"
		if err := os.WriteFile(filepath.Join(dir, "docker"), []byte(docker), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "bash", "-eo", "pipefail", "-c", pin)
		cmd.Dir = checkout(t)
		output := filepath.Join(dir, "output")
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "BUILDER="+tt.configured, "GITHUB_OUTPUT="+output)
		said, err := cmd.CombinedOutput()
		got, _ := os.ReadFile(output)
		if name := strings.TrimPrefix(strings.TrimSpace(string(got)), "name="); name != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%q, and the registry says %q: builds in %q, want %q: %v, %s", tt.configured, tt.answer, name, tt.want, err, said)
		}
	}
}
