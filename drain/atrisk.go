package drain

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A node that is only at risk, as after a rebalance recommendation, has no deadline. Nothing is
// done to its pods before their new home is there, and nothing that their owners would not have.

// isNotWorthIt: a node that is only at risk is no reason to override what the pod's owner asks
// for. A surged pod has been on its way since before that was asked.
func isNotWorthIt(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	if !p.Deadline.IsZero() || IsSurged(pod) {
		return "", ""
	}
	reason, until := pinned(pod, p.now)
	if p.asksWithGang(pod) { // its gang overrides that
		reason, until = "", time.Time{}
	}
	if w := p.wishOf(pod); reason == "" && w.When == WhenLast {
		reason = w.reason() // without a deadline there is no last moment
	}
	if reason == "" {
		reason = p.forbidden(pod)
	}
	if reason == "" {
		return "", ""
	}
	d.Until, d.Stays = until, true
	return Later, "no deadline: " + reason
}

// forbidden names a budget of the pod that never lets any go, or is empty.
func (p *planner) forbidden(pod *corev1.Pod) string {
	for _, budget := range p.Budgets {
		if budget.Namespace == pod.Namespace && covers(budget, pod.Labels) && budget.Status.ExpectedPods > 0 && waveSize(budget) <= 0 {
			return "its disruption budget " + budget.Name + " never lets any go"
		}
	}
	return ""
}

// isAtRiskOnly: without a deadline there is no hurry.
func isAtRiskOnly(p *planner, _ *corev1.Pod, _ *Decision) (Action, string) {
	if !p.Deadline.IsZero() || p.Capacity == ReadyCapacity {
		return "", ""
	}
	return Later, "no deadline: waits for a replacement"
}
