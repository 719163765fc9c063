package main

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// pinned are the modules whose programs the tests build, with their versions.
func pinned(t *testing.T) []string {
	t.Helper()
	return pinnedIn(t, "chart/binaries", "foreign/binaries", "controlplane/binaries", "controlplane/binaries/*")
}

func pinnedIn(t *testing.T, directories ...string) (modules []string) {
	t.Helper()
	for _, pattern := range directories {
		files, err := filepath.Glob(filepath.Join("..", "..", "e2e", filepath.FromSlash(pattern), "go.mod"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no pins in %s: %v", pattern, err)
		}
		for _, file := range files {
			text := read(t, file)
			_, tools, _ := strings.Cut(text, "\ntool ")
			tools, required, _ := strings.Cut(tools, "\nrequire ")
			for _, module := range regexp.MustCompile(`(?m)^(?:\t| )?(\S+) (v\S+)`).FindAllStringSubmatch(required, -1) {
				if strings.Contains(tools+"\n", module[1]+"\n") || strings.Contains(tools, module[1]+"/") {
					modules = append(modules, module[1]+" "+module[2])
				}
			}
		}
	}
	return modules
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The versions that are said to be tested are those that the tests build.
func TestVersionsOfManual(t *testing.T) {
	var documented []string
	for _, found := range regexp.MustCompile("`(\\S+/\\S+ v\\S+)`").FindAllStringSubmatch(sectionOf(t, "## Versions"), -1) {
		documented = append(documented, found[1])
	}
	built := pinned(t)
	slices.Sort(built)
	slices.Sort(documented)
	if diff := gocmp.Diff(built, documented); diff != "" {
		t.Errorf("versions (-built +manual):\n%s", diff)
	}
}

// usual is the minor version of a module that `make test` takes by itself.
func usual(t *testing.T, module string) string {
	t.Helper()
	return minors(pinnedIn(t, "controlplane/binaries"), module)[0]
}

// minors are the minor versions of a module that are pinned, the oldest first.
func minors(pins []string, module string) (versions []string) {
	for _, pin := range pins {
		if version, ok := strings.CutPrefix(pin, module+" v"); ok {
			parts := strings.Split(version, ".")
			versions = append(versions, parts[0]+"."+parts[1])
		}
	}
	slices.SortFunc(versions, func(a, b string) int {
		minor := func(v string) int { _, n, _ := strings.Cut(v, "."); i, _ := strconv.Atoi(n); return i }
		return cmp.Compare(minor(a), minor(b))
	})
	return versions
}

// ran is one whole `make test`, as e2e/timing has recorded it.
type ran struct {
	Kubernetes, Karpenter, Commit, Date string
	Cores, Tests                        int
	Failed, Skipped                     []string
}

// runs are those recorded. Their commits are in the history, where there is one: a clone can be shallow,
// or squashed.
func runs(t *testing.T) (all []ran) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(read(t, filepath.Join("..", "..", "e2e", "timing", "ran.yaml"))), &all); err != nil {
		t.Fatal(err)
	}
	shallow, err := exec.Command("git", "rev-parse", "--is-shallow-repository").Output()
	commits, _ := exec.Command("git", "log", "--format=%H").Output()
	unknown := slices.DeleteFunc(slices.Clone(all), func(one ran) bool { return strings.Contains("\n"+string(commits), "\n"+one.Commit) })
	if err != nil || strings.TrimSpace(string(shallow)) != "false" || len(unknown) == len(all) {
		t.Log("there is no history to find the commits in")
	} else if len(unknown) > 0 {
		t.Errorf("there are no such commits: %+v", unknown)
	}
	return all
}

