package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"spot-handler/e2e/chaos/evidence"
	"spot-handler/e2e/chaos/plan"
	"spot-handler/handler/interruption"
)

// certain: the instance ends.
func certain(a evidence.Announcement) bool { return a.Kind != interruption.RebalanceRecommendation }

// tally is what has happened in all rounds.
type tally struct {
	rounds   int
	steps    map[plan.What]int
	losses   int
	pods     evidence.Fates
	requests int
	slow     int
}

func (t *tally) add(r plan.Round, found evidence.Round) {
	t.rounds++
	if t.steps == nil {
		t.steps = map[plan.What]int{}
	}
	for _, s := range r.Steps {
		t.steps[s.What]++
	}
	t.losses += len(found.Losses)
	t.requests += found.Made()
	fates := found.Fates()
	t.pods.Whole += fates.Whole
	t.pods.Short += fates.Short
	t.pods.Left += fates.Left
	t.pods.Others += fates.Others
	t.pods.Due += fates.Due
	for _, s := range found.Spans {
		if s.Machine {
			t.slow++
		}
	}
}

func (t tally) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d rounds: %d nodes lost or at risk; of their pods %s; %d requests\n", t.rounds, t.losses, fates(t.pods), t.requests)
	for _, what := range slices.Sorted(maps.Keys(t.steps)) {
		fmt.Fprintf(&b, "%5d  %s\n", t.steps[what], what)
	}
	if t.slow > 0 {
		fmt.Fprintf(&b, "%5d  %s\n", t.slow, machineSlow)
	}
	return b.String()
}

func fates(f evidence.Fates) string {
	return fmt.Sprintf("%d had their whole grace period, %d less, %d were left, %d ended or kept by others; %d could not be excused by faults", f.Whole, f.Short, f.Left, f.Others, f.Due)
}

func brief(found evidence.Round) string {
	return fmt.Sprintf("%d nodes; of their pods %s; %d of %d requests", len(found.Losses), fates(found.Fates()), found.Made(), found.Allowed())
}

// explain says what was broken, and what is needed to see why.
func explain(found evidence.Round, broken map[string][]string) string {
	var b strings.Builder
	clock := func(t time.Time) string {
		if t.IsZero() {
			return "never"
		}
		return t.UTC().Format("15:04:05.000")
	}
	for _, l := range found.Losses {
		fmt.Fprintf(&b, "node %s, instance %s: cancelled %s, gone %s\n", l.Node, l.Instance, clock(l.Canceled), clock(l.Gone))
		for _, a := range l.Announced {
			fmt.Fprintf(&b, "  %s %s, deadline %s\n", clock(a.Sent), a.Kind, clock(a.Deadline))
		}
	}
	for _, s := range found.Spans {
		fmt.Fprintf(&b, "%s to %s: %s, replica %q\n", clock(s.From), clock(s.To), s.What, s.Replica)
	}
	for _, name := range slices.Sorted(maps.Keys(broken)) {
		fmt.Fprintf(&b, "BROKEN: %s\n", name)
		for _, how := range broken[name] {
			fmt.Fprintf(&b, "  %s\n", how)
		}
	}
	return b.String()
}
