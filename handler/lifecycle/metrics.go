package lifecycle

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spot-handler/handler/awsfault"
)

// action is one of the calls: as IAM and as the metric names it, and what is logged when
// it is not allowed.
type action struct{ call, label, denied string }

var (
	complete = action{"CompleteLifecycleAction", "complete",
		"cannot complete lifecycle hooks: groups wait until the hook's timeout; allow the action, for groups with the cluster's tag"}
	heartbeat = action{"RecordLifecycleActionHeartbeat", "heartbeat",
		"cannot prolong lifecycle hooks: nodes are drained within the hook's timeout; allow the action, for groups with the cluster's tag"}
	describe = action{"DescribeLifecycleHooks", "describe",
		"cannot read lifecycle hooks: --hook-timeout is taken for their timeout; allow the action"}
)

type metrics struct {
	actions *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{actions: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "spot_handler_lifecycle_actions_total",
		Help: "Calls about lifecycle hooks, by what came of them. invalid: the group did not wait at the hook any more.",
	}, []string{"action", "result"})}
	for _, a := range []action{complete, heartbeat, describe} {
		for _, r := range awsfault.Results() {
			m.actions.WithLabelValues(a.label, string(r))
		}
	}
	return m
}
