package sqsemu

import (
	"net/http"
	"strings"

	"spot-handler/e2e/internal/faulty"
)

// Fault is a failure on demand. Its Action is one of the API, such as DeleteMessageBatch.
type Fault = faulty.Fault

// Unanswered is the delay of a request that gets no answer.
const Unanswered = faulty.Unanswered

// Effects of faults.
var (
	// AccessDenied answers 403 AccessDenied, as if an IAM permission were missing.
	AccessDenied faulty.Effect = func(w http.ResponseWriter, r *http.Request) {
		errAccessDenied(strings.TrimPrefix(r.Header.Get(targetHeader), targetPrefix)).write(w)
	}
	// Unavailable answers 503 ServiceUnavailable.
	Unavailable faulty.Effect = func(w http.ResponseWriter, _ *http.Request) { errUnavailable().write(w) }
	// RequestThrottled answers 403 RequestThrottled, the throttling error of SQS's own model.
	RequestThrottled faulty.Effect = func(w http.ResponseWriter, _ *http.Request) { errRequestThrottled().write(w) }
	// Throttling answers 400 ThrottlingException, the throttling error that all AWS services share.
	Throttling faulty.Effect = func(w http.ResponseWriter, _ *http.Request) { errThrottling().write(w) }
	// Reset breaks the connection.
	Reset faulty.Effect = faulty.Reset
)
