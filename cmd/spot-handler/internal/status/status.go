// Package status says which nodes are interrupted, and how far each has come, from the records on
// the Nodes and the pods on them.
//
// What it says is worked out by pure functions: Nodes and pods in, rows out. [Reader] reads them,
// with the permissions of the caller, and says what it could not read.
package status

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
	"spot-handler/handler/nodes"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/turns"
)

// List is what programs read: all interruptions of a cluster.
type List struct {
	Interruptions []Interruption `json:"interruptions"`
	// Held are replacements that are kept from consolidation; nil if there are none.
	Held *Held `json:"held,omitempty"`
	// Offerings are what EC2 has taken within a day, the last first.
	Offerings []offerings.Entry `json:"offerings,omitempty"`
	// Unread says what could not be read, and why.
	Unread []string `json:"unread,omitempty"`
}

// Same reports whether two lists differ by the time that has passed at most.
func (l List) Same(o List) bool {
	sameOffering := func(a, b offerings.Entry) bool { return a.Loss == b.Loss && a.Last.Equal(b.Last) }
	return slices.EqualFunc(l.Interruptions, o.Interruptions, Interruption.same) &&
		slices.EqualFunc(l.Offerings, o.Offerings, sameOffering) &&
		slices.Equal(l.Unread, o.Unread) &&
		reflect.DeepEqual(l.Held, o.Held)
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

	Noticed     time.Time `json:"noticed,omitzero"`
	Deadline    time.Time `json:"deadline,omitzero"`
	SecondsLeft *float64  `json:"secondsLeft,omitempty"` // until the deadline; none once it is over
	Ended       time.Time `json:"ended,omitzero"`

	Pods        Pods                      `json:"pods"`
	Replacement *interruption.Replacement `json:"replacement,omitempty"`
	// SlackSeconds is what was left until the deadline when the drain ended.
	SlackSeconds *float64 `json:"slackSeconds,omitempty"`

	// WaitsFor is what has to happen next, in a clause; Result is how it ended.
	WaitsFor string `json:"waitsFor,omitempty"`
	Result   string `json:"result,omitempty"`
}

func (i Interruption) same(o Interruption) bool {
	i.SecondsLeft, o.SecondsLeft = nil, nil
	return reflect.DeepEqual(i, o)
}

// Pods counts the pods that have to leave the node: what has become of them by the record, where
// they are by themselves. Total is 0 until the drain has begun.
type Pods struct {
	interruption.Pods
	// Here are still on the node; nil where that could not be read.
	Here *int `json:"here,omitempty"`
	// Terminating and Surged are some of those: already evicted, and with a replacement pod on its
	// way.
	Terminating int `json:"terminating,omitempty"`
	Surged      int `json:"surged,omitempty"`
}

// State is what happens to a pod that has to leave.
type State string

// The states, in the order in which a pod passes them.
const (
	Waiting State = "waiting" // for the replacement, or its time
	Surging State = "surged"  // it runs until its replacement pod is available
	Refused State = "refused" // the API server does not let it be evicted
	Ending  State = "ending"  // evicted, and in its grace period
)

// StateOf is the state of a pod on a node with this record, and what it waits for. refusal is why
// its eviction was refused, or empty.
func StateOf(rec interruption.Record, pod *corev1.Pod, refusal string) (state State, waitsFor string) {
	switch {
	case pod.DeletionTimestamp != nil:
		return Ending, ""
	case refusal != "":
		return Refused, refusal
	case plan.IsSurged(pod):
		return Surging, "its replacement pod"
	case rec.Phase == interruption.Waiting:
		return Waiting, "the turn or the time of its node"
	case rec.OnlyCordoned():
		return Waiting, "an interruption notice: its node is only cordoned"
	case provisioner.CapacityOf(rec.Replacement) == plan.PendingCapacity:
		return Waiting, "the replacement"
	}
	return Waiting, "a slot, or its eviction deadline"
}

// interrupted is all that is known of one interrupted node.
type interrupted struct {
	now  time.Time
	node *corev1.Node
	rec  interruption.Record
	line *turns.Line // of the nodes that wait for their turn or have it

	here      []*corev1.Pod // those that still have to leave
	staying   int           // how many would have to leave if the node's end were certain
	podsKnown bool          // whether these are known
	counts    Pods
}

