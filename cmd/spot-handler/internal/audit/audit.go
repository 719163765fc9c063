// Package audit finds, before an interruption does, what will make one end badly.
//
// A check is a pure function over a [Snapshot]. It stands in the ordered list of checks, its id
// never changes its meaning, and a page of the manual explains it. A check belongs here only once
// a story has shown that the drain goes as badly as the finding says, and well after its fix.
package audit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Severity says how bad it will be.
type Severity string

// The severities, the worst first.
const (
	Critical Severity = "critical" // pods end with their node, unasked, or have no place to go
	Warning  Severity = "warning"  // pods lose some of their grace, or a service some of its pods
)

// Severities lists every severity, the worst first.
func Severities() []string { return []string{string(Critical), string(Warning)} }

func (s Severity) rank() int { return slices.Index(Severities(), string(s)) }

// AtLeast reports whether s is as bad as the other, or worse.
func (s Severity) AtLeast(other Severity) bool { return s.rank() <= other.rank() }

// Finding is one thing that will hurt.
type Finding struct {
	ID       string   `json:"id"`
	Severity Severity `json:"severity"`
	// Object is what to change, as kubectl names it, such as deployment/web.
	Object    string `json:"object"`
	Namespace string `json:"namespace"` // empty if it has none
	Pods      int    `json:"pods"`      // concerned
	What      string `json:"what"`
	Why       string `json:"why"`
	// Fix is a command, to be read before it is run.
	Fix  string `json:"fix"`
	Page string `json:"page"`
}

func (f Finding) where() string { return strings.TrimSpace(f.Namespace + " " + f.Object) }

// Key identifies a finding from run to run.
func (f Finding) Key() string { return f.ID + " " + f.Namespace + " " + f.Object }

// checks lists every check, in the order of their ids.
var checks = []struct {
	id       string
	severity Severity
	run      func(Snapshot) []Finding
}{
	{"SH101", Critical, budgetsThatNeverAllow},
	{"SH102", Critical, podsWithTwoBudgets},
	{"SH103", Warning, gracesThatDoNotFit},
	{"SH104", Warning, deploymentsWithoutSurge},
	{"SH105", Warning, budgetsThatSelectNothing},
	{"SH106", Warning, budgetsThatSelectByHash},
	{"SH107", Warning, podsThatCannotBeSurged},
	{"SH108", Warning, sleepsAsLongAsTheGrace},
	{"SH109", Warning, blanketTolerations},
	{"SH110", Warning, successorsTrustedAtOnce},
	{"SH111", Warning, successorsWithoutPlace},
	{"SH112", Warning, podsNeverToBeDisrupted},
	{"SH113", Critical, volumesElsewhere},

	{"SH201", Critical, poolsWithoutFallback},
	{"SH202", Critical, fallbacksOfNoUse},
	{"SH203", Warning, fallbacksOnSpot},
	{"SH204", Warning, fallbacksElsewhere},
	{"SH205", Critical, fallbacksTooSmall},
	{"SH206", Warning, workloadsInOneOffering},
	{"SH207", Warning, workloadsAllOnSpot},
	{"SH208", Critical, daemonOnSpot},

	{"SH301", Critical, nodesThatNobodyWatches},
	{"SH302", Warning, karpentersOwnQueue},
	{"SH303", Critical, anotherHandler},
	{"SH304", Critical, rightsToStart},
	{"SH305", Warning, rightsToAct},
	{"SH306", Warning, withoutFlowSchemas},
	{"SH307", Warning, withoutPolicies},
	{"SH308", Warning, targetsThatDrainTooLong},
}

// IDs lists the ids of all checks.
func IDs() (ids []string) {
	for _, c := range checks {
		ids = append(ids, c.id)
	}
	return ids
}

// Of runs every check. The worst come first, then those that concern the most pods.
func Of(s Snapshot) []Finding {
	s.index()
	found := []Finding{}
	for _, c := range checks {
		for _, f := range c.run(s) {
			f.ID, f.Severity, f.Page = c.id, c.severity, page(c.id)
			found = append(found, f)
		}
	}
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Severity.rank(), b.Severity.rank()), cmp.Compare(b.Pods, a.Pods), cmp.Compare(a.Key(), b.Key()))
	})
	return found
}

func page(id string) string { return "deploy/docs/findings.md#" + strings.ToLower(id) }

// pods says how many.
func pods(n int) string {
	if n == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", n)
}
