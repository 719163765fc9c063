// Package dryrun says what the handler would do. It judges, plans and asks for replacements with
// the functions that the handler calls, over clients that change nothing ([Transport]).
package dryrun

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/lru"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

// Options configure an Accepter.
type Options struct {
	Index *nodes.Index
	// Rules, ReleaseNode and CordonOnly are as the handler's.
	Rules                   nodes.RulesFunc
	ReleaseNode, CordonOnly bool

	// Survey reads once what a node's drain would be planned from.
	Survey func(ctx context.Context, node string, in plan.NodeState) (*plan.Survey, error)
	// Request asks for a replacement that nobody makes: its clients change nothing.
	Request RequestFunc

	Logger zerolog.Logger
}

// RequestFunc is [provisioner.Provisioner.Request].
type RequestFunc func(ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need) (interruption.Replacement, error)

// Accepter accepts notices as the handler does, but only logs what the handler would do: the
// record, when its drain would begin, the replacement, the decision about every pod, and what
// would follow. It is safe for concurrent use.
type Accepter struct {
	opts Options

	mu   sync.Mutex // held while a notice is judged
	seen *lru.Cache // the records, by node: the Node itself carries nothing
	past *lru.Cache // what was withdrawn before it was announced, by node
}

// maxSeen is how many nodes we remember: more than are interrupted at a time.
const maxSeen = 5000

// New returns an Accepter.
func New(opts Options) *Accepter {
	return &Accepter{opts: opts, seen: lru.New(maxSeen), past: lru.New(maxSeen)}
}

// Accept logs what the handler would do about the notice. A notice that says nothing new since
// the last one for the same node is a duplicate, as it would be with a record.
func (a *Accepter) Accept(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
	node, ok := a.opts.Index.Find(n)
	if n.Hook != nil && (n.Hook.Launching || !ok) {
		return a.hookAlone(n, ok)
	}
	if !ok {
		return interruption.Unknown, nil
	}
	j := a.judge(node, n)
	switch {
	case j.Verdict != interruption.Accepted:
		a.nothing(node, n, j)
		return j.Verdict, nil
	case n.Withdrawn:
		a.withdrawn(node, n, j.Record)
		return j.Verdict, nil
	}
	if err := a.explain(ctx, node, n, j.Record); err != nil {
		a.seen.Remove(node.Name)
		return "", err
	}
	return j.Verdict, nil
}

// judge judges a notice as if the earlier ones had been recorded.
func (a *Accepter) judge(node *corev1.Node, n interruption.Notice) interruption.Judgement {
	a.mu.Lock()
	defer a.mu.Unlock()
	known, _ := a.seen.Get(node.Name)
	if rec, ok := known.(interruption.Record); ok {
		node = node.DeepCopy()
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, interruption.Annotation, rec.String())
	}
	withdrawn, _ := a.past.Get(node.Name)
	c := nodes.Case(node, n, a.opts.Rules, time.Now())
	past, _ := withdrawn.(interruption.Past)
	c.Past = c.Past.And(past)
	j := interruption.Judge(c)
	if len(j.Early) > 0 {
		a.past.Add(node.Name, past.And(j.Early))
	}
	if j.Verdict != interruption.Accepted {
		return j
	}
	a.seen.Add(node.Name, j.Record)
	if j.Record.Canceled {
		a.seen.Remove(node.Name)
	}
	return j
}

// explain logs what would happen to a node, in the order in which it would happen.
func (a *Accepter) explain(ctx context.Context, node *corev1.Node, n interruption.Notice, rec interruption.Record) error {
	in := plan.NodeState{Taint: marks.Taint(rec), Since: rec.Since(), Deadline: rec.Deadline, Capacity: plan.PendingCapacity}
	if rec.Kind == interruption.InstanceTerminating && rec.Deadline.IsZero() { // a real run would ask for it
		in.Deadline = rec.Received.Add(interruption.UnknownHookTimeout)
	}
	survey, err := a.opts.Survey(ctx, node.Name, in)
	if err != nil {
		return err
	}
	a.line(node, rec).Str("event_id", n.EventID).Str("ec2_action", rec.Action).Str("phase", string(rec.Phase)).Msg("dry run: would record")
	rules, _ := a.opts.Rules(node, rec.Kind == interruption.RebalanceRecommendation)
	if rec.Phase == interruption.Waiting {
		a.wait(node, rec, rules)
	}
	rec = *marks.Set(node, rec).Record
	a.line(node, rec).Strs("sets", rec.Ours).Msg("dry run: would cordon")
	if rec.Action == interruption.ActionTerminated {
		a.line(node, rec).Str("reason", "the instance is terminated: its volumes are detached as soon as the Node is not Ready").
			Msg("dry run: would mark node out of service")
	}
	if why := a.cordonsOnly(rec, rules); why != "" {
		a.line(node, rec).Str("reason", why).Msg("dry run: would move no pod")
		a.hooks(node, rec)
		return nil
	}
	if err := a.plan(ctx, node, rec, survey, in); err != nil {
		return err
	}
	a.hooks(node, rec)
	a.end(node, rec)
	return nil
}

