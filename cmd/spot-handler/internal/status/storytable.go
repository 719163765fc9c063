package status

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/terminal"
	"spot-handler/drain"
	"spot-handler/handler/interruption"
)

// storyBar is how wide the bar of the time left is, in a story.
const storyBar = 40

// Lines shows a story to people, in so many columns of a terminal; 0 is no terminal.
func (s Story) Lines(now time.Time, width int) []string {
	if s.Record == nil {
		lines := []string{fact("node", s.Node)}
		if s.WaitsFor != "" {
			return append(append(lines, fact("waits for", s.WaitsFor)), s.eventLines(width)...)
		}
		return append(append(lines, fact("interruption", "none: no record of one stands")), s.eventLines(width)...)
	}
	lines := append(s.facts(now, width), s.podLines(now, width)...)
	return append(lines, s.eventLines(width)...)
}

func fact(name, text string) string { return fmt.Sprintf("%-14s%s", name, text) }

// facts are what the record says.
func (s Story) facts(now time.Time, width int) []string {
	rec := s.Record
	var lines []string
	add := func(name, text string) {
		if text != "" {
			lines = append(lines, fact(name, text))
		}
	}
	add("node", s.Node)
	add("instance", rec.Instance)
	add("pool", s.Pool)
	for i, a := range rec.Announcements() {
		add([]string{"interruption", "and"}[min(i, 1)], announcement(a))
	}
	if s.Deadline != nil {
		text := s.Deadline.UTC().Format(time.RFC3339)
		if s.SecondsLeft != nil {
			text = strings.Replace(fmt.Sprintf("%s, %s left", text, s.timeLeft()), "past left", "past", 1) + "  "
			room := storyBar
			if width > 0 {
				room = min(room, width-len(fact("deadline", text))-len("[]"))
			}
			if room > 0 {
				text += s.bar(room)
			}
		}
		add("deadline", text)
	}
	phase := string(s.Phase)
	if width > 0 {
		phase = s.colour().Paint(phase)
	}
	if s.Ended != nil {
		phase += fmt.Sprintf(", the drain ended %s", ago(now, *s.Ended))
	}
	add("phase", phase)
	add("set by us", strings.Join(rec.Ours, ", "))
	add("replacement", replacementLine(rec.Replacement))
	for _, h := range rec.Hooks {
		add("hook", hookLine(h))
	}
	switch {
	case s.Over:
		add("pods", fmt.Sprintf("%d had to leave: %s", s.Pods.Total, s.Result))
	case s.Pods.Here != nil:
		add("pods", fmt.Sprintf("%d of %d still have to leave", *s.Pods.Here, max(s.Pods.Total, *s.Pods.Here)))
	}
	if s.SlackSeconds != nil {
		add("slack", duration(s.SlackSeconds))
	}
	add("waits for", s.WaitsFor)
	return lines
}

func announcement(a interruption.Announcement) string {
	text := string(a.Kind)
	if a.Action != "" {
		text += " (" + a.Action + ")"
	}
	return fmt.Sprintf("%s from %s at %s, event %s", text, a.Source, a.Noticed.UTC().Format(time.RFC3339), a.Event)
}

func replacementLine(r *interruption.Replacement) string {
	if r == nil {
		return none
	}
	text := fmt.Sprintf("%s, by %s", replacementText(r), cmp.Or(r.Backend, none))
	if r.Pool != "" {
		text += ", pool " + r.Pool
	}
	if r.Tried != "" {
		text += ", tried in vain: " + r.Tried
	}
	return text
}

func hookLine(h interruption.Hook) string {
	text := fmt.Sprintf("%s of group %s: ", h.Name, h.Group)
	switch {
	case h.Done:
		return text + "completed"
	case h.Until != nil:
		return text + "the group waits until " + h.Until.UTC().Format(time.RFC3339)
	}
	return text + "the group waits"
}

// podLines are the pods that have to leave.
func (s Story) podLines(now time.Time, width int) []string {
	if len(s.OnNode) == 0 {
		return nil
	}
	rows := make([][]console.Cell, len(s.OnNode))
	for i, p := range s.OnNode {
		by, why := none, p.WaitsFor
		if p.By != nil {
			left := p.By.Sub(now).Seconds()
			by = "now"
			if left > 0 {
				by = "in " + duration(&left)
			}
		}
		if p.Refusal != "" {
			why += "; refused: " + p.Refusal
		}
		if p.NoSurge != "" && p.Next == drain.Later {
			why += "; not surged: " + p.NoSurge
		}
		rows[i] = []console.Cell{{Text: p.Namespace + "/" + p.Name}, {Text: string(p.Next)}, {Text: by}, {Text: fmt.Sprintf("%d s", p.GraceSeconds)}, {Text: why}}
	}
	columns := []console.Column{{Title: "POD", Least: 20}, {Title: "NEXT"}, {Title: "AT THE LATEST"}, {Title: "GRACE"}, {Title: "WHY", Least: 24}}
	lines := append([]string{""}, console.Table(columns, rows, width)...)
	return append(lines, "(planned with "+s.InForce+")")
}

// eventLines are the Events about the Node.
func (s Story) eventLines(width int) []string {
	if len(s.Events) == 0 {
		return nil
	}
	rows := make([][]console.Cell, len(s.Events))
	for i, e := range s.Events {
		reason := console.Cell{Text: e.Reason}
		if e.Type == corev1.EventTypeWarning {
			reason.Colour = terminal.Notable
		}
		rows[i] = []console.Cell{{Text: e.At.UTC().Format(time.RFC3339)}, reason, {Text: e.Text}}
	}
	return append([]string{""}, console.Table([]console.Column{{Title: "AT"}, {Title: "EVENT"}, {Title: "TEXT", Least: 24}}, rows, width)...)
}

func ago(now, at time.Time) string {
	since := max(0, now.Sub(at)).Seconds()
	return duration(&since) + " ago"
}
