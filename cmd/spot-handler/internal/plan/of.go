package plan

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// after is how long the world is watched once the last node is gone: until lost pods are replaced.
const after = 10 * time.Minute

// Of is the forecast. It takes the shorter the fewer pods are on the lost nodes; nodes that are not
// lost cost little.
func Of(in Input) Forecast { return newWorld(in).play() }

func (w *world) play() Forecast {
	w.announce()
	w.at(w.now, podsFirst, w.schedule)
	w.run(w.horizon())
	return w.result()
}

func (w *world) horizon() time.Time {
	last := w.in.At
	for _, l := range w.lost {
		for _, t := range []time.Time{l.noticed, l.deadline} {
			if t.After(last) {
				last = t
			}
		}
	}
	return last.Add(after)
}

func (w *world) result() Forecast {
	f := Forecast{Assumptions: w.in.Assumptions, Settings: w.in.Settings, Unread: w.in.Unread, Nodes: []Node{}, Pods: []Pod{}, Workloads: []Workload{}, Budgets: []Budget{}}
	f.Assumptions.ReadyOf = map[string]Assumption{}
	for _, l := range w.lost {
		if l.Underway {
			f.Underway = append(f.Underway, l.Name())
			continue
		}
		n := l.report
		n.Cordoned = n.Notice
		if !l.deadline.IsZero() {
			n.Deadline = w.offsetOf(l.deadline)
			if n.Ended != nil {
				slack := *n.Deadline - *n.Ended
				n.Slack = &slack
			}
		}
		if l.Replacement != nil {
			r := *l.Replacement
			r.Ready = w.offsetOf(l.ready)
			n.Replacement = &r
		}
		f.Nodes = append(f.Nodes, n)
	}
	for _, s := range w.stories {
		s.waits(w, "")
		f.Pods = append(f.Pods, s.Pod)
	}
	slices.SortFunc(f.Pods, func(a, b Pod) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	for _, p := range w.waiting {
		if p.heir {
			p.workload.report.Unplaced++
		}
	}
	for key, of := range w.workloads {
		if !asked(of.users) {
			continue
		}
		of.account(w)
		f.Workloads = append(f.Workloads, of.report)
		if known, ok := w.in.Assumptions.ReadyOf[key]; ok {
			f.Assumptions.ReadyOf[key] = known
		}
	}
	slices.SortFunc(f.Workloads, func(a, b Workload) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	for _, all := range w.budgets {
		for _, b := range all {
			if b.report.Covers > 0 && asked(b.users) {
				b.update(w)
				f.Budgets = append(f.Budgets, b.report)
			}
		}
	}
	slices.SortFunc(f.Budgets, func(a, b Budget) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return f
}

// asked reports whether the forecast is about any of the nodes.
func asked(nodes map[*lostNode]bool) bool {
	for l := range nodes {
		if !l.Underway {
			return true
		}
	}
	return false
}
