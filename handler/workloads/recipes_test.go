package workloads

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"spot-handler/drain/plan"
)

// recipe runs the Python of a recipe, followed by more, with the stand-ins in place of what they
// imports and calls. It returns the address where it listens, and what it says.
func recipe(t *testing.T, heading, more string, local *strings.Replacer, env ...string) (address string, out <-chan string) {
	t.Helper()
	address = freeAddress(t)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	receiver := example(t, "workloads.md", "## Receivers", "python")
	if !strings.Contains(receiver, `("", 8080)`) {
		t.Fatal("the receiver does not listen on port 8080")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"receiver.py": strings.Replace(receiver, `("", 8080)`, `("127.0.0.1", `+port+`)`, 1),
		"recipe.py":   local.Replace(example(t, "recipes.md", heading, "python")) + more,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	standins, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	return address, start(t, dir, []string{"python3", "recipe.py"}, append(env, "PYTHONDONTWRITEBYTECODE=1",
		"PYTHONPATH="+filepath.Join(standins, "standins"), "PATH="+filepath.Join(standins, "bin")+":"+os.Getenv("PATH"))...)
}

// Ray is notified to drain the receiver's own node, in the words of its command, by when the pod is evicted.
func TestRecipeForRay(t *testing.T) {
	t.Parallel()
	address, out := recipe(t, "## Ray", "", strings.NewReplacer())
	for range 2 { // as when the deadline comes earlier
		if when, result := tell(t, address); when != "" || result != resultDelivered {
			t.Errorf("%q, %s", when, result)
		}
		var seconds int
		line := waitFor(t, out, "drains ")
		if _, err := fmt.Sscanf(line, "drains DRAIN_NODE_REASON_PREEMPTION %d", &seconds); err != nil || seconds < 40 || seconds > 60 {
			t.Errorf("it says %q: %v", line, err)
		}
	}
}

// One rank of two is notified, then the other. Each time both save at the same step, and once.
func TestRecipeForTorchrun(t *testing.T) {
	t.Parallel()
	train, err := os.ReadFile(filepath.Join("testdata", "train.py"))
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(freeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	var addresses []string
	var outs []<-chan string
	for rank := range 2 { // one in each pod
		address, out := recipe(t, "## torchrun", string(train), strings.NewReplacer(), fmt.Sprintf("RANK=%d", rank), "LOCAL_RANK=0", "WORLD_SIZE=2",
			"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port)
		addresses, outs = append(addresses, address), append(outs, out)
	}
	for i := range 2 {
		if when, result := tell(t, addresses[i]); when != "" || result != resultDelivered {
			t.Errorf("%q, %s", when, result)
		}
		if first, second := waitFor(t, outs[0], "saved "), waitFor(t, outs[1], "saved "); first != second {
			t.Errorf("one rank %q, the other %q", first, second)
		}
	}
}

// A runner without a job goes at once, and one with a job last.
func TestRecipeForGitHubsRunners(t *testing.T) {
	t.Parallel()
	job := t.TempDir()
	local := strings.NewReplacer("/run/job", job)
	address, _ := recipe(t, "## GitHub's runners", "", local)
	if when, _ := tell(t, address); when != plan.WhenNow {
		t.Errorf("%q without a job", when)
	}
	hook := local.Replace(example(t, "recipes.md", "## GitHub's runners", "sh"))
	for range start(t, job, []string{"sh", "-e", "-c", hook}) { // until it has ended
	}
	if when, _ := tell(t, address); when != plan.WhenLast {
		t.Errorf("%q with a job", when)
	}
}

// waitFor returns the first line that begins so.
func waitFor(t *testing.T, out <-chan string, beginning string) string {
	t.Helper()
	var lines []string
	for timeout := time.After(time.Minute); ; {
		select {
		case line, ok := <-out:
			if lines = append(lines, line); strings.HasPrefix(line, beginning) {
				return line
			}
			if !ok {
				t.Fatalf("it says %q and ends", lines)
			}
		case <-timeout:
			t.Fatalf("it says only %q", lines)
		}
	}
}

// The pod of the manual has the fields that Kubernetes knows, and its times fit into a notice.
func TestPodOfTheManual(t *testing.T) {
	var web corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(example(t, "loadbalancers.md", "# Load balancers", "yaml")), &web); err != nil {
		t.Fatal(err)
	}
	const stop = 15 * time.Second // after SIGTERM
	grace := time.Duration(*web.Spec.TerminationGracePeriodSeconds) * time.Second
	sleep := time.Duration(web.Spec.Containers[0].Lifecycle.PreStop.Sleep.Seconds) * time.Second
	if grace < sleep+stop || grace >= 110*time.Second {
		t.Errorf("a grace period of %s, a sleep of %s, then %s", grace, sleep, stop)
	}
}
