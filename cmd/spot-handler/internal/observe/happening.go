package observe

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"spot-handler/handler/interruption"
)

// Happening is something that a recording tells, in a clause.
type Happening struct {
	At   time.Time
	Node string
	What string // "node", "replacement" or the pod's namespace/name
	Text string
}

// Begin is when the first notice was; all other times count from it.
func (r Recording) Begin() time.Time {
	begin := r.To
	for _, n := range r.Nodes {
		begin = interruption.Earlier(begin, n.Noticed)
	}
	return begin
}

// Happenings are what happened, in order of time.
func (r Recording) Happenings() []Happening {
	var list []Happening
	for _, n := range r.Nodes {
		list = append(list, n.happenings()...)
	}
	slices.SortStableFunc(list, func(a, b Happening) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Node, b.Node)) })
	return list
}

func (n Node) happenings() []Happening {
	var list []Happening
	add := func(at *time.Time, what, format string, args ...any) {
		if at != nil {
			list = append(list, Happening{*at, n.Name, what, fmt.Sprintf(format, args...)})
		}
	}
	add(&n.Noticed, "node", "noticed: %s", n.Kind)
	add(n.Cordoned, "node", "cordoned")
	for _, p := range n.Phases {
		add(&p.At, "node", "%s", p.Phase)
	}
	if r := n.Replacement; r != nil {
		if r.Name == "" {
			add(&r.Requested, "replacement", "none: %s", r.Reason)
		} else {
			add(&r.Requested, "replacement", "%s requested from pool %s", r.Name, r.Pool)
		}
		add(r.Launched, "replacement", "%s launched", r.Name)
		add(r.Ready, "replacement", "%s ready for pods", r.Name)
	}
	for _, p := range n.Pods {
		name := p.Namespace + "/" + p.Name
		add(p.Surged, name, "surged: its successor comes first")
		if p.Refusal != nil {
			add(&p.Refusal.From, name, "refused: %s", p.Refusal.Reason)
		}
		if p.GivenSeconds != nil {
			add(p.Evicted, name, "evicted, with %d of %d s to end", *p.GivenSeconds, p.GraceSeconds)
		}
		add(p.Gone, name, "gone")
	}
	add(n.Drained, "node", "every pod has left%s", n.leftText())
	switch n.End {
	case Gone:
		add(n.EndAt, "node", "the Node is gone")
	case Restored:
		add(n.EndAt, "node", "back in service: nothing stands against it")
	}
	return list
}

func (n Node) leftText() string {
	if n.Deadline == nil || n.Drained == nil {
		return ""
	}
	return fmt.Sprintf(", %.1f s before its deadline", n.Deadline.Sub(*n.Drained).Seconds())
}
