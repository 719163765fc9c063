package drain

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/drain/plan"
)

// codeOf is the value of evictions_total's label: the HTTP status, or "error" where there was
// no reply.
func codeOf(r plan.Reply) string {
	if r.Status == 0 {
		return codeError
	}
	if code := strconv.Itoa(int(r.Status)); slices.Contains(evictionCodes, code) {
		return code
	}
	return codeOther
}

// classify tells the replies of the eviction API apart by status and cause, never by their
// text. Admission webhooks and policies can deny with any status: KubeVirt's uses 429 until
// it has moved a virtual machine.
// https://github.com/kubernetes/kubernetes/blob/master/pkg/registry/core/pod/storage/eviction.go
func classify(err error) plan.Reply {
	if err == nil {
		return plan.Reply{Outcome: plan.Accepted, Status: http.StatusCreated}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return plan.Reply{Outcome: plan.Unanswered, Reason: err.Error()}
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return plan.Reply{Outcome: plan.Transient, Reason: err.Error()}
	}
	r := plan.Reply{Outcome: plan.Transient, Status: status.Status().Code, Reason: status.Status().Message}
	// Only a refusal says with Retry-After when it ends. A timeout (504, after evictions have
	// fought over one budget's status) says 10 s too, which is too much of two minutes.
	if details := status.Status().Details; details != nil && apierrors.IsTooManyRequests(err) {
		r.RetryAfter = time.Duration(details.RetryAfterSeconds) * time.Second
	}
	// A conflict (409) is transient. It can mean that our pod is gone and another has its
	// name, but also that many evictions fight over one budget's status. The watch tells
	// which before the next attempt.
	budget, ofBudget := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause)
	switch {
	case apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse): // of priority and fairness or a proxy, not the API
	case apierrors.IsNotFound(err):
		r.Outcome = plan.PodGone
	case ofBudget:
		r.Outcome, r.OfBudget = plan.Refused, true
		if budget.Message != "" {
			r.Reason += " " + budget.Message
		}
	case apierrors.IsTooManyRequests(err):
		if r.RetryAfter == 0 { // otherwise the API server has no room for the request
			r.Outcome = plan.Refused
		}
	case apierrors.IsConflict(err), apierrors.IsUnauthorized(err):
	case r.Status >= http.StatusBadRequest && r.Status < http.StatusInternalServerError:
		r.Outcome = plan.Refused
	case r.Status == http.StatusInternalServerError:
		// The API cannot evict a pod with more than one budget, and only the code says so.
		// Any other 500 is as good a reason to wait and to say why.
		r.Outcome, r.Internal = plan.Refused, true
	}
	return r
}

// replyOf is what a request has come to that was waited for as long.
func replyOf(err error, within time.Duration) plan.Reply {
	r := classify(err)
	if r.Outcome == plan.Unanswered {
		r.Reason = fmt.Sprintf("not answered within %s; an admission webhook might hang", within.Round(time.Second))
	}
	return r
}