// plan logs the replacement and the decision about every pod. As in a real run, the drain begins when the
// replacement, whose size depends on the pods, has been asked for.
func (a *Accepter) plan(ctx context.Context, node *corev1.Node, rec interruption.Record, survey *plan.Survey, in plan.NodeState) error {
	view, _ := survey.View(time.Now(), plan.Wanted{NodeState: in, Goal: plan.Look})
	replacement, err := a.replacement(ctx, node, rec, view)
	if err != nil {
		return fmt.Errorf("ask for replacement: %w", err)
	}
	a.line(node, rec).Str("backend", replacement.Backend).Str("replacement", replacement.Name).
		Str("pool", replacement.Pool).Str("reason", replacement.Reason).Msg("dry run: would request replacement")
	in.Capacity = provisioner.CapacityOf(&replacement)
	view, _ = survey.View(time.Now(), plan.Wanted{NodeState: in, Goal: plan.Drain})
	for _, decision := range view.Plan {
		a.pod(node, rec, decision)
	}
	return nil
}

// replacement is what would be requested. One that the record names already, as it was
// requested by a process that is no dry run, would only be followed.
func (a *Accepter) replacement(ctx context.Context, node *corev1.Node, rec interruption.Record, view plan.View) (interruption.Replacement, error) {
	if r := rec.Replacement; r != nil && r.Name != "" {
		return *r, nil
	}
	return a.opts.Request(ctx, node, rec, provisioner.NeedOf(view))
}

func (a *Accepter) line(node *corev1.Node, rec interruption.Record) *zerolog.Event {
	return a.opts.Logger.Info().Str("node", node.Name).EmbedObject(rec)
}

// nothing logs that a notice would change nothing. A notice that is repeated is no news.
func (a *Accepter) nothing(node *corev1.Node, n interruption.Notice, j interruption.Judgement) {
	e := a.opts.Logger.Info()
	if j.Verdict == interruption.Duplicate {
		e = a.opts.Logger.Debug()
	}
	fields(e, n).Str("node", node.Name).Str("ec2_action", n.Action).
		Str("verdict", string(j.Verdict)).Str("reason", j.Reason).Msg("dry run: would do nothing")
}

// withdrawn logs what would be undone.
func (a *Accepter) withdrawn(node *corev1.Node, n interruption.Notice, rec interruption.Record) {
	a.line(node, rec).Str("event_id", n.EventID).Msg("dry run: would take back what was announced")
	if rec.Canceled {
		a.line(node, rec).Msg("dry run: would cancel the drain and undo what was set")
	}
}

// hookAlone handles a lifecycle hook for which there is nothing to drain: of an instance that
// is no Node, or of one that starts, which is no interruption.
func (a *Accepter) hookAlone(n interruption.Notice, known bool) (interruption.Verdict, error) {
	verdict, reason := interruption.Completed, "no Node of this cluster is the instance"
	if n.Hook.Launching {
		verdict = interruption.Ignored
		if reason = "as soon as its Node is Ready"; known {
			reason = "as soon as its Node is Ready; there is one"
		}
	}
	fields(a.opts.Logger.Info(), n).Str("group", n.Hook.Group).Str("hook", n.Hook.Name).Str("reason", reason).
		Msg("dry run: would complete lifecycle hook")
	return verdict, nil
}

// fields adds what a notice says of itself.
func fields(e *zerolog.Event, n interruption.Notice) *zerolog.Event {
	return e.Str("instance_id", n.InstanceID).Str("kind", string(n.Kind)).Str("source", string(n.Source)).Str("event_id", n.EventID)
}

// wait logs what a drain would wait for before it begins.
func (a *Accepter) wait(node *corev1.Node, rec interruption.Record, rules interruption.Rules) {
	e := a.line(node, rec)
	switch rec.Kind {
	case interruption.ScheduledEvent:
		e = e.Time("begin", rules.Start(rec)).Str("reason", "--scheduled-lead before the window")
	case interruption.RebalanceRecommendation:
		e = e.Str("reason", "a slot among the recommended nodes, and its replacement")
	}
	e.Msg("dry run: would wait")
}

// cordonsOnly is the reason why no pod would be moved, or "".
func (a *Accepter) cordonsOnly(rec interruption.Record, rules interruption.Rules) string {
	switch {
	case a.opts.CordonOnly:
		return "--cordon-only"
	case rec.Kind == interruption.RebalanceRecommendation && rules.Rebalance == interruption.RebalanceCordon:
		return "on a rebalance recommendation nodes of this kind are cordoned only"
	}
	return ""
}

// pod logs what would become of a pod.
func (a *Accepter) pod(node *corev1.Node, rec interruption.Record, decision plan.Decision) {
	e := a.line(node, rec).Str("pod", decision.Pod.Namespace+"/"+decision.Pod.Name).
		Str("action", string(decision.Action)).Str("reason", decision.Reason)
	if !decision.At.IsZero() {
		e = e.Time("start_by", decision.At).Time("latest_start", decision.Latest)
	}
	if decision.NoSurge != "" && decision.Moves() {
		e = e.Str("no_surge", decision.NoSurge)
	}
	if decision.Grace != nil {
		e = e.Int64("grace_seconds", *decision.Grace)
	}
	e.Msg("dry run: pod")
}

// hooks logs which lifecycle hooks would be completed when the drain is over.
func (a *Accepter) hooks(node *corev1.Node, rec interruption.Record) {
	for _, h := range rec.Hooks {
		a.line(node, rec).Str("group", h.Group).Str("hook", h.Name).Str("reason", "when the drain is over").
			Msg("dry run: would complete lifecycle hook")
	}
}

// end logs what would become of the node.
func (a *Accepter) end(node *corev1.Node, rec interruption.Record) {
	switch {
	case rec.ComesBack():
		a.line(node, rec).Str("reason", "the instance comes back: what was set is undone then").Msg("dry run: would keep node")
	case a.opts.ReleaseNode:
		a.line(node, rec).Msg("dry run: would release node")
	}
}
