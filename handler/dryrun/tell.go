package dryrun

import (
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
)

func (a *Accepter) tell(node *corev1.Node, rec interruption.Record) *zerolog.Event {
	return a.opts.Logger.Info().Str("node", node.Name).EmbedObject(rec)
}

// nothing logs that a notice would change nothing. A notice that is repeated is no news.
func (a *Accepter) nothing(node *corev1.Node, n interruption.Notice, j interruption.Judgement) {
	e := a.opts.Logger.Info()
	if j.Verdict == interruption.Duplicate {
		e = a.opts.Logger.Debug()
	}
	e.Str("node", node.Name).Str("instance_id", n.InstanceID).Str("kind", string(n.Kind)).Str("source", string(n.Source)).
		Str("event_id", n.EventID).Str("ec2_action", n.Action).Str("verdict", string(j.Verdict)).Str("reason", j.Reason).Msg("dry run: would do nothing")
}

// withdrawn logs what would be undone.
func (a *Accepter) withdrawn(node *corev1.Node, n interruption.Notice, rec interruption.Record) {
	a.tell(node, rec).Str("event_id", n.EventID).Msg("dry run: would take back what was announced")
	if rec.Canceled {
		a.tell(node, rec).Msg("dry run: would call the drain off and undo what was set")
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
	a.opts.Logger.Info().Str("instance_id", n.InstanceID).Str("kind", string(n.Kind)).Str("source", string(n.Source)).Str("event_id", n.EventID).
		Str("group", n.Hook.Group).Str("hook", n.Hook.Name).Str("reason", reason).Msg("dry run: would complete lifecycle hook")
	return verdict, nil
}

// wait logs what a drain would wait for before it begins.
func (a *Accepter) wait(node *corev1.Node, rec interruption.Record, rules interruption.Rules) {
	e := a.tell(node, rec)
	switch rec.Kind {
	case interruption.ScheduledEvent:
		e = e.Time("begin", rules.Start(rec)).Str("reason", "--scheduled-lead before the window")
	case interruption.RebalanceRecommendation:
		e = e.Str("reason", "its turn among the recommended nodes, and its replacement")
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
func (a *Accepter) pod(node *corev1.Node, rec interruption.Record, decision drain.Decision) {
	e := a.tell(node, rec).Str("pod", decision.Pod.Namespace+"/"+decision.Pod.Name).
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
		a.tell(node, rec).Str("group", h.Group).Str("hook", h.Name).Str("reason", "when the drain is over").
			Msg("dry run: would complete lifecycle hook")
	}
}

// end logs what would become of the node.
func (a *Accepter) end(node *corev1.Node, rec interruption.Record) {
	switch {
	case rec.ComesBack():
		a.tell(node, rec).Str("reason", "the instance comes back: what was set is undone then").Msg("dry run: would keep node")
	case a.opts.ReleaseNode:
		a.tell(node, rec).Msg("dry run: would release node")
	}
}
