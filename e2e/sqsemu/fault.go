package sqsemu

import (
	"net/http"

	"spot-handler/e2e/internal/faulty"
)

// Fault is a failure on demand. Its Action is one of the API, such as DeleteMessageBatch.
type Fault = faulty.Fault

// Unanswered is the delay of a request that gets no answer.
const Unanswered = faulty.Unanswered

// Effects of faults.
var (
	// AccessDenied answers 403 AccessDenied, as if an IAM permission were missing.
	AccessDenied = refusal(http.StatusForbidden, commonShape+"AccessDeniedException", "AccessDenied",
		"User: arn:aws:iam::"+account+":user/emulated is not authorized to perform this action because no identity-based policy allows it")
	// Unavailable answers 503 ServiceUnavailable.
	Unavailable = refusal(http.StatusServiceUnavailable, commonShape+"ServiceUnavailableException", "ServiceUnavailable",
		"The request has failed due to a temporary failure of the server.")
	// RequestThrottled is the throttling error of SQS's own model. Its status is 403; a client that looks at nothing
	// else takes that for missing permissions.
	RequestThrottled = refusal(http.StatusForbidden, sqsShape+"RequestThrottled", "RequestThrottled",
		"The request was denied due to request throttling.")
	// Throttling is the throttling error of the front end that all AWS services share.
	Throttling = refusal(http.StatusBadRequest, "com.amazon.coral.availability#ThrottlingException", "ThrottlingException", "Rate exceeded")
	// Reset breaks the connection.
	Reset faulty.Effect = faulty.Reset
)

func refusal(status int, shape, query, message string) faulty.Effect {
	return func(w http.ResponseWriter, _ *http.Request) { (&apiError{status, shape, query, message}).write(w) }
}
