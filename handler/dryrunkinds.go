package handler

import (
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

func (d *DryRun) tell(node *corev1.Node, rec interruption.Record) *zerolog.Event {
	return tell(d.logger.Info(), node.Name, rec)
}

// nothing logs that a notice would change nothing. One that is heard again is no news.
func (d *DryRun) nothing(node *corev1.Node, n interruption.Notice, verdict interruption.Verdict) {
	e := d.logger.Info()
	if verdict == interruption.Duplicate {
		e = d.logger.Debug()
	}
	e.Str("node", node.Name).Str("instance_id", n.InstanceID).Str("kind", string(n.Kind)).Str("source", string(n.Source)).
		Str("event_id", n.EventID).Str("ec2_action", n.Action).Str("verdict", string(verdict)).Msg("dry run: would do nothing")
}

// withdrawn logs what would be undone.
func (d *DryRun) withdrawn(node *corev1.Node, n interruption.Notice, rec interruption.Record) {
	d.tell(node, rec).Str("event_id", n.EventID).Msg("dry run: would take back what was announced")
	if rec.Canceled {
		d.tell(node, rec).Msg("dry run: would call the drain off and undo what was set")
	}
}

// hookAlone is about a lifecycle hook for which there is nothing to drain: of an instance
// that is no Node, or of one that starts, which is no interruption.
func (d *DryRun) hookAlone(n interruption.Notice, known bool) (interruption.Verdict, error) {
	verdict, reason := interruption.Completed, "no Node of this cluster is the instance"
	if n.Hook.Launching {
		verdict = interruption.Ignored
		if reason = "as soon as its Node is Ready"; known {
			reason = "as soon as its Node is Ready; there is one"
		}
	}
	d.logger.Info().Str("instance_id", n.InstanceID).Str("kind", string(n.Kind)).Str("source", string(n.Source)).Str("event_id", n.EventID).
		Str("group", n.Hook.Group).Str("hook", n.Hook.Name).Str("reason", reason).Msg("dry run: would complete lifecycle hook")
	return verdict, nil
}

// wait logs for what a drain would wait before it begins.
func (d *DryRun) wait(node *corev1.Node, rec interruption.Record) {
	e := d.tell(node, rec)
	switch rec.Kind {
	case interruption.ScheduledEvent:
		e = e.Time("begin", rec.DeadlineTime().Add(-d.handler.opts.ScheduledLead)).Str("reason", "--scheduled-lead before the window")
	case interruption.RebalanceRecommendation:
		e = e.Str("reason", "its turn among the recommended nodes")
	}
	e.Msg("dry run: would wait")
}

// cordonsOnly is the reason why no pod would be moved, or "".
func (d *DryRun) cordonsOnly(node *corev1.Node, rec interruption.Record) string {
	switch {
	case d.handler.opts.CordonOnly:
		return "--cordon-only"
	case rec.Kind == interruption.RebalanceRecommendation && d.handler.rebalancePolicy(node) == RebalanceCordon:
		return "on a rebalance recommendation nodes of this kind are cordoned only"
	}
	return ""
}

// hooks logs which lifecycle hooks would be completed when the drain is over.
func (d *DryRun) hooks(node *corev1.Node, rec interruption.Record) {
	for _, h := range rec.Hooks {
		d.tell(node, rec).Str("group", h.Group).Str("hook", h.Name).Str("reason", "when the drain is over").
			Msg("dry run: would complete lifecycle hook")
	}
}

// end logs what would become of the node.
func (d *DryRun) end(node *corev1.Node, rec interruption.Record) {
	switch {
	case rec.ComesBack():
		d.tell(node, rec).Str("reason", "the instance comes back: what was set is undone then").Msg("dry run: would keep node")
	case d.handler.opts.ReleaseNode:
		d.tell(node, rec).Msg("dry run: would release node")
	}
}
