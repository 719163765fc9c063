package lifecycle

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spot-handler/handler/awsfault"
)

// The results of calls that the counter tells apart beside reasons.
const (
	resultOK     = "ok"
	resultFailed = "failed" // timeouts, the service's own failures, ...
)

// newActions counts calls by action and result, all of which exist from the start.
func newActions(reg prometheus.Registerer) *prometheus.CounterVec {
	actions := promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "spot_handler_lifecycle_actions_total",
		Help: "Calls about lifecycle hooks, by what came of them. invalid: the group did not wait at the hook any more.",
	}, []string{"action", "result"})
	for _, a := range []action{complete, completeLaunch, completeUnknown, heartbeat, describe} {
		for _, result := range []string{
			resultOK,
			string(awsfault.Denied),
			string(awsfault.Credentials),
			string(awsfault.Throttled),
			string(awsfault.Refused),
			resultFailed,
		} {
			actions.WithLabelValues(a.label, result)
		}
	}
	return actions
}

// resultOf is what came of a call, as the value of a label.
func resultOf(err error) string {
	switch reason := awsfault.Of(err); reason {
	case "":
		return resultOK
	case awsfault.Denied, awsfault.Credentials, awsfault.Throttled, awsfault.Refused:
		return string(reason)
	}
	return resultFailed
}
