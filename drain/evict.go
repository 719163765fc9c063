package drain

import (
	"context"

	"github.com/rs/zerolog"
)

// attempt takes a task one step further, as the plan now says. It reports whether the API
// server was too busy for it.
func (d *Drainer) attempt(ctx context.Context, t *task) (busy bool) {
	lane := t.lane
	t.lane = nil
	defer func() {
		if lane != nil {
			lane()
		}
	}()
	if !t.session.enter() {
		return false
	}
	defer t.session.leave()
	leave := d.shares.enter(t)
	if leave == nil {
		return false
	}
	defer leave()
	decision := t.session.decision(t)
	switch {
	case decision.waits:
		d.park(t, decision)
		return false
	case !decision.Action.requests():
		t.session.note(func() { t.state.task = nil }) // it has gone, is terminating, or held again; the next plan says so
		return false
	case decision.Action == SurgeNow && t.surged, decision.Action == Return && t.returned:
		d.queue.park(t) // the node's watch has not shown it yet; when it does, the node is planned again
		return false
	}
	if lane == nil {
		if lane = d.enterLane(t, decision); lane == nil {
			return false
		}
	}
	if !d.reserve(t, decision) {
		d.park(t, decision)
		return false
	}
	if decision.Action == SurgeNow {
		lane() // the others can count without it
	}
	did, err := d.request(ctx, decision)
	return d.settle(t, decision, did, err)
}

// tellAfter is the refusal in a row at which people are told. That a budget lets pods go one
// after the other is its purpose, and not worth an Event.
const tellAfter = 4

// unanswered are what is logged of requests that are made again.
var unanswered = map[Action]string{
	SurgeNow: "surge pod",
	Evict:    "evict pod",
	Force:    "delete pod past its disruption budget",
	End:      "end surged pod",
	Return:   "give surged pod back to its ReplicaSet",
}

// settle takes in what has become of a request: the pod is on its way, or the task waits or is tried
// again.
func (d *Drainer) settle(t *task, decision Decision, did Action, err error) (busy bool) {
	s, answer := t.session, classify(err)
	log := d.opts.Logger.With().Str("node", s.node).Str("pod", t.pod.Namespace+"/"+t.pod.Name).Logger()
	if !answer.settled() {
		t.attempt++
		if decision.takes {
			d.deployments.settle(decision)
		}
	}
	switch {
	case answer.settled() && did == SurgeNow:
		t.surged = true
		log.Debug().Msg("pod surged: its replacement pod is made")
		d.park(t, decision) // until the replacement pod is available
	case answer.settled() && did == Return:
		t.surged, t.returned = false, true
		s.fix(t.state, decision.Reason)
		if decision.takes {
			d.deployments.giveUp(decision.workload, decision.Reason)
		}
		log.Debug().Str("reason", decision.Reason).Msg("surged pod given back to its ReplicaSet")
		d.queue.park(t) // until the node's watch shows it
	case answer.settled():
		by := evicted
		switch {
		case answer.outcome == podGone:
		case did == Force:
			by = forceDeleted
		case decision.Grace != nil:
			by = cutShort
		}
		refusal := s.sentAway(t.state, by)
		if did == End {
			log.Info().Str("reason", decision.Reason).Msg("surged pod ended, as its ReplicaSet would have")
		}
		if by == forceDeleted {
			log.Warn().Str("reason", refusal).Msg("pod deleted past its disruption budget")
			d.opts.Events.EvictionForced(s.node, t.pod, refusal)
		}
	case answer.outcome == refused && did == SurgeNow: // by admission: the pod is held, like any other
		level := zerolog.WarnLevel
		if s.fix(t.state, answer.reason) {
			level = zerolog.DebugLevel // it was said about another pod
		}
		s.note(func() { t.state.task = nil })
		log.WithLevel(level).Err(err).Msg("surge pod; it is held instead")
		d.opts.Notify(s.node)
	case answer.outcome == refused && did == Evict:
		first, blocked := s.refused(t.state, answer, t.attempt >= tellAfter)
		log.Debug().Str("reason", answer.reason).Int("attempt", t.attempt).Msg("eviction refused")
		d.retry(t, decision, answer)
		if blocked {
			d.opts.Events.EvictionBlocked(s.node, t.pod, answer.reason)
		}
		if first || blocked {
			d.opts.Notify(s.node)
		}
	default: // the answer says nothing about the pod
		log.Debug().Err(err).Int("attempt", t.attempt).Msg(unanswered[did])
		d.retry(t, decision, answer)
	}
	return answer.busy()
}
