package drain

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/rs/zerolog"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// evictTimeout bounds one eviction request. The API server answers in milliseconds. An
// admission webhook can take up to 30 s, a quarter of all the time there is: it is better to
// ask again.
const evictTimeout = 10 * time.Second

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
	done := func() { t.session.note(func() { t.state.task = nil }) }
	t.asked = time.Now()
	decision, ok := t.session.decision(t.asked, t.pod)
	if !ok {
		done() // gone, or another pod has its name
		return false
	}
	t.latest = decision.due()
	if decision.Action == SurgeNow && t.surged || decision.Action == Return && t.returned {
		d.queue.park(t) // the node's watch has not shown it yet; when it does, the node is planned again
		return false
	}
	if in, gather := d.laneOf(t, decision); gather != nil && lane == nil {
		if lane = d.lanes.enter(in, t, gather); lane == nil {
			return false
		}
	}
	if decision.takes && !d.deployments.reserve(decision.Pod, decision.Action, d.ahead(t, decision)) {
		d.park(t, decision)
		return false
	}
	var answer answer
	switch {
	case decision.Action == SurgeNow:
		lane() // the others can count without it
		answer = d.surge(ctx, t, decision)
	case decision.Action == Evict:
		answer = d.evict(ctx, t, decision)
	case decision.Action == Force:
		answer = d.force(ctx, t, decision)
	case decision.Action == End:
		answer = d.end(ctx, t, decision)
	case decision.Action == Return:
		answer = d.giveBack(ctx, t, decision)
	case decision.waits:
		d.park(t, decision)
	default:
		done() // it is terminating, or held again; the next plan says so
	}
	return answer.busy()
}

// The nodes that are lost together are planned one by one. Where not all of their pods can go, those
// that are due first go first, so they have to be known.
const (
	together = 300 * time.Millisecond // from the first to the last of such nodes
	planned  = time.Second            // until a node's first plan is carried out, at most
	sameTime = 100 * time.Millisecond // until all plans are carried out that are due at one time
)

// laneOf is the lane of the decision, and how long to wait there for those that are to come; nil if
// it needs none.
func (d *Drainer) laneOf(t *task, decision Decision) (in lane, gather func() time.Duration) {
	asked := t.asked
	gathering := func() time.Duration { return min(d.gathering(), planned-time.Since(asked)) }
	switch budget := d.budgets.of(t.pod); {
	case decision.Action == SurgeNow:
		return lane{deployment: decision.workload}, gathering
	case decision.Action != Evict || budget == nil:
		return lane{}, nil
	case t.attempt > 0, budget.Status.DisruptionsAllowed >= budget.Status.ExpectedPods: // it was woken in its turn, or all can go
		return lane{budget: budget.UID}, func() time.Duration { return 0 }
	default:
		return lane{budget: budget.UID}, func() time.Duration { return max(sameTime-time.Since(asked), gathering()) }
	}
}

// gathering is how long to wait for nodes whose drain has just begun and that have not been planned;
// zero or less if there is none.
func (d *Drainer) gathering() (wait time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Since(d.newest) >= planned {
		return 0
	}
	for _, s := range d.sessions {
		began := time.Since(s.began)
		if _, ok := s.interruption(); !ok && began < planned {
			return sameTime
		}
		wait = max(wait, together-began)
	}
	return wait
}

// ahead is how many pods go before the task's that wait for the same of their Deployment.
func (d *Drainer) ahead(t *task, decision Decision) int {
	if decision.Action != SurgeNow && decision.Action != Evict {
		return 0
	}
	return d.queue.ahead(t, waitsToBeSurged(decision.Action == SurgeNow))
}

// bounded is the context of one request. A request is not cut short when the process stops:
// the API server could have charged the budget without having deleted the pod.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), evictTimeout)
}

func (d *Drainer) surge(ctx context.Context, t *task, decision Decision) answer {
	request, cancel := bounded(ctx)
	defer cancel()
	if err := PatchSurge(request, d.opts.Pods, decision.Pod, time.Now()); err != nil {
		d.deployments.settle(decision.Pod)
		answer := classify(err)
		if answer.outcome == refused { // by admission: the pod is held, like any other
			level := zerolog.WarnLevel
			if t.session.fix(t.state, answer.reason) {
				level = zerolog.DebugLevel // it was said about another pod
			}
			d.log(t).WithLevel(level).Err(err).Msg("surge pod; it is held instead")
			d.opts.Notify(t.session.node)
			return answer
		}
		d.again(t, decision, answer, err, "surge pod")
		return answer
	}
	t.surged = true
	d.log(t).Debug().Msg("pod surged: its replacement pod is made")
	d.park(t, decision) // until the replacement pod is available
	return answer{}
}

// giveBack undoes a pod's surge, for the rest of the drain.
func (d *Drainer) giveBack(ctx context.Context, t *task, decision Decision) answer {
	request, cancel := bounded(ctx)
	defer cancel()
	ended, err := d.putBack(request, decision)
	switch {
	case err != nil:
		answer := classify(err)
		d.deployments.settle(decision.Pod)
		d.again(t, decision, answer, err, "give surged pod back to its ReplicaSet")
		return answer
	case ended:
		d.ended(t, decision)
	default:
		t.surged, t.returned = false, true
		t.session.note(func() { t.state.fixed = decision.Reason })
		if decision.takes {
			d.deployments.giveUp(decision.workload, decision.Reason)
		}
		d.log(t).Debug().Str("reason", decision.Reason).Msg("surged pod given back to its ReplicaSet")
		d.queue.park(t) // until the node's watch shows it
	}
	return answer{}
}

