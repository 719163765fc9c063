package drain

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type outcome int

const (
	accepted   outcome = iota // 200, 201
	podGone                   // 404
	refused                   // by a budget, a terminating namespace or admission
	unanswered                // within the time that the request has: admission might hang
	transient                 // anything else: try again
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
	if errors.Is(err, context.DeadlineExceeded) {
		return answer{outcome: unanswered, reason: err.Error()}
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
