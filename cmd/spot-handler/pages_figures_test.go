package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	quantity "k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// readFromRoot returns a file's text, by its path from the root of the repository.
func readFromRoot(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The front page and the page of figures have the figures of the picture, and the manual's words.
func TestFiguresOfThePicture(t *testing.T) {
	var picture struct {
		Lines []struct{ Name, Figure string }
	}
	if err := json.Unmarshal([]byte(readFromRoot(t, "e2e/plots/ready-pods.json")), &picture); err != nil {
		t.Fatal(err)
	}
	figures := map[string]string{}
	for _, l := range picture.Lines {
		figures[l.Name], _, _ = strings.Cut(l.Figure, " ")
	}
	readme, page := readFromRoot(t, "README.md"), readFromRoot(t, "deploy/docs/performance.md")
	for name, where := range map[string]struct{ text, before string }{
		"evict at once, as kubectl drain does":    {page, "| cordon and evict at once, as `kubectl drain` does | "},
		"replacement requested first":             {page, "| `--drain-strategy=at-once`: replacement requested first | "},
		"hold for the new node":                   {page, "| `--drain-strategy=hold` | "},
		"surge (default): replacement pods first": {page, "| surge, the default | **"},
	} {
		if figures[name] == "" || !strings.Contains(where.text, where.before+figures[name]) {
			t.Errorf("%s: the picture has %q; the page has no %q", name, figures[name], where.before+figures[name])
		}
	}
	atOnce := figures["evict at once, as kubectl drain does"]
	if want := "and evicting at once " + atOnce + "."; !strings.Contains(readme, want) {
		t.Errorf("README.md lacks %q", want)
	}
}

// What the front page says of costs is what the chart asks for, what the flags are by default, and how
// often two replicas of queue poll.
func TestCostsOfTheFrontPage(t *testing.T) {
	var values struct {
		IMDS, Controller struct {
			Replicas  int64
			Resources struct{ Requests map[string]quantity.Quantity }
		}
	}
	if err := yaml.Unmarshal([]byte(readFromRoot(t, "deploy/chart/values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	const nodes = 800
	marks, drains := values.IMDS.Resources.Requests, values.Controller.Resources.Requests
	cpu, memory := marks["cpu"], marks["memory"]
	drainsCPU, drainsMemory := drains["cpu"], drains["memory"]
	var cfg settings
	cfg.mode = modeDrain
	cfg.define()
	polls := 2 * 12 * 60 * 24 * 30 // a minute's, as the page about sizing has them
	readme := strings.Join(strings.Fields(readFromRoot(t, "README.md")), " ")
	for _, want := range []string{
		fmt.Sprintf("`imds` requests %d vCPU and %d GiB in all", cpu.MilliValue()*nodes/1000, memory.Value()*nodes>>30),
		fmt.Sprintf("`queue` requests %.1f vCPU and %d MiB",
			float64(drainsCPU.MilliValue()*values.Controller.Replicas)/1000, drainsMemory.Value()*values.Controller.Replicas>>20),
		fmt.Sprintf("for %.0f minutes (`--calm`)", cfg.calm.Minutes()),
		fmt.Sprintf("polls SQS %s million times a month", map[int]string{1: "a", 2: "two"}[polls/1_000_000]),
	} {
		if !strings.Contains(readme, want) {
			t.Errorf("README.md lacks %q", want)
		}
	}
}

// The page about AWS has the lengths that the templates allow.
func TestLengthsOfClusterNames(t *testing.T) {
	limit := func(file, pattern string) string {
		found := regexp.MustCompile(pattern).FindStringSubmatch(readFromRoot(t, file))
		if found == nil {
			t.Fatalf("%s has no %s", file, pattern)
		}
		return found[1]
	}
	cloudFormation := limit("deploy/cloudformation/spot-handler.yaml", `ClusterName:\n(?:    .*\n)*?    MaxLength: (\d+)`)
	terraform := limit("deploy/terraform/variables.tf", `if the cluster's name has at most (\d+)`)
	page := strings.Join(strings.Fields(readFromRoot(t, "deploy/aws.md")), " ")
	if want := "The cluster's name can have " + cloudFormation + " characters with CloudFormation, and " + terraform + " with Terraform"; !strings.Contains(page, want) {
		t.Errorf("aws.md lacks %q", want)
	}
}
