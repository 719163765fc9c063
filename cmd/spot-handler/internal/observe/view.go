package observe

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/internal/status"
)

// How much the view shows of what can be long. The worst comes first.
const (
	shownWorkloads  = 6
	shownHappenings = 6
	// leastHappenings are shown however long the rest is.
	leastHappenings = 3
)

// View is the picture of this moment, in so many columns and rows of a terminal: what `status`
// shows of the nodes, the ready pods of each workload, and what happened last. Where that is too
// long, it does without what happened earlier, and then without the last of the nodes.
func (o *Observer) View(now time.Time, width, height int) []string {
	r := o.Recording(now)
	if len(r.Nodes) == 0 {
		return []string{"No interruption yet."}
	}
	ready := slices.Concat([]string{""}, readyLines(r, width), []string{""})
	lines := o.head(now, width)
	if room := max(2, height-len(ready)-leastHappenings); len(lines) > room {
		lines = append(lines[:room-1:room-1], "...")
	}
	lines = append(lines, ready...)
	all := r.Happenings()
	for _, h := range all[max(0, len(all)-min(shownHappenings, max(leastHappenings, height-len(lines)))):] {
		lines = append(lines, h.Line(r.Begin(), len(r.Nodes) > 1))
	}
	return lines
}

// head is what status shows of the nodes.
func (o *Observer) head(now time.Time, width int) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var theirs []*corev1.Node
	on := map[string][]*corev1.Pod{}
	for _, life := range o.nodes {
		if life.End == "" {
			theirs = append(theirs, life.node)
			on[life.Name] = []*corev1.Pod{}
		}
	}
	for _, pod := range o.pods {
		if list, ours := on[pod.Spec.NodeName]; ours {
			on[pod.Spec.NodeName] = append(list, pod)
		}
	}
	if len(theirs) == 0 {
		return []string{"Over: " + console.Count(len(o.nodes), "interruption") + "."}
	}
	return status.List{Interruptions: status.Of(now, theirs, on)}.Table(width)
}

// readyLines are the ready pods of the workloads.
func readyLines(r Recording, width int) []string {
	rows := console.Rows(r.Workloads[:min(len(r.Workloads), shownWorkloads)], func(w Workload) []console.Cell {
		last := w.Samples[len(w.Samples)-1]
		ready := console.Cell{Text: fmt.Sprintf("%d of %d", last.Ready, last.Desired), Colour: console.Good}
		if last.Missing(w.Samples[0].Ready) > 0 {
			ready.Colour = console.Bad
		}
		return []console.Cell{{Text: w.Namespace + "/" + w.Name}, ready, {Text: fmt.Sprint(w.Fewest)}, {Text: r.NeededBy(w)}}
	})
	lines := console.Table([]console.Column{{Title: "WORKLOAD"}, {Title: "READY"}, {Title: "FEWEST"}, {Title: "BUDGET NEEDS"}}, rows, width)
	if more := len(r.Workloads) - shownWorkloads; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more workloads", more))
	}
	return lines
}

// NeededBy is how many pods of a workload its disruption budgets need.
func (r Recording) NeededBy(w Workload) string {
	needed := console.None
	for _, b := range r.Budgets {
		if b.Namespace == w.Namespace && slices.Contains(b.Workloads, w.Name) {
			needed = fmt.Sprint(b.Needed)
		}
	}
	return needed
}
