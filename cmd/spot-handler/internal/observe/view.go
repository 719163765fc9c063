package observe

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/internal/status"
	"spot-handler/cmd/spot-handler/terminal"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner/karpenter"
)

// How much the view shows of what can be long. The worst comes first.
const (
	shownWorkloads  = 6
	shownHappenings = 6
	shownPlaces     = 4
	// leastHappenings are shown however long the rest is.
	leastHappenings = 3
)

// View is the picture of this moment, in so many columns and rows of a terminal: what `status`
// shows of the nodes, the ready pods of each workload, where they run, and what happened last.
// Where that is too long, it does without the places, then without what happened earlier, and then
// without the last of the nodes.
func (o *Observer) View(now time.Time, width, height int) []string {
	r := o.Recording(now)
	if len(r.Nodes) == 0 {
		return []string{"No interruption yet."}
	}
	lines := append([]string{""}, readyLines(r, width)...)
	head := o.head(now, width)
	if len(r.Nodes) == 1 {
		places := placeLines(o.places(r.Nodes[0]), width)
		if len(head)+len(lines)+len(places)+1+leastHappenings <= height {
			lines = append(lines, places...)
		}
	}
	lines = append(lines, "")
	if room := max(2, height-len(lines)-leastHappenings); len(head) > room {
		head = append(head[:room-1:room-1], "...")
	}
	lines = slices.Concat(head, lines)
	all := r.Happenings()
	for _, h := range all[max(0, len(all)-min(shownHappenings, max(leastHappenings, height-len(lines)))):] {
		lines = append(lines, h.Line(r.Begin(), len(r.Nodes) > 1))
	}
	return lines
}

// head is what status shows of the nodes: all of one, a table of several.
func (o *Observer) head(now time.Time, width int) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var theirs []*corev1.Node
	on := map[string][]*corev1.Pod{}
	for _, life := range o.nodes {
		if node := o.all[life.Name]; node != nil && life.End == "" {
			theirs = append(theirs, node)
			on[node.Name] = []*corev1.Pod{}
		}
	}
	for _, pod := range o.pods {
		if list, ours := on[pod.Spec.NodeName]; ours {
			on[pod.Spec.NodeName] = append(list, pod)
		}
	}
	list := status.List{Interruptions: status.Of(now, theirs, on)}
	switch {
	case len(o.nodes) == 1 && len(theirs) == 1 && len(list.Interruptions) == 1:
		return status.Node{Interruption: list.Interruptions[0], Record: &o.nodes[0].rec}.Lines(now, width)
	case len(theirs) == 0:
		if len(o.nodes) == 1 {
			return []string{"The interruption of the node is over."}
		}
		return []string{fmt.Sprintf("The interruptions of all %d nodes are over.", len(o.nodes))}
	}
	return list.Table(width, true)
}

// readyLines are the ready pods of the workloads.
func readyLines(r Recording, width int) []string {
	var rows [][]console.Cell
	for _, w := range r.Workloads[:min(len(r.Workloads), shownWorkloads)] {
		if len(w.Samples) == 0 {
			continue
		}
		last := w.Samples[len(w.Samples)-1]
		ready := console.Cell{Text: fmt.Sprintf("%d of %d", last.Ready, last.Desired), Colour: terminal.Good}
		if last.missing(w.Samples[0].Ready) > 0 {
			ready.Colour = terminal.Bad
		}
		rows = append(rows, []console.Cell{{Text: w.Namespace + "/" + w.Name}, ready, {Text: fmt.Sprint(w.Fewest)}, {Text: r.neededBy(w)}})
	}
	lines := console.Table([]console.Column{{Title: "WORKLOAD", Least: 20}, {Title: "READY"}, {Title: "FEWEST"}, {Title: "BUDGET NEEDS"}}, rows, width)
	if more := len(r.Workloads) - shownWorkloads; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more workloads", more))
	}
	return lines
}

// neededBy is how many pods of a workload its disruption budgets need.
func (r Recording) neededBy(w Workload) string {
	needed := console.None
	for _, b := range r.Budgets {
		if b.Namespace == w.Namespace && slices.Contains(b.Workloads, w.Name) {
			needed = fmt.Sprint(b.Needed)
		}
	}
	return needed
}

// place is a node and the workloads' pods on it.
type place struct {
	role, node                string
	ready, starting, stopping int
}

// What a place is to the interruption.
const (
	roleInterrupted = "interrupted"
	roleReplacement = "replacement"
	roleOther       = ""
	roleNone        = "no node yet"
)

// places are where the pods of the workloads run.
func (o *Observer) places(n Node) []*place {
	o.mu.Lock()
	defer o.mu.Unlock()
	on := map[string]*place{n.Name: {role: roleInterrupted, node: n.Name}}
	if n.End == Gone {
		delete(on, n.Name)
	}
	at := func(name string) *place {
		if on[name] == nil {
			on[name] = &place{role: o.role(name, n), node: name}
		}
		return on[name]
	}
	for name := range o.all {
		if o.role(name, n) == roleReplacement {
			at(name)
		}
	}
	for uid, pod := range o.pods {
		if !o.concerns(uid, pod) {
			continue
		}
		switch p := at(pod.Spec.NodeName); {
		case pod.DeletionTimestamp != nil:
			p.stopping++
		case isReady(pod):
			p.ready++
		default:
			p.starting++
		}
	}
	order := []string{roleInterrupted, roleOther, roleReplacement, roleNone}
	return slices.SortedFunc(maps.Values(on), func(a, b *place) int {
		return cmp.Or(slices.Index(order, a.role)-slices.Index(order, b.role), cmp.Compare(a.node, b.node))
	})
}

func (o *Observer) concerns(uid types.UID, pod *corev1.Pod) bool {
	_, counted := o.workloads[workloadOf(pod)]
	return counted || o.lives[uid] != nil
}

func (o *Observer) role(name string, n Node) string {
	node := o.all[name]
	switch {
	case name == "":
		return roleNone
	case name == n.Name:
		return roleInterrupted
	case node != nil && node.Labels[karpenter.ReplacesLabel] != "" && node.Labels[karpenter.ReplacesLabel] == o.instance(n.Name):
		return roleReplacement
	}
	return roleOther
}

func (o *Observer) instance(name string) string {
	if node := o.all[name]; node != nil {
		return nodes.InstanceID(node)
	}
	for _, life := range o.nodes {
		if life.Name == name {
			return life.rec.Instance
		}
	}
	return ""
}

// placeLines have a character for each pod: # ready, ~ starting, x stopping.
func placeLines(places []*place, width int) []string {
	var rows [][]console.Cell
	for i, p := range places {
		if i == shownPlaces && len(places) > shownPlaces+1 {
			rows = append(rows, []console.Cell{{}, {Text: fmt.Sprintf("and %d more nodes", len(places)-i)}, {}})
			break
		}
		cells := strings.Repeat("#", p.ready) + strings.Repeat("~", p.starting) + strings.Repeat("x", p.stopping)
		rows = append(rows, []console.Cell{{Text: p.role}, {Text: p.node}, {Text: cells + "  " + p.counts()}})
	}
	return append([]string{""}, console.Table([]console.Column{{}, {Title: "NODE", Least: 12}, {Title: "PODS", Least: 16}}, rows, width)...)
}

// counts says what the characters show.
func (p *place) counts() string {
	var parts []string
	for _, c := range []struct {
		n    int
		what string
	}{{p.ready, "ready"}, {p.starting, "starting"}, {p.stopping, "stopping"}} {
		if c.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}
