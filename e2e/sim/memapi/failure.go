package memapi

import (
	"encoding/json"
	"fmt"
	"net/http"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Failure is an answer that is an error.
type Failure struct {
	metav1.Status
	plain bool // a bare text, as of an API that is not there
}

// Error implements error.
func (f *Failure) Error() string { return f.Message }

func (f *Failure) body(inProtobuf bool) []byte {
	if f.plain {
		return []byte(f.Message)
	}
	f.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	f.Status.Status = metav1.StatusFailure
	return statusText(&f.Status, inProtobuf)
}

// statusText encodes a Status for an answer.
func statusText(status *metav1.Status, inProtobuf bool) []byte {
	if inProtobuf {
		return enveloped(status.GroupVersionKind(), mustMarshal(status))
	}
	text, _ := json.Marshal(status) // texts and numbers
	return text
}

func failed(err *apierrors.StatusError) *Failure { return &Failure{Status: err.ErrStatus} }

func badRequest(format string, args ...any) *Failure {
	return failed(apierrors.NewBadRequest(fmt.Sprintf(format, args...)))
}

func notFound(k *Kind, name string) *Failure {
	return failed(apierrors.NewNotFound(k.resource(), name))
}

func conflict(k *Kind, name, format string, args ...any) *Failure {
	return failed(apierrors.NewConflict(k.resource(), name, fmt.Errorf(format, args...)))
}

func expired(text string) *Failure { return failed(apierrors.NewResourceExpired(text)) }

// invalid is what the API server says of a patch that doesn't apply.
func invalid(format string, args ...any) *Failure {
	text := fmt.Sprintf(format, args...)
	return failed(apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", Nodes.resource(), "", text, 0, false))
}

// tooLargeVersion is the answer about a version that is still to come.
func tooLargeVersion(asked, current int64) *Failure {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", asked, current), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
	return failed(err)
}

// noSuchAPI is the answer of a server that has no such kind.
func noSuchAPI() *Failure {
	f := &Failure{plain: true}
	f.Code, f.Message = http.StatusNotFound, "404 page not found\n"
	return f
}

// Trouble is an error by that code that says nothing about the request, as an API server in trouble gives.
func Trouble(code int) *Failure {
	switch code {
	case http.StatusTooManyRequests: // of priority and fairness, which is a text
		f := &Failure{plain: true}
		f.Code, f.Message = int32(code), "Too many requests, please try again later.\n"
		return f
	case http.StatusForbidden:
		return failed(apierrors.NewForbidden(Pods.resource(), "", fmt.Errorf("a policy denies it")))
	case http.StatusConflict:
		return conflict(Nodes, "", "the object has been modified; please apply your changes to the latest version and try again")
	case http.StatusServiceUnavailable:
		return failed(apierrors.NewServiceUnavailable("etcdserver: leader changed"))
	case http.StatusGatewayTimeout:
		return failed(apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0))
	}
	return failed(apierrors.NewInternalError(fmt.Errorf("etcdserver: request timed out")))
}

// refusal is how a disruption budget refuses.
func refusal(budget *policyv1.PodDisruptionBudget, processing bool) *Failure {
	seconds, message := 0, fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", budget.Name)
	switch {
	case processing:
		seconds, message = 10, fmt.Sprintf("The disruption budget %s is still being processed by the server.", budget.Name)
	case budget.Status.CurrentHealthy <= budget.Status.DesiredHealthy:
		message = fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently",
			budget.Name, budget.Status.DesiredHealthy, budget.Status.CurrentHealthy)
	}
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", seconds)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause, Message: message}}
	return failed(err)
}