// Of says how far each interruption has come: those under way first, by their deadlines, then
// those that are over, the last first. A node whose pods are missing could not be read.
func Of(now time.Time, all []*corev1.Node, pods map[string][]*corev1.Pod) []Interruption {
	line := turns.NewLine(turns.Concurrency{}, nil, nil) // which gives no turns
	for _, node := range all {
		if rec, err := nodes.Record(node); err == nil && !rec.PassedOver() {
			line.Enqueue(node, rec)
		}
	}
	list := []Interruption{}
	for _, node := range all {
		rec, err := nodes.Record(node)
		if errors.Is(err, nodes.ErrNoRecord) {
			continue
		}
		if err != nil {
			list = append(list, Interruption{
				Node:     node.Name,
				Pool:     nodes.PoolOf(node).Name,
				WaitsFor: "nothing: its record is not acted on: " + err.Error(),
			})
			continue
		}
		theirs, read := pods[node.Name]
		n := interrupted{now: now, node: node, rec: rec, line: line, podsKnown: read}
		if read {
			view := viewOf(now, rec, theirs)
			n.here, n.staying = view.Moving, len(view.Staying)
		}
		list = append(list, n.interruption())
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

func (n interrupted) interruption() Interruption {
	n.counts = n.count()
	rec := n.rec
	i := Interruption{
		Node: n.node.Name, Instance: rec.Instance, Pool: nodes.PoolOf(n.node).Name,
		Kind: rec.Kind, Action: rec.Action, Phase: rec.Phase, Over: rec.Phase.Over(), Rehearsal: rec.Rehearsed(),
		Noticed: rec.Noticed, Deadline: rec.Deadline, Ended: rec.Ended, Pods: n.counts, Replacement: rec.Replacement,
	}
	switch d := rec.Deadline; {
	case d.IsZero():
	case i.Over && !rec.Ended.IsZero():
		i.SlackSeconds = seconds(d.Sub(rec.Ended))
	case !i.Over:
		i.SecondsLeft = seconds(d.Sub(n.now))
	}
	i.WaitsFor = n.waitsFor()
	if i.Over {
		i.Result = result(n.counts.Pods)
	}
	return i
}

func (n interrupted) count() (c Pods) {
	c.Pods = ptr.Deref(n.rec.Pods, interruption.Pods{})
	if !n.podsKnown {
		return c
	}
	c.Here = new(len(n.here))
	for _, pod := range n.here {
		switch state, _ := StateOf(n.rec, pod, ""); state {
		case Ending:
			c.Terminating++
		case Surging:
			c.Surged++
		}
	}
	return c
}

// Leaving are those of a node's pods that have to leave it, as the drain judges by the pods alone. Callers
// ask about many nodes, or about every pod that they observe, and read nothing else that a [plan.Survey] would need.
func Leaving(now time.Time, rec interruption.Record, pods []*corev1.Pod) []*corev1.Pod {
	return viewOf(now, rec, pods).Moving
}

func viewOf(now time.Time, rec interruption.Record, pods []*corev1.Pod) plan.View {
	in := plan.NodeState{Taint: marks.Taint(rec), Since: rec.Since(), Deadline: rec.Deadline}
	return plan.ViewOf(plan.Plan(now, plan.Situation{NodeState: in, Pods: pods}))
}

// result is what became of the pods, in a clause.
func result(p interruption.Pods) string {
	if p.Total == 0 {
		return "no pod had to leave"
	}
	var parts []string
	for _, o := range p.Outcomes() {
		parts = append(parts, o.String())
	}
	text := strings.Join(parts, ", ")
	if p.Refusal != "" && p.Left+p.Forced > 0 {
		text += ": " + p.Refusal
	}
	return text
}

// seconds rounds to a tenth: no more of it is meant.
func seconds(d time.Duration) *float64 {
	return new(d.Round(100 * time.Millisecond).Seconds())
}

// waitsFor is what an interruption waits for, in a clause; empty if it is over and done with.
func (n interrupted) waitsFor() string {
	rec := n.rec
	switch {
	case rec.Canceled, n.node.Annotations[interruption.CancelAnnotation] == "true" && rec.Phase != interruption.Released:
		return "spot-handler to undo what it had set: cancelled"
	case rec.Phase == interruption.Waiting && rec.Returns() && rec.Replacement != nil:
		return fmt.Sprintf("the spot node %s to be Ready, to which its pods go back", rec.Replacement.Name)
	case rec.Phase == interruption.Waiting && rec.Kind == interruption.RebalanceRecommendation:
		return n.turn()
	case rec.Phase == interruption.Waiting:
		return "its time: --scheduled-lead before its window"
	case rec.Phase.Over():
		return n.afterwards()
	case rec.OnlyCordoned():
		return "a notice, or its recommendation to lapse: it is only cordoned"
	case n.podsKnown && len(n.here) == 0 && n.staying > 0:
		return n.stays()
	case n.podsKnown && len(n.here) == 0 && rec.Phase != interruption.Noticed:
		return "volumes to be detached"
	case rec.Phase == interruption.Noticed && rec.Replacement == nil:
		return "the drain to begin"
	case rec.Phase == interruption.Draining && rec.Pods != nil && rec.Pods.Refusal != "" && !n.allEnd():
		return "an eviction that was refused: " + rec.Pods.Refusal
	case rec.Replacement != nil && provisioner.Pending(rec.Replacement.State) && !n.allEnd():
		return replacementOf(*rec.Replacement)
	case !n.podsKnown:
		return "its pods to leave"
	}
	return n.departures()
}

// allEnd reports whether the remaining pods are known and all terminating: nothing else is waited for then.
func (n interrupted) allEnd() bool {
	return n.podsKnown && len(n.here) > 0 && n.counts.Terminating == len(n.here)
}

// turn is what a recommended node waits for until it is marked, which happens once its replacement is Ready.
func (n interrupted) turn() string {
	asked := n.rec.Replacement
	switch {
	case n.rec.PassedOver() && provisioner.Pending(asked.State): // kept in case a notice comes
		return "its next turn: no pod would leave on a recommendation this time"
	case n.rec.PassedOver():
		return "its next turn: it could not be replaced this time"
	case n.rec.TurnTaken() && asked == nil:
		return "its replacement to be requested"
	case n.rec.TurnTaken() && provisioner.Pending(asked.State):
		return replacementOf(*asked)
	case n.rec.TurnTaken():
		return "the drain to begin"
	}
	begun, ahead := n.line.Ahead(n.node.Name)
	return fmt.Sprintf("a slot in its pool: %d under way, %d ahead of it", begun, ahead)
}

// replacementOf says that the node waits for this replacement.
func replacementOf(a interruption.Replacement) string {
	if a.Name == "" {
		return "its replacement to be Ready"
	}
	return fmt.Sprintf("its replacement %s to be Ready", a.Name)
}

// stays is what a node waits for if a recommendation is no reason to evict its last pods.
func (n interrupted) stays() string {
	text := console.Count(n.staying, "pod") + " to leave, which may stay"
	if n.rec.Returns() {
		return text
	}
	return text + " until an interruption notice"
}

// departures is what the pods on the node wait for.
func (n interrupted) departures() string {
	switch c := n.counts; {
	case c.Surged > 0:
		return "replacement pods of " + console.Count(c.Surged, "pod")
	case c.Terminating > 0:
		return console.Count(c.Terminating, "pod") + " to end"
	case len(n.here) > 0:
		return "the turn or the eviction deadline of " + console.Count(len(n.here), "pod")
	}
	return "the drain to begin"
}

// afterwards is what a drain that is over still waits for.
func (n interrupted) afterwards() string {
	hook := slices.ContainsFunc(n.rec.Hooks, func(h interruption.Hook) bool { return !h.Done })
	switch {
	case hook:
		return "its lifecycle hook to be completed"
	case n.rec.Rehearsed() && !n.rec.Release:
		return "the node to be put back into service"
	case n.rec.ComesBack():
		return "its instance to come back"
	case n.rec.Phase == interruption.Released:
		return ""
	}
	return "the node to be terminated"
}
