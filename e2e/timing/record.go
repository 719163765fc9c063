package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"spot-handler/e2e/internal/assets"
)

// ran is what ran: one whole `make test`. The table of supported.md is made from a list of them.
type ran struct {
	Kubernetes string   `json:"kubernetes"` // versions such as v1.36.3
	Karpenter  string   `json:"karpenter"`
	Commit     string   `json:"commit"`
	Date       string   `json:"date"` // of the end, in UTC
	Cores      int      `json:"cores"`
	Tests      int      `json:"tests"`             // that ended, the skipped ones among them
	Failed     []string `json:"failed,omitempty"`  // tests and packages
	Skipped    []string `json:"skipped,omitempty"` // tests and parts of tests, with the reason
}

// planned is what is about to run. What no commit has is an error: nobody could run it again.
func planned() (ran, error) {
	commit, err := exec.Command("git", "rev-parse", "--short=7", "HEAD").Output()
	if err != nil {
		return ran{}, fmt.Errorf("find the commit that runs: %w", err)
	}
	if changes, err := exec.Command("git", "status", "--porcelain").Output(); err != nil || len(changes) > 0 {
		return ran{}, fmt.Errorf("the run cannot be recorded: there are changes that are not committed (%v):\n%s", err, changes)
	}
	kubernetes, karpenter, err := assets.Versions()
	if err != nil {
		return ran{}, err
	}
	return ran{Kubernetes: kubernetes, Karpenter: karpenter, Commit: strings.TrimSpace(string(commit)), Cores: runtime.NumCPU()}, nil
}

// count completes what ran. A package fails without a test if it cannot be built, or crashes, and a
// command without a package if it cannot be run.
func (r *report) count(done *ran) {
	r.mu.Lock()
	defer r.mu.Unlock()
	done.Date, done.Tests, done.Skipped = time.Now().UTC().Format(time.DateOnly), len(r.tests), r.skipped
	failed := func(of []outcome) (names []string) {
		for _, o := range of {
			if o.result == "fail" {
				names = append(names, o.name)
			}
		}
		return names
	}
	done.Failed = failed(r.tests)
	for _, pkg := range failed(r.packages) {
		if !slices.ContainsFunc(done.Failed, func(test string) bool { return strings.HasPrefix(test, pkg+".") }) {
			done.Failed = append(done.Failed, pkg)
		}
	}
	if len(done.Failed) == 0 {
		done.Failed = failed(r.commands)
	}
}

// keep writes what ran into the file, in place of an earlier run of the same minor versions.
func (done ran) keep(file string) error {
	var all []ran
	text, err := os.ReadFile(file)
	if err == nil {
		err = yaml.UnmarshalStrict(text, &all)
	}
	if err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("read what ran before: %w", err)
	}
	minors := func(one ran) string { return minor(one.Kubernetes) + " " + minor(one.Karpenter) }
	all = slices.DeleteFunc(all, func(one ran) bool { return minors(one) == minors(done) })
	if text, err = yaml.Marshal(append(all, done)); err != nil {
		return fmt.Errorf("marshal what ran: %w", err)
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return fmt.Errorf("write what ran: %w", err)
	}
	return nil
}

func minor(version string) string { return version[:max(0, strings.LastIndex(version, "."))] }
