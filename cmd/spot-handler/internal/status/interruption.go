// Package status tells operators which nodes are interrupted, and how far each has come, from
// the records on the Nodes and the pods on them.
//
// What it tells is worked out by pure functions: Nodes and pods in, rows out. [Reader] reads
// them, with the rights of whoever asks, and says what it could not read.
package status

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
	"spot-handler/handler/nodes"
	"spot-handler/handler/turns"
)

// List is what programs read: the answer of a whole look at the cluster.
type List struct {
	Interruptions []Interruption `json:"interruptions"`
	// Unread says what could not be read, and why.
	Unread []string `json:"unread,omitempty"`
}

// Interruption is how far one has come.
type Interruption struct {
	Node     string             `json:"node"`
	Instance string             `json:"instance,omitempty"`
	Pool     string             `json:"pool,omitempty"`
	Kind     interruption.Kind  `json:"kind,omitempty"`
	Action   string             `json:"action,omitempty"`
	Phase    interruption.Phase `json:"phase,omitempty"`
	Over     bool               `json:"over"`
	// Rehearsal: an operator has made it up, and the node comes back.
	Rehearsal bool `json:"rehearsal,omitempty"`

	Noticed     *time.Time `json:"noticed,omitempty"`
	Deadline    *time.Time `json:"deadline,omitempty"`
	SecondsLeft *float64   `json:"secondsLeft,omitempty"` // until the deadline; none once it is over
	Ended       *time.Time `json:"ended,omitempty"`

	Pods        Pods                      `json:"pods"`
	Replacement *interruption.Replacement `json:"replacement,omitempty"`
	// SlackSeconds is what was left until the deadline when the drain ended.
	SlackSeconds *float64 `json:"slackSeconds,omitempty"`

	// WaitsFor is what has to happen next, in a clause; Result is how it ended.
	WaitsFor string `json:"waitsFor,omitempty"`
	Result   string `json:"result,omitempty"`
}

// Pods counts the pods that have to leave the node.
type Pods struct {
	Total int `json:"total"` // 0 until the drain has begun
	// Here are still on the node; nil where that could not be read.
	Here *int `json:"here,omitempty"`
	// Terminating and Surged are some of those: already evicted, and with a successor on its way.
	Terminating int `json:"terminating,omitempty"`
	Surged      int `json:"surged,omitempty"`

	Graceful  int    `json:"graceful,omitempty"`
	Truncated int    `json:"truncated,omitempty"`
	Forced    int    `json:"forced,omitempty"`
	Left      int    `json:"left,omitempty"`
	Refusal   string `json:"refusal,omitempty"`
}

// look is all that is known of one interrupted node.
type look struct {
	now  time.Time
	node *corev1.Node
	rec  interruption.Record
	line *turns.Line // of the nodes that wait for their turn or have it

	pods   []*corev1.Pod
	known  bool // what pods there are
	here   []*corev1.Pod
	counts Pods
}

// Of tells how far each interruption has come: those under way first, by their deadlines, then
// those that are over, the last first. A node whose pods are missing could not be read.
func Of(now time.Time, all []*corev1.Node, pods map[string][]*corev1.Pod) []Interruption {
	line := turns.NewLine(turns.Concurrency{}, nil) // which gives no turns
	for _, node := range all {
		if rec, has, err := nodes.Record(node); has && err == nil {
			line.Stand(node, rec)
		}
	}
	list := []Interruption{}
	for _, node := range all {
		rec, has, err := nodes.Record(node)
		if !has {
			continue
		}
		if err != nil {
			list = append(list, Interruption{Node: node.Name, Pool: nodes.PoolOf(node).Name, WaitsFor: "nothing: its record is not acted on: " + err.Error()})
			continue
		}
		theirs, known := pods[node.Name]
		list = append(list, (&look{now: now, node: node, rec: rec, line: line, pods: theirs, known: known}).tell())
	}
	slices.SortStableFunc(list, func(a, b Interruption) int {
		switch {
		case a.Over && b.Over:
			return cmp.Or(interruption.CompareDeadlines(b.Ended, a.Ended), cmp.Compare(a.Node, b.Node))
		case a.Over:
			return 1
		case b.Over:
			return -1
		}
		return cmp.Or(interruption.CompareDeadlines(a.Deadline, b.Deadline), cmp.Compare(a.Node, b.Node))
	})
	return list
}

func (l *look) tell() Interruption {
	l.count()
	rec := l.rec
	i := Interruption{
		Node: l.node.Name, Instance: rec.Instance, Pool: nodes.PoolOf(l.node).Name,
		Kind: rec.Kind, Action: rec.Action, Phase: rec.Phase, Over: rec.Phase.Over(), Rehearsal: rec.Rehearsed(),
		Noticed: &rec.Noticed, Deadline: rec.Deadline, Ended: rec.Ended, Pods: l.counts, Replacement: rec.Replacement,
	}
	switch d := rec.DeadlineTime(); {
	case d.IsZero():
	case i.Over && rec.Ended != nil:
		i.SlackSeconds = seconds(d.Sub(*rec.Ended))
	case !i.Over:
		i.SecondsLeft = seconds(d.Sub(l.now))
	}
	i.WaitsFor = l.waitsFor()
	if i.Over {
		i.Result = result(l.counts)
	}
	return i
}

// count counts the pods: what has become of them by the record, where they are by themselves.
func (l *look) count() {
	if p := l.rec.Pods; p != nil {
		l.counts = Pods{Total: p.Total, Graceful: p.Graceful, Truncated: p.Truncated, Forced: p.Forced, Left: p.Left, Refusal: p.Refusal}
	}
	if !l.known {
		return
	}
	l.here = Leaving(l.now, l.rec, l.pods)
	for _, pod := range l.here {
		switch {
		case pod.DeletionTimestamp != nil:
			l.counts.Terminating++
		case pod.Labels[drain.SurgedLabel] != "":
			l.counts.Surged++
		}
	}
	n := len(l.here)
	l.counts.Here = &n
}

// Leaving are those of a node's pods that have to leave it, as the drain judges.
func Leaving(now time.Time, rec interruption.Record, pods []*corev1.Pod) []*corev1.Pod {
	return drain.Leaving(now, drain.Interruption{Taint: marks.Taint(rec), Since: rec.Since(), Deadline: rec.DeadlineTime()}, pods)
}

// result is what became of the pods, in a clause.
func result(p Pods) string {
	if p.Total == 0 {
		return "no pod had to leave"
	}
	text := ""
	for _, part := range []struct {
		n    int
		what string
	}{{p.Graceful, "graceful"}, {p.Truncated, "truncated"}, {p.Forced, "forced"}, {p.Left, "left"}} {
		if part.n == 0 {
			continue
		}
		if text != "" {
			text += ", "
		}
		text += fmt.Sprintf("%d %s", part.n, part.what)
	}
	if p.Refusal != "" && p.Left+p.Forced > 0 {
		text += ": " + p.Refusal
	}
	return text
}

// seconds rounds to a tenth: no more of it is meant.
func seconds(d time.Duration) *float64 {
	s := d.Round(100 * time.Millisecond).Seconds()
	return &s
}
