package asg

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spot-handler/handler/awsfault"
)

// The calls, as they stand in the IAM actions' names and in the metric's label.
const (
	describeInstances = "DescribeAutoScalingInstances"
	describeGroups    = "DescribeAutoScalingGroups"
	detachInstances   = "DetachInstances"
	terminate         = "TerminateInstances"
)

type metrics struct {
	calls *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{calls: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "spot_handler_asg_calls_total",
		Help: "Calls to Auto Scaling and EC2 for replacements, by what came of them.",
	}, []string{"action", "result"})}
	for _, action := range []string{describeInstances, describeGroups, detachInstances, terminate} {
		for _, r := range awsfault.Results() {
			m.calls.WithLabelValues(action, r)
		}
	}
	return m
}
