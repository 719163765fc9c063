package drain

import (
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"spot-handler/drain/plan"
)

// attempt takes a task one step further, as the plan now says. It reports whether the API
// server was too busy for it.
func (d *Drainer) attempt(t *task) (busy bool) {
	turn := t.turn
	t.turn = nil
	defer func() { turn.end() }()
	if !t.session.enter() {
		return false
	}
	defer t.session.leave()
	decision, ok := t.session.decision(t)
	switch {
	case !ok:
		return false
	case decision.Action == plan.SurgeNow && t.surged, decision.Action == plan.Return && t.returned:
		d.queue.park(t) // the node's watch has not shown it yet; when it does, the node is planned again
		return false
	case decision.Waits:
		d.park(t, decision)
		return false
	}
	if turn == nil {
		ok := false
		if turn, ok = d.enterLane(t, decision); !ok {
			return false
		}
	}
	if !d.reserve(t, decision) {
		d.park(t, decision)
		return false
	}
	if decision.Action == plan.SurgeNow {
		turn.end() // the others can count without it
	}
	turn.begin()
	within := answersWithin(time.Now(), decision, t.unanswered)
	did, err := d.request(t.session.going, decision, within)
	answer := classify(err)
	if answer.outcome == unanswered {
		answer.reason = fmt.Sprintf("not answered within %s; an admission webhook might hang", within.Round(time.Second))
	}
	return d.settle(t, decision, did, answer)
}

// tellAfter is the refusal in a row at which people are notified. That a budget lets pods go one
// after the other is its purpose, and not worth an Event.
const tellAfter = 4

// triedAgain are what is logged of requests that are made again.
var triedAgain = map[plan.Action]string{
	plan.SurgeNow: "surge pod",
	plan.Evict:    "evict pod",
	plan.Force:    "delete pod past its disruption budget",
	plan.End:      "end surged pod",
	plan.Return:   "give surged pod back to its ReplicaSet",
}

// settle takes in what has become of a request: the pod is on its way, or the task waits or is tried
// again.
func (d *Drainer) settle(t *task, decision plan.Decision, did plan.Action, answer answer) (busy bool) {
	s, hangs := t.session, answer.outcome == unanswered && t.unanswered
	t.unanswered = answer.outcome == unanswered
	log := d.opts.Logger.With().Str("node", s.node).Str("pod", t.pod.Namespace+"/"+t.pod.Name).Logger()
	if !answer.settled() {
		t.attempt++
		d.deployments.settle(decision)
	}
	switch {
	case answer.settled() && did == plan.SurgeNow:
		t.surged = true
		log.Debug().Msg("pod surged: its replacement pod is made")
		d.park(t, decision) // until the replacement pod is available
	case answer.settled() && did == plan.Return:
		t.surged, t.returned = false, true
		s.fix(t.state, decision.Reason)
		if decision.Takes {
			d.deployments.giveUp(decision.Deployment, decision.Reason)
		}
		log.Debug().Str("reason", decision.Reason).Msg("surged pod given back to its ReplicaSet")
		d.queue.park(t) // until the node's watch shows it
	case answer.settled():
		by := evicted
		switch {
		case answer.outcome == podGone:
		case did == plan.Force:
			by = forceDeleted
		case decision.Grace != nil:
			by = cutShort
		}
		refusal := s.sentAway(t.state, by)
		if did == plan.End {
			log.Info().Str("reason", decision.Reason).Msg("surged pod ended, as its ReplicaSet would have")
		}
		if by == forceDeleted {
			log.Warn().Str("reason", refusal).Msg("pod deleted past its disruption budget")
			d.opts.Events.EvictionForced(s.node, t.pod, refusal)
		}
	case did == plan.SurgeNow && (answer.outcome == refused || hangs): // by admission: the pod is held, like any other
		level := zerolog.WarnLevel
		if s.fix(t.state, answer.reason) {
			level = zerolog.DebugLevel // it was said about another pod
		}
		s.note(func() { t.state.task = nil })
		log.WithLevel(level).Str("reason", answer.reason).Msg("surge pod; it is held instead")
		d.opts.Notify(s.node)
	case did == plan.Evict && (answer.outcome == refused || answer.outcome == unanswered):
		first, blocked := s.refused(t.state, answer, t.unanswered || t.attempt >= tellAfter)
		log.Debug().Str("reason", answer.reason).Int("attempt", t.attempt).Msg("eviction refused")
		d.retry(t, decision, answer)
		if blocked {
			d.opts.Events.EvictionBlocked(s.node, t.pod, answer.reason)
		}
		if first || blocked {
			d.opts.Notify(s.node)
		}
	default: // the answer says nothing about the pod
		s.note(func() { t.state.failure = answer.reason })
		log.Debug().Str("reason", answer.reason).Int("attempt", t.attempt).Msg(triedAgain[did])
		d.retry(t, decision, answer)
	}
	return answer.busy()
}
