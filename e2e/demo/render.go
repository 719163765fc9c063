package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"spot-handler/cmd/spot-handler/terminal"
	"spot-handler/handler/interruption"
)

// Width of the view, and how much of the log it shows: all of it fits a terminal of 80
// columns and 24 lines.
const (
	width    = 80
	logLines = 8
)

// view is the picture of a state, in lines of at most width columns.
func view(s state) []string {
	waiting, underWay, arrived := s.progress()
	lines := []string{
		fmt.Sprintf("%-52s%28s", "spot interruption, from the notice to the end", s.mode+" mode"),
		"",
		row("time left", timeLeft(s)),
		row("phase", phaseText(s)),
		row("replacement", replacementText(s)),
		row(service, fmt.Sprintf("%d of %d ready, fewest %d, the budget asks for %d", s.readyPods, replicas, s.fewest, budget)),
		row("pods", fmt.Sprintf("%d wait on the node, %d on the way, %d ready elsewhere", waiting, underWay, arrived)),
		"",
		placeRow("", "NODE", "CAPACITY", "PODS"),
	}
	for _, p := range s.places {
		lines = append(lines, placeRow(p.role, p.node, p.capacity, p.cells()+"  "+p.counts()))
	}
	if s.unscheduled > 0 {
		lines = append(lines, placeRow("no node yet", "", "", strings.Repeat(".", s.unscheduled)+fmt.Sprintf("  %d pending", s.unscheduled)))
	}
	lines = append(lines, "")
	for _, e := range s.log[max(0, len(s.log)-logLines):] {
		lines = append(lines, logRow(s, e))
	}
	for i, line := range lines {
		lines[i] = terminal.Cut(line, width)
	}
	return lines
}

func row(name, text string) string { return fmt.Sprintf("%-13s%s", name, text) }

func placeRow(role, node, capacity, pods string) string {
	return strings.TrimRight(fmt.Sprintf("%-13s%-25s %-11s%s", role, terminal.Cut(node, 25), capacity, pods), " ")
}

func logRow(s state, e entry) string { return stamp(s, e.at) + "  " + e.text }

// stamp is a time in seconds since the notice.
func stamp(s state, at time.Time) string {
	return fmt.Sprintf("%7.1f s", at.Sub(s.notice).Seconds())
}

// timeLeft is a bar that shrinks, and stops once the node is drained.
func timeLeft(s state) string {
	const bar = 40
	at := s.now
	if !s.drained.IsZero() {
		at = s.drained
	}
	left := max(0, s.deadline.Sub(at))
	text := fmt.Sprintf("%5.1f s  %s", left.Seconds(), terminal.Bar(left, notice, bar))
	if !s.drained.IsZero() {
		text += " to spare"
	}
	return text
}

func phaseText(s state) string {
	text := string(s.phase)
	if s.phase == "" {
		text = "none, the notice is on its way"
	}
	if !s.cordoned.IsZero() {
		text += fmt.Sprintf(", cordoned %s after the notice", seconds(s.cordoned.Sub(s.notice)))
	}
	switch {
	case !s.nodeGone.IsZero():
		text += ", Node gone"
	case s.phase == interruption.Released:
		text += ", Node going"
	}
	return text
}

func replacementText(s state) string {
	c := s.replacement
	switch {
	case s.requested.IsZero():
		return "none"
	case c.state == claimLaunched:
		return fmt.Sprintf("%s launched, boots for %.0f s", c.name, s.now.Sub(s.launched).Seconds())
	case c.state == claimInitialized && !s.ready.IsZero():
		return fmt.Sprintf("%s ready after %s", c.name, seconds(s.ready.Sub(s.notice)))
	}
	return c.name + " " + c.state
}

// cells has a character for each pod: # ready, ~ starting, x stopping.
func (p place) cells() string {
	return strings.Repeat("#", p.ready) + strings.Repeat("~", p.starting) + strings.Repeat("x", p.stopping)
}