// row is what the table says of it.
func (one ran) row(usualKubernetes, usualKarpenter string) string {
	minor := func(version string) string {
		return strings.TrimPrefix(version[:max(0, strings.LastIndex(version, "."))], "v")
	}
	what := "make test"
	if v := minor(one.Kubernetes); v != usualKubernetes {
		what += " KUBERNETES=" + v
	}
	if v := minor(one.Karpenter); v != usualKarpenter {
		what += " KARPENTER=" + v
	}
	when, _ := time.Parse(time.DateOnly, one.Date)
	result := strings.TrimPrefix(fmt.Sprintf("%d,%03d tests", one.Tests/1000, one.Tests%1000), "0,")
	switch failed, skipped := len(one.Failed), len(one.Skipped); {
	case failed > 0:
		result += fmt.Sprintf(", %d failed, %d skipped", failed, skipped)
	case skipped > 0:
		result += fmt.Sprintf(", none failed, %d skipped", skipped)
	default:
		result += " passed"
	}
	return fmt.Sprintf("| %s | %s | `%s` | by hand, on %d cores | %s, `%s` | %s |\n",
		minor(one.Kubernetes), minor(one.Karpenter), what, one.Cores, when.Format("2 January 2006"), one.Commit, result)
}

// The table of what ran has a row for each pair of versions that the workflow runs, with what was
// recorded of a whole run, and one for what `make test` runs on the oldest ones, with the names of
// these tests. They exist: a pattern that matches none would pass.
func TestTableOfWhatRan(t *testing.T) {
	const kubernetesModule, karpenterModule = "k8s.io/kubernetes", "sigs.k8s.io/karpenter"
	usualKubernetes, usualKarpenter := usual(t, kubernetesModule), usual(t, karpenterModule)
	oldestKubernetes, oldestKarpenter := minors(pinned(t), kubernetesModule)[0], minors(pinned(t), karpenterModule)[0]
	var ci struct {
		Jobs struct {
			Test struct {
				Strategy struct {
					Matrix struct {
						Include []struct{ Kubernetes, Karpenter string }
					}
				}
			}
		}
	}
	root := filepath.Join("..", "..")
	if err := yaml.Unmarshal([]byte(read(t, filepath.Join(root, ".github", "workflows", "ci.yaml"))), &ci); err != nil {
		t.Fatal(err)
	}
	want := []string{oldestKubernetes + ", " + oldestKarpenter} // a few tests
	for _, run := range ci.Jobs.Test.Strategy.Matrix.Include {
		want = append(want, cmp.Or(run.Kubernetes, usualKubernetes)+", "+cmp.Or(run.Karpenter, usualKarpenter))
	}
	table := sectionOf(t, "### What ran")
	var got []string
	short := ""
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !regexp.MustCompile(`^ \d`).MatchString(cells[1]) {
			continue
		}
		got = append(got, strings.TrimSpace(cells[1])+", "+strings.TrimSpace(cells[2]))
		if strings.Contains(cells[3], "`Test") {
			short = line
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("Kubernetes, Karpenter (-workflow and Makefile +manual):\n%s", diff)
	}
	rows := short
	for _, run := range runs(t) {
		rows += run.row(usualKubernetes, usualKarpenter)
	}
	for line := range strings.Lines(table) {
		if regexp.MustCompile(`^\| \d`).MatchString(line) && !strings.Contains(rows, line) {
			t.Errorf("e2e/timing/ran.yaml, which `make test RECORD=1` writes, says otherwise, or nothing:\n%s\nit gives these rows:\n%s", line, rows)
		}
	}
	makefile := read(t, filepath.Join(root, "Makefile"))
	if oldest := "KUBERNETES=" + oldestKubernetes + " SPOT_HANDLER_E2E_KARPENTER=" + oldestKarpenter + "\n"; !strings.Contains(makefile, oldest) {
		t.Errorf("the oldest versions of the Makefile are not %s", oldest)
	}
	_, rest, _ := strings.Cut(makefile, "OLDEST_STORIES :=")
	list, _, _ := strings.Cut(rest, "\nALSO_OLDEST")
	names := regexp.MustCompile(`Test\w+`)
	if diff := gocmp.Diff(names.FindAllString(list, -1), names.FindAllString(short, -1)); diff != "" {
		t.Errorf("end-to-end tests on the oldest (-Makefile +manual):\n%s", diff)
	}
	var stories strings.Builder
	files, _ := filepath.Glob(filepath.Join(root, "e2e", "stories", "*_test.go"))
	for _, file := range files {
		stories.WriteString(read(t, file))
	}
	for _, name := range names.FindAllString(list, -1) {
		if !strings.Contains(stories.String(), "\nfunc "+name+"(t *testing.T)") {
			t.Errorf("the Makefile names %s, which is no end-to-end test", name)
		}
	}
}
