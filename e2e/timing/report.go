package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// slowest is how many tests the table names.
const slowest = 15

// event is one line of `go test -json`.
// https://pkg.go.dev/cmd/test2json
type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64 // seconds
}

// outcome is how long one test or package took. A test that runs in parallel is paused
// until those have ended that do not, and that is not its time, nor is what it says to have waited.
type outcome struct {
	name   string
	took   time.Duration
	result string // pass, fail or skip
}

// report is safe for several commands at once. What it prints of a package is in one piece.
type report struct {
	out io.Writer

	mu       sync.Mutex
	commands []outcome // how long processors worked for them, and for what they started
	packages []outcome
	tests    []outcome
	waited   map[string]time.Duration               // by package and test
	failed   []string                               // what tests said where they failed, shortened
	skipped  []string                               // tests and parts of tests, with the reason
	last     map[string]string                      // line that a test wrote by t.Log, t.Error or t.Skip, by package and test
	running  map[string]map[string]*strings.Builder // by package and top-level test
}

func newReport(out io.Writer) *report {
	return &report{out: out, waited: map[string]time.Duration{}, last: map[string]string{}, running: map[string]map[string]*strings.Builder{}}
}

// read takes events until there are no more. A line that is none is passed on.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) == nil && e.Action != "" {
				r.take(e)
			} else {
				fmt.Fprint(r.out, line)
			}
		}
		if err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("read the events of go test: %w", err)
		}
	}
}

func (r *report) take(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	top, _, _ := strings.Cut(e.Test, "/")
	name := e.Package + "." + e.Test
	took := time.Duration(e.Elapsed * float64(time.Second))
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		switch {
		case e.Test == "" && e.Output == "PASS\n": // the line with the package follows
		case e.Test == "":
			fmt.Fprint(r.out, e.Output)
		case waited.MatchString(e.Output):
			if d, err := time.ParseDuration(waited.FindStringSubmatch(e.Output)[1]); err == nil {
				r.waited[name] += d
			}
		case !announces(e.Output):
			if fromTest.MatchString(e.Output) {
				r.last[name] = shortened(e.Output)
			}
			said(r.running, e.Package, top).WriteString(e.Output)
		}
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.packages = append(r.packages, outcome{e.Package, took, e.Action})
			if e.Action == "fail" { // a test that is still running when a package fails has hung or crashed
				for _, text := range r.running[e.Package] {
					fmt.Fprint(r.out, text)
				}
			}
			delete(r.running, e.Package)
			return
		}
		if e.Action == "skip" {
			r.skipped = append(r.skipped, name+": "+r.last[name])
		}
		delete(r.last, name)
		if e.Test != top {
			return // it is part of another's time and output
		}
		r.tests = append(r.tests, outcome{name, max(0, took-r.waited[name]), e.Action})
		delete(r.waited, name)
		if e.Action == "fail" {
			output := said(r.running, e.Package, top).String()
			fmt.Fprint(r.out, output)
			r.failed = append(r.failed, failures(name, output)...)
		}
		delete(r.running[e.Package], top)
	}
}

func (r *report) worked(command string, took time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	result := "pass"
	if err != nil {
		result = "fail"
	}
	r.commands = append(r.commands, outcome{fmt.Sprintf("%.100s", command), took, result})
}

func said(running map[string]map[string]*strings.Builder, pkg, test string) *strings.Builder {
	if running[pkg] == nil {
		running[pkg] = map[string]*strings.Builder{}
	}
	if running[pkg][test] == nil {
		running[pkg][test] = &strings.Builder{}
	}
	return running[pkg][test]
}

// failures are the first lines that the testing package wrote for a test. The logs of a whole
// control plane may follow them.
func failures(test, output string) []string {
	said := []string{test}
	for line := range strings.Lines(output) {
		if at := fromTest.FindStringIndex(line); at != nil && len(said) < 5 {
			said = append(said, "  "+shortened(line))
		}
	}
	return said
}

func shortened(line string) string {
	return strings.ToValidUTF8(strings.TrimSpace(line[:min(len(line), 300)]), "")
}

// fromTest is how a line of t.Error begins.
var fromTest = regexp.MustCompile(`^\s+\w+_test\.go:\d+: `)

// waited is what a test of e2e/stories says when its turn has come.
var waited = regexp.MustCompile(`^\s+\w+_test\.go:\d+: waited (\S+) for its turn\n$`)

// announces: a line that only -v, which is part of -json, prints.
func announces(line string) bool {
	for _, prefix := range []string{"=== RUN", "=== PAUSE", "=== CONT", "=== NAME"} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return false
}

// table says where the time went, the slowest first, what was skipped, and again what failed.
func (r *report) table(wall time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	bySlowness := func(a, b outcome) int { return cmp.Or(cmp.Compare(b.took, a.took), strings.Compare(a.name, b.name)) }
	slices.SortFunc(r.packages, bySlowness)
	slices.SortFunc(r.tests, bySlowness)
	fmt.Fprintf(r.out, "\nWhere the time went: %s for %d tests in %d packages\n", wall.Round(time.Second), len(r.tests), len(r.packages))
	print := func(title string, rows []outcome) {
		fmt.Fprintf(r.out, "\n%s\n", title)
		for _, o := range rows {
			note := ""
			if o.result != "pass" {
				note = "  " + o.result
			}
			fmt.Fprintf(r.out, "%8.1fs  %s%s\n", o.took.Seconds(), o.name, note)
		}
	}
	if len(r.commands) > 0 {
		print("processor time by command", r.commands)
	}
	print("by package", slices.DeleteFunc(slices.Clone(r.packages), func(o outcome) bool { return o.took < 100*time.Millisecond }))
	print("slowest tests", r.tests[:min(slowest, len(r.tests))])
	if len(r.skipped) > 0 {
		fmt.Fprintf(r.out, "\nskipped\n  %s\n", strings.Join(r.skipped, "\n  "))
	}
	if len(r.failed) > 0 {
		fmt.Fprintf(r.out, "\nfailed\n  %s\n", strings.Join(r.failed, "\n  "))
	}
}
