package status

import (
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
	"spot-handler/handler/nodes"
	"spot-handler/handler/notify"
	"spot-handler/handler/provisioner"
)

// InForce are the operator's settings that a drain follows.
type InForce struct {
	Policy        plan.Policy
	ScheduledLead time.Duration
	// From says where they were read, or that they are assumed.
	From string
}

// interruption is what the drain of a record is planned with.
func (in InForce) interruption(rec interruption.Record, now time.Time) plan.NodeState {
	rules := interruption.Rules{ScheduledLead: in.ScheduledLead}
	return plan.NodeState{
		Taint:    marks.Taint(rec),
		Since:    rec.Since(),
		Deadline: rules.DrainBy(rec, now),
		Capacity: provisioner.CapacityOf(rec.Replacement),
	}
}

// Node is all that is known of one node.
type Node struct {
	Interruption
	Record *interruption.Record `json:"record,omitempty"`
	// InForce says by which settings the pods were judged.
	InForce string   `json:"inForce,omitempty"`
	OnNode  []Pod    `json:"onNode,omitempty"` // that have to leave
	Events  []Event  `json:"events,omitempty"`
	Unread  []string `json:"unread,omitempty"`
}

// Pod is what a pod on the node waits for.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Next is what is planned for it, as the drain calls it.
	Next plan.Action `json:"next"`
	// By is when its eviction begins at the latest.
	By           *time.Time `json:"by,omitempty"`
	GraceSeconds int64      `json:"graceSeconds"`
	WaitsFor     string     `json:"waitsFor"`
	NoSurge      string     `json:"noSurge,omitempty"` // why no replacement pod is made first
	Refusal      string     `json:"refusal,omitempty"` // in the API server's words
}

// Event is an Event about the Node.
type Event struct {
	At     time.Time `json:"at"`
	Type   string    `json:"type"`
	Reason string    `json:"reason"`
	Text   string    `json:"text"`
}

// sources are what the status of a node is made from.
type sources struct {
	now       time.Time
	node      *corev1.Node
	peers     []*corev1.Node
	in        InForce
	survey    *plan.Survey
	surveyed  bool // all of it could be read
	refusals  []corev1.Event
	events    []corev1.Event
	namespace string
}

func (t sources) status() Node {
	s := Node{Interruption: Interruption{Node: t.node.Name, Pool: nodes.PoolOf(t.node).Name}}
	for _, e := range t.events {
		s.Events = append(s.Events, Event{e.LastTimestamp.Time, e.Type, e.Reason, e.Message})
	}
	rec, err := nodes.Record(t.node)
	var view plan.View
	pods := map[string][]*corev1.Pod{}
	if t.survey != nil {
		var known bool
		if view, known = t.planned(rec); known {
			pods[t.node.Name] = podsOf(view)
		}
	}
	for _, one := range Of(t.now, append([]*corev1.Node{t.node}, t.peers...), pods) {
		if one.Node == t.node.Name {
			s.Interruption = one
		}
	}
	if err != nil {
		return s
	}
	s.Record = &rec
	if rec.Phase.Over() {
		return s
	}
	s.InForce = t.in.From
	for _, d := range view.Plan {
		if d.Moves() && (t.namespace == "" || d.Pod.Namespace == t.namespace) {
			s.OnNode = append(s.OnNode, t.pod(rec, d))
		}
	}
	return s
}

// planned is what a drain would do with the node's pods now; false if they could not be read.
func (t sources) planned(rec interruption.Record) (plan.View, bool) {
	in := t.in.interruption(rec, t.now)
	seen, _ := t.survey.View(t.now, plan.Wanted{NodeState: in, Goal: plan.Look})
	for _, pod := range podsOf(seen) {
		if t.refusal(pod) != "" {
			t.survey.Refused(pod.UID)
		}
	}
	return t.survey.View(t.now, plan.Wanted{NodeState: in, Goal: plan.Drain})
}

func podsOf(view plan.View) (pods []*corev1.Pod) {
	for _, d := range view.Plan {
		pods = append(pods, d.Pod)
	}
	return pods
}

// refusal is why the pod's eviction was refused; empty if it was not.
func (t sources) refusal(pod *corev1.Pod) string {
	for i := range t.refusals {
		if notify.About(&t.refusals[i], pod) {
			return notify.Refusal(&t.refusals[i])
		}
	}
	return ""
}

func (t sources) pod(rec interruption.Record, d plan.Decision) Pod {
	p := Pod{
		Namespace: d.Pod.Namespace, Name: d.Pod.Name, Next: d.Action, WaitsFor: d.Reason, NoSurge: d.NoSurge,
		GraceSeconds: int64(plan.Grace(d.Pod).Seconds()), Refusal: t.refusal(d.Pod),
	}
	if !d.At.IsZero() {
		p.By = &d.At
	}
	switch {
	case d.Action == plan.Wait:
		p.By, p.Refusal = nil, ""
	case rec.Phase == interruption.Waiting:
		p.Next, p.WaitsFor = plan.Hold, "the drain has not begun"
	case rec.OnlyCordoned():
		p.Next, p.By, p.WaitsFor = plan.Hold, nil, "an interruption notice: its node is only cordoned"
	case !t.surveyed:
		p.WaitsFor, p.NoSurge = "not known: see what could not be read", ""
	}
	return p
}

// Same reports whether they differ by the time that has passed at most.
func (s Node) Same(o Node) bool {
	s.SecondsLeft, o.SecondsLeft = nil, nil
	return reflect.DeepEqual(s, o)
}