// counts says what the cells show.
func (p place) counts() string {
	var parts []string
	for _, c := range []struct {
		n    int
		what string
	}{{p.ready, "ready"}, {p.starting, "starting"}, {p.stopping, "stopping"}} {
		if c.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// changes are the lines that say what is new since an earlier state, for output that
// cannot be redrawn.
func changes(before, s state) []string {
	type change struct {
		at         time.Time
		what, text string
	}
	var list []change
	add := func(at time.Time, what, text string) { list = append(list, change{at, what, text}) }
	for _, m := range []struct {
		before, at time.Time
		what, text string
	}{
		{before.cordoned, s.cordoned, "node", "cordoned"},
		{before.requested, s.requested, "replacement", "NodeClaim " + s.replacement.name + " requested"},
		{before.launched, s.launched, "replacement", "launched, boots"},
		{before.ready, s.ready, "replacement", "ready for pods"},
		{before.drained, s.drained, "node", fmt.Sprintf("drained, %.1f s left", s.slack().Seconds())},
		{before.claimGone, s.claimGone, "node", "NodeClaim gone"},
		{before.nodeGone, s.nodeGone, "node", "Node gone"},
	} {
		if m.before.IsZero() && !m.at.IsZero() {
			add(m.at, m.what, m.text)
		}
	}
	for _, e := range s.log[len(before.log):] {
		add(e.at, "log", e.text)
	}
	if s.phase != before.phase {
		add(s.now, "phase", string(s.phase))
	}
	if text := podsText(s); text != podsText(before) {
		add(s.now, "pods", text)
	}
	slices.SortStableFunc(list, func(a, b change) int { return a.at.Compare(b.at) })
	var lines []string
	for _, c := range list {
		lines = append(lines, fmt.Sprintf("%s  %-12s%s", stamp(s, c.at), c.what, c.text))
	}
	return lines
}

// podsText is where the pods are, in a line.
func podsText(s state) string {
	text := fmt.Sprintf("%2d ready:", s.readyPods)
	for _, p := range s.places {
		name := p.role
		if p.role == roleOther {
			name = "other"
		}
		text += fmt.Sprintf(" %s [%s]", name, p.cells())
	}
	if s.unscheduled > 0 {
		text += fmt.Sprintf(" no node [%s]", strings.Repeat(".", s.unscheduled))
	}
	return text
}

// summary is the end of the demo.
func summary(s state) []string {
	after := func(at time.Time) string {
		if at.IsZero() {
			return "never"
		}
		return seconds(at.Sub(s.notice))
	}
	counts := "the record on the Node told no result"
	if r := s.result; r != nil {
		counts = fmt.Sprintf("%d graceful, %d truncated, %d forced, %d left", r.Graceful, r.Truncated, r.Forced, r.Left)
	}
	given := "none was stopped"
	if s.shortestGrace >= 0 {
		given = fmt.Sprintf("%.0f of %.0f s", s.shortestGrace.Seconds(), grace.Seconds())
	}
	slack := "none"
	if !s.drained.IsZero() {
		slack = fmt.Sprintf("%s of %.0f", seconds(s.slack()), notice.Seconds())
	}
	line := func(name, value string) string { return fmt.Sprintf("  %-32s%s", name, value) }
	lines := []string{
		"",
		line("notice to cordon", after(s.cordoned)),
		line("notice to replacement launched", after(s.launched)),
		line("notice to replacement ready", after(s.ready)),
		line("notice to drained", after(s.drained)),
		line("slack, drained to deadline", slack),
		line("notice to old NodeClaim gone", after(s.claimGone)),
		line("notice to old Node gone", after(s.nodeGone)),
		line("pods that had to leave", fmt.Sprintf("%d: %s", s.moving, counts)),
		line("shortest grace given", given),
		line("fewest ready pods", fmt.Sprintf("%d of %d, the budget asks for %d", s.fewest, replicas, budget)),
		"",
		"Times run from the moment before the notice is handed to the emulator to the",
		"watch event in which this program sees the change, delivery of both included.",
	}
	if s.mode == imdsMode {
		lines = append(lines, "The wait for the next poll of the metadata service, about 2 s, is in them too.")
	}
	lines = append(lines, "")
	problems := s.problems()
	if len(problems) == 0 {
		return append(lines, "The interruption ended well.")
	}
	lines = append(lines, "The interruption did not end well:")
	for _, p := range problems {
		lines = append(lines, "  "+p)
	}
	return lines
}

// seconds prints a duration with as many digits as are useful.
func seconds(d time.Duration) string {
	if d.Abs() < 10*time.Second {
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