// park has a task wait for its Deployment. It would miss what happened there since its
// decision, or that its time has come, so both are looked at once more.
func (d *Drainer) park(t *task, decision Decision) {
	d.queue.park(t)
	if !decision.At.IsZero() && !time.Now().Before(decision.At) {
		d.queue.unpark(t)
		return
	}
	d.deployments.look(DeploymentOf(t.pod))
}

func (d *Drainer) evict(ctx context.Context, t *task, decision Decision) answer {
	request, cancel := bounded(ctx)
	defer cancel()
	err := PostEviction(request, d.opts.Pods, decision)
	answer := classify(err)
	d.metrics.evictions.WithLabelValues(answer.code()).Inc()
	if answer.outcome == refused && granted(t.pod, d.budgets.list(t.pod.Namespace), time.Now()) {
		answer = d.carryOutGranted(request, t, decision, answer)
	}
	if decision.takes && answer.outcome != accepted && answer.outcome != podGone {
		d.deployments.settle(decision.Pod)
	}
	switch answer.outcome {
	case accepted, podGone:
		t.session.sentAway(t.state, answer.outcome == accepted && decision.Grace != nil, false)
	case refused:
		t.attempt++
		var first, blocked bool // first: its plan now also depends on its latest start; blocked: people are told
		t.session.note(func() {
			first, blocked = t.state.refusal == "", !t.state.blocked && t.attempt >= tellAfter
			t.state.refusal, t.state.ofBudget, t.state.blocked = answer.reason, answer.ofBudget, t.attempt >= tellAfter
		})
		d.log(t).Debug().Str("reason", answer.reason).Int("attempt", t.attempt).Msg("eviction refused")
		d.retry(t, decision, answer)
		if blocked {
			d.opts.Events.EvictionBlocked(t.session.node, t.pod, answer.reason)
		}
		if first || blocked {
			d.opts.Notify(t.session.node)
		}
	case transient:
		d.again(t, decision, answer, err, "evict pod")
	}
	return answer
}

// again retries a task after an answer that says nothing about the pod.
func (d *Drainer) again(t *task, decision Decision, answer answer, err error, what string) {
	t.attempt++
	d.log(t).Debug().Err(err).Int("attempt", t.attempt).Msg(what)
	d.retry(t, decision, answer)
}

// retry puts a task back until the API server wants to be asked again, or until its pod's
// eviction deadline: a busy server says up to 32 s. If that came while the request was under
// way the task is tried at once, as its decision might be another one now.
func (d *Drainer) retry(t *task, decision Decision, answer answer) {
	wait := max(answer.retryAfter, retryIn(t.attempt))
	if t.asked.Before(decision.Latest) {
		wait = min(wait, max(0, time.Until(decision.Latest)))
	}
	d.queue.after(t, wait)
}

func (d *Drainer) log(t *task) *zerolog.Logger {
	log := d.opts.Logger.With().Str("node", t.session.node).Str("pod", t.pod.Namespace+"/"+t.pod.Name).Logger()
	return &log
}

// PostEviction asks the API server to evict the pod with that UID and no other: a
// StatefulSet might have made a new one of the same name. A 429 is not retried here, as
// client-go would do for as long as Retry-After says.
// https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
func PostEviction(ctx context.Context, client rest.Interface, d Decision) error {
	eviction := &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: d.Pod.Name, Namespace: d.Pod.Namespace},
		DeleteOptions: &metav1.DeleteOptions{
			GracePeriodSeconds: d.Grace,
			Preconditions:      metav1.NewUIDPreconditions(string(d.Pod.UID)),
		},
	}
	return client.Post().Namespace(d.Pod.Namespace).Resource("pods").Name(d.Pod.Name).SubResource("eviction").
		MaxRetries(0).Body(eviction).Do(ctx).Error()
}

// tellAfter is the refusal in a row at which people are told. That a budget lets pods go one
// after the other is its purpose, and not worth an Event.
const tellAfter = 4

type outcome int

const (
	accepted  outcome = iota // 200, 201
	podGone                  // 404
	refused                  // by a budget, a terminating namespace or admission
	transient                // anything else: try again
)

// answer is what the API server's reply to an eviction means.
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

// busy reports whether the API server has no room for the request.
func (a answer) busy() bool { return a.outcome == transient && a.status == http.StatusTooManyRequests }

// retryIn is when a refused eviction is tried again if nothing wakes it earlier: from half a
// second up to five, with jitter to keep the pods of one budget apart. The watch of the
// budget makes retries prompt; this makes them certain.
func retryIn(attempt int) time.Duration {
	const first, longest = 500 * time.Millisecond, 5 * time.Second
	d := min(first<<min(attempt-1, 10), longest)
	return d/2 + rand.N(d/2)
}
