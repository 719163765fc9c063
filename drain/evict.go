package drain

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/rs/zerolog"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	decision, ok := t.session.decision(t)
	switch {
	case !ok:
		return false
	case decision.Action == SurgeNow && t.surged, decision.Action == Return && t.returned:
		d.queue.park(t) // the node's watch has not shown it yet; when it does, the node is planned again
		return false
	case decision.waits:
		d.park(t, decision)
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

type outcome int

const (
	accepted  outcome = iota // 200, 201
	podGone                  // 404
	refused                  // by a budget, a terminating namespace or admission
	transient                // anything else: try again
)

// answer is what the API server's reply to a request means.
type answer struct {
	outcome    outcome
	status     int32
	reason     string
	ofBudget   bool // refused by a disruption budget
	retryAfter time.Duration
}

// code is the value of evictions_total's label: the HTTP status, or "error" where there was
// no reply.
func (a answer) code() string {
	if a.status == 0 {
		return codeError
	}
	if code := strconv.Itoa(int(a.status)); slices.Contains(evictionCodes, code) {
		return code
	}
	return codeOther
}

// classify tells the replies of the eviction API apart by status and cause, never by their
// text. Admission webhooks and policies can deny with any status: KubeVirt's uses 429 until
// it has moved a virtual machine.
// https://github.com/kubernetes/kubernetes/blob/master/pkg/registry/core/pod/storage/eviction.go
func classify(err error) answer {
	if err == nil {
		return answer{outcome: accepted, status: http.StatusCreated}
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return answer{outcome: transient, reason: err.Error()}
	}
	a := answer{outcome: transient, status: status.Status().Code, reason: status.Status().Message}
	// Only a refusal says with Retry-After when it ends. A timeout (504, after evictions have
	// fought over one budget's status) says 10 s too, which is too much of two minutes.
	if details := status.Status().Details; details != nil && apierrors.IsTooManyRequests(err) {
		a.retryAfter = time.Duration(details.RetryAfterSeconds) * time.Second
	}
	// A conflict (409) is transient. It can mean that our pod is gone and another has its
	// name, but also that many evictions fight over one budget's status. The watch tells
	// which before the next attempt.
	budget, ofBudget := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause)
	switch {
	case apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse): // not the API's answer, but priority and fairness's or a proxy's
	case apierrors.IsNotFound(err):
		a.outcome = podGone
	case ofBudget:
		a.outcome, a.ofBudget = refused, true
		if budget.Message != "" {
			a.reason = a.reason + " " + budget.Message
		}
	case apierrors.IsTooManyRequests(err):
		if a.retryAfter == 0 { // otherwise the API server has no room for the request
			a.outcome = refused
		}
	case apierrors.IsConflict(err), apierrors.IsUnauthorized(err):
	case a.status >= http.StatusBadRequest && a.status < http.StatusInternalServerError:
		a.outcome = refused
	case a.status == http.StatusInternalServerError:
		// The API cannot evict a pod with more than one budget, and only the code says so.
		// Any other 500 is as good a reason to wait and to say why.
		a.outcome = refused
	}
	return a
}

// settled reports whether the request need not be made again.
func (a answer) settled() bool { return a.outcome == accepted || a.outcome == podGone }

// busy reports whether the API server has no room for the request.
func (a answer) busy() bool { return a.outcome == transient && a.status == http.StatusTooManyRequests }
