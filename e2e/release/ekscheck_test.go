package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"spot-handler/e2e/foreign"
)

// eksCheck runs deploy/eks-check with these programs first in the PATH, and returns all that it says.
func eksCheck(t *testing.T, programs map[string]string, env []string, args ...string) (said string, err error) {
	t.Helper()
	bin := t.TempDir()
	for name, text := range programs {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(checkout(t), "deploy", "eks-check"), args...)
	cmd.Env = append(append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH")), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// printed are the commands that the script prints, by their first words.
func printed(said string) (found []string) {
	for _, m := range regexp.MustCompile(`(?m)^\$ (\S+ \S+(?: [a-z]\S+)?)`).FindAllStringSubmatch(said, -1) {
		found = append(found, m[1])
	}
	return found
}

// A dry run prints every step, and calls nothing.
func TestEKSCheckDryRun(t *testing.T) {
	fails := map[string]string{}
	for _, program := range []string{"aws", "kubectl", "helm", "spot-handler"} {
		fails[program] = "echo called >&2; exit 1"
	}
	report := filepath.Join(t.TempDir(), "page.html")
	said, err := eksCheck(t, fails, nil, "--pool=batch", "--image=registry.example.com/spot-handler:v1", "--report="+report, "--dry-run")
	if err != nil || strings.Contains(said, "called") {
		t.Errorf("%v\n%s", err, said)
	}
	if _, err := os.Stat(report); err == nil {
		t.Error("a dry run leaves a page")
	}
	said = strings.Join(printed(said), "\n")
	for _, want := range []string{
		"helm install", "spot-handler audit", "spot-handler rehearse", "aws iam create-role", "aws fis create-experiment-template",
		"aws fis start-experiment", "spot-handler observe", "aws fis delete-experiment-template", "aws iam delete-role", "helm uninstall", "kubectl delete namespace",
	} {
		at := strings.Index(said, want)
		if at < 0 {
			t.Fatalf("no %q, or not in this order:\n%s", want, said)
		}
		said = said[at:]
	}
	for _, wrong := range [][]string{{}, {"--pool=batch"}, {"--pool=batch", "--image=untagged"}, {"--what"}} {
		if said, err := eksCheck(t, nil, nil, wrong...); err == nil || strings.Contains(said, "$ ") {
			t.Errorf("%q: %v\n%s", wrong, err, said)
		}
	}
}

// AWS is moto, through AWS's own command line. moto has no experiments, so those two calls are
// answered here; in another run the first of them fails. Either way nothing is left in AWS or in
// the cluster, and the page says what happened.
func TestEKSCheckCallsAWS(t *testing.T) {
	if err := exec.Command("python3", "-c", "import moto.fis, moto.server").Run(); err != nil {
		t.Skipf("no foreign emulator to call: moto with FIS is not installed: %v", err)
	}
	aws, err := exec.LookPath("aws")
	if err != nil {
		t.Skipf("no calls of AWS: its command line is not installed: %v", err)
	}
	endpoint, _, _ := strings.Cut(foreign.Start(t, exec.Command("python3", filepath.Join("..", "asgemu", "testdata", "foreign", "serve.py"))), " ")
	env := []string{
		"AWS_ENDPOINT_URL=" + endpoint, "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test", "AWS_REGION=", "AWS_DEFAULT_REGION=eu-west-1", "AWS_PAGER=", "SETTLE=0",
	}
	for name, tt := range map[string]struct {
		start, then string // the answer to start-experiment, and what follows
		code        int
	}{
		"to the end":             {"echo EXP1", "$ spot-handler observe node-2 ", 0},
		"without the experiment": {"echo AccessDenied >&2; exit 254", "$ aws fis delete-experiment-template", 254},
	} {
		programs := map[string]string{
			"aws": `case "$1 $2" in "fis start-experiment") ` + tt.start + `;; "fis get-experiment") echo completed;; *) exec ` + aws + ` "$@";; esac`,
			"kubectl": `case "$*" in *nodepool=batch*) echo node-1 node-2;; *providerID*) echo aws:///eu-west-1a/i-0123456789abcdef0;;
				"get clusterrolebindings"*);; *) echo did "$@";; esac`,
			"helm": "echo did", "spot-handler": "echo '<did>'", "sleep": "",
		}
		report := filepath.Join(t.TempDir(), "page.html")
		said, err := eksCheck(t, programs, env, "--pool=batch", "--image=registry.example.com/spot-handler:v1", "--report="+report)
		code := 0
		if failed, ok := err.(*exec.ExitError); ok {
			code = failed.ExitCode()
		}
		if code != tt.code {
			t.Errorf("%s: exit code %d, want %d\n%s", name, code, tt.code, said)
		}
		page, err := os.ReadFile(report)
		if err != nil || !strings.Contains(string(page), "&lt;did>") || !strings.Contains(string(page), "$ aws fis delete-experiment-template") {
			t.Errorf("%s: the page is %v\n%s", name, err, page)
		}
		for _, want := range []string{tt.then, "i-0123456789abcdef0", "rehearse node-1 ", "flags.managedNodes=karpenter.sh/nodepool=batch", "helm uninstall", "kubectl delete namespace", "arn:aws:iam::123456789012:role/spot-handler-eks-check"} {
			if !strings.Contains(said, want) {
				t.Errorf("%s: no %q\n%s", name, want, said)
			}
		}
		// moto answers a deletion with what it has deleted.
		if _, deleted, _ := strings.Cut(said, "$ aws fis delete-experiment-template"); !strings.Contains(deleted, `"actionId": "aws:ec2:send-spot-instance-interruptions"`) {
			t.Errorf("%s: the template has not been deleted\n%s", name, said)
		}
		cmd := exec.CommandContext(t.Context(), aws, "iam", "get-role", "--role-name=spot-handler-eks-check")
		cmd.Env = append(os.Environ(), env...)
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "NoSuchEntity") {
			t.Errorf("%s: the role has not been deleted: %v\n%s", name, err, out)
		}
	}
}
