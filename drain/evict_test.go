package drain

import (
	"cmp"
	"errors"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// denied is what the API server makes of an admission webhook's denial; 400 stands for none.
// https://github.com/kubernetes/apiserver/blob/v0.36.3/pkg/admission/plugin/webhook/errors/statuserror.go
func denied(code int32) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: cmp.Or(code, http.StatusBadRequest), Message: `admission webhook "vm" denied the request: moved first`,
	}}
}

// The replies as the API server forms them; e2e has the server itself say them.
func TestClassify(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	budget := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	budget.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget web needs 10 healthy pods and has 10 currently",
	}}
	terminating := apierrors.NewForbidden(pods, "a", errors.New("namespace is going"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}

	for name, tt := range map[string]struct {
		err     error
		outcome outcome
		code    string
		after   time.Duration
	}{
		"taken":       {nil, evicted, "201", 0},
		"gone":        {apierrors.NewNotFound(pods, "a"), podGone, "404", 0},
		"another UID": {apierrors.NewConflict(pods, "a", errors.New("uid")), transient, "409", 0},
		"budget":      {budget, refused, "429", 0},
		"fairness":    {apierrors.NewTooManyRequests("too many requests", 3), transient, "429", 3 * time.Second},
		"two budgets": {&apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: 500, Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
		}}, refused, "500", 0},
		"timed out":      {apierrors.NewTimeoutError("conflicts", 10), transient, "other", 0},
		"terminating":    {terminating, refused, "403", 0},
		"not allowed":    {apierrors.NewForbidden(pods, "a", errors.New("rbac")), refused, "403", 0},
		"no credentials": {apierrors.NewUnauthorized("token"), transient, "other", 0},
		"webhook":        {denied(0), refused, "other", 0},
		"KubeVirt":       {denied(http.StatusTooManyRequests), refused, "429", 0},
		"policy":         {denied(http.StatusUnprocessableEntity), refused, "other", 0},
		"busy":           {apierrors.NewGenericServerResponse(http.StatusTooManyRequests, "POST", pods, "a", "", 1, true), transient, "429", time.Second},
		"proxy's 404":    {apierrors.NewGenericServerResponse(http.StatusNotFound, "POST", pods, "a", "404 page not found", 0, true), transient, "404", 0},
		"no reply":       {errors.New("connection refused"), transient, "error", 0},
		"teapot":         {apierrors.NewGenericServerResponse(http.StatusTeapot, "POST", pods, "a", "", 0, true), transient, "other", 0},
		"wrapped reply":  {errors.Join(errors.New("evict"), apierrors.NewNotFound(pods, "a")), podGone, "404", 0},
	} {
		t.Run(name, func(t *testing.T) {
			a := classify(tt.err)
			if a.outcome != tt.outcome || a.code() != tt.code || a.retryAfter != tt.after {
				t.Errorf("outcome %v, code %s, after %s; want %v, %s, %s", a.outcome, a.code(), a.retryAfter, tt.outcome, tt.code, tt.after)
			}
		})
	}
	if got, want := classify(budget).reason, "Cannot evict pod as it would violate the pod's disruption budget. The disruption budget web needs 10 healthy pods and has 10 currently"; got != want {
		t.Errorf("reason %q, want %q", got, want)
	}
}
