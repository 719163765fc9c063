package lifecycle

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/rs/zerolog"

	"spot-handler/handler/awsfault"
)

// action is one of the calls: its names in IAM and in the metric, and what is logged, at which
// level, if it is not allowed.
type action struct {
	call, label, denied string
	level               zerolog.Level
}

var (
	complete = action{"CompleteLifecycleAction", "complete",
		"cannot complete lifecycle hooks: groups wait until the hook's timeout; allow the action, for groups with the cluster's tag", zerolog.ErrorLevel}
	// Counted separately: an instance that does not go into service is missed at once.
	completeLaunch = action{"CompleteLifecycleAction", "complete_launch",
		"cannot complete launch hooks: instances do not go into service before the hook's timeout; allow the action, for groups with the cluster's tag", zerolog.ErrorLevel}
	// Likewise: a role bound to the cluster's groups refuses those of others every day.
	completeUnknown = action{"CompleteLifecycleAction", "complete_unknown",
		"lifecycle hook of an instance that is no Node is left: the group is another's, or lacks the cluster's tag", zerolog.InfoLevel}
	heartbeat = action{"RecordLifecycleActionHeartbeat", "heartbeat",
		"cannot prolong lifecycle hooks: nodes are drained within the hook's timeout; allow the action, for groups with the cluster's tag", zerolog.ErrorLevel}
	describe = action{"DescribeLifecycleHooks", "describe",
		"cannot read lifecycle hooks: --hook-timeout is taken for their timeout; allow the action", zerolog.ErrorLevel}
)

type metrics struct {
	actions *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{actions: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "spot_handler_lifecycle_actions_total",
		Help: "Calls about lifecycle hooks, by what came of them. invalid: the group did not wait at the hook any more.",
	}, []string{"action", "result"})}
	for _, a := range []action{complete, completeLaunch, completeUnknown, heartbeat, describe} {
		for _, r := range awsfault.Results() {
			m.actions.WithLabelValues(a.label, r)
		}
	}
	return m
}
