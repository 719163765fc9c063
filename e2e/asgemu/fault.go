package asgemu

import (
	"net/http"

	"spot-handler/e2e/internal/faulty"
)

// Fault is a failure on demand. Its Action is one of the APIs, such as DetachInstances.
type Fault = faulty.Fault

// Effects of faults. Each service has its own names for the first three.
var (
	// AccessDenied answers as if an IAM permission were missing.
	AccessDenied = refusal(func(svc service, action string) *apiError { return svc.denied(action) })
	// Throttled answers that there were too many requests.
	Throttled = refusal(func(svc service, _ string) *apiError { return svc.throttled() })
	// Unavailable answers that the service has failed.
	Unavailable = refusal(func(svc service, _ string) *apiError { return svc.unavailable() })
	// Contention answers 500 ResourceContention: another change of the group is under way.
	Contention = refusal(func(service, string) *apiError {
		return &apiError{http.StatusInternalServerError, "ResourceContention", "You already have a pending update to an Auto Scaling resource."}
	})
	// Invalid answers 400 ValidationError, for no reason that the instances show.
	Invalid = refusal(func(service, string) *apiError { return invalid("The request cannot be carried out.") })
	// Reset breaks the connection.
	Reset faulty.Effect = faulty.Reset
)

func refusal(with func(svc service, action string) *apiError) faulty.Effect {
	return func(w http.ResponseWriter, r *http.Request) {
		svc := versions[r.PostForm.Get("Version")]
		with(svc, r.PostForm.Get("Action")).write(w, svc)
	}
}
