package drain

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Only here are pods deleted without asking a disruption budget: because it has already
// agreed, because the operator has said so, or because the pod's owner has no use for it.

// The API server grants an eviction in one step, by charging the budget and noting
// the pod in its status.disruptedPods, and carries it out in a second, by deleting the
// pod. If the client is killed in between, the request ends there: the pod lives on, the
// budget stays charged for two minutes, which is all the time there is, and every further
// eviction is refused. What was granted is allowed, so we carry it out.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/registry/core/pod/storage/eviction.go

// grantedFor is how old a grant has to be: a request that is still under way carries it out
// by itself, within milliseconds.
const grantedFor = 2 * time.Second

// granted reports whether a budget has already been charged for the pod.
func granted(pod *corev1.Pod, budgets []*policyv1.PodDisruptionBudget, now time.Time) bool {
	for _, budget := range budgets {
		// The budget knows names only: it might have been charged for a StatefulSet's earlier pod.
		at, charged := budget.Status.DisruptedPods[pod.Name]
		if charged && covers(budget, pod.Labels) && now.Sub(at.Time) >= grantedFor && !at.Time.Before(pod.CreationTimestamp.Time) {
			return true
		}
	}
	return false
}

// carryOutGranted does the second step of an eviction that was granted earlier and then cut
// short, as the API server would: the DisruptionTarget condition, by which a Job knows that
// the failure is not its own, then the deletion. If that fails, the refusal stands.
func (d *Drainer) carryOutGranted(ctx context.Context, t *task, decision Decision, refusal answer) answer {
	answer := classify(d.deletePod(ctx, decision, "EvictionByEvictionAPI", "Eviction API: evicting"))
	if answer.outcome != accepted && answer.outcome != podGone {
		d.log(t).Warn().Str("reason", answer.reason).Msg("carry out granted eviction")
		return refusal
	}
	d.log(t).Info().Msg("carried out an eviction that was granted and cut short")
	return answer
}

// force deletes a pod that its disruption budget still refuses.
func (d *Drainer) force(ctx context.Context, t *task, decision Decision) answer {
	request, cancel := bounded(ctx)
	defer cancel()
	err := d.deletePod(request, decision, "DeletionBySpotHandler", "spot-handler: its node is about to end, and its disruption budget refuses the eviction")
	answer := classify(err)
	if answer.outcome != accepted && answer.outcome != podGone {
		d.again(t, decision, answer, err, "delete pod past its disruption budget")
		return answer
	}
	var refusal string
	t.session.note(func() {
		refusal = t.state.refusal
		t.state.task, t.state.evicted, t.state.refusal = nil, true, ""
		t.state.forced = answer.outcome == accepted
	})
	if answer.outcome == accepted {
		d.log(t).Warn().Str("reason", refusal).Msg("pod deleted past its disruption budget")
		d.opts.Events.EvictionForced(t.session.node, t.pod, refusal)
	}
	return answer
}

// deletePod marks and deletes the pod with that UID. The eviction API sets DisruptionTarget, a
// deletion does not, so we set it first.
// https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
//
// If another pod has its name by now, the API server calls the change invalid or a conflict;
// the watch tells that the pod is gone.
func (d *Drainer) deletePod(ctx context.Context, decision Decision, reason, message string) error {
	pod := decision.Pod
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason,
			Message: message, LastTransitionTime: metav1.Now(),
		}}},
	})
	if err != nil {
		return fmt.Errorf("mark pod: %w", err)
	}
	err = d.opts.Pods.Patch(types.StrategicMergePatchType).Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
		SubResource("status").MaxRetries(0).Body(patch).Do(ctx).Error()
	if err != nil {
		return err
	}
	return d.remove(ctx, decision)
}

// end deletes a surged pod that its ReplicaSet would have ended by now.
func (d *Drainer) end(ctx context.Context, t *task, decision Decision) answer {
	request, cancel := bounded(ctx)
	defer cancel()
	err := d.remove(request, decision)
	answer := classify(err)
	if answer.outcome != accepted && answer.outcome != podGone {
		d.deployments.settle(decision.Pod)
		d.again(t, decision, answer, err, "end surged pod")
		return answer
	}
	d.ended(t, decision)
	return answer
}

// ended notes that a surged pod was ended as its ReplicaSet would have done it.
func (d *Drainer) ended(t *task, decision Decision) {
	t.session.note(func() {
		t.state.task, t.state.evicted, t.state.refusal = nil, true, ""
		t.state.truncated = decision.Grace != nil
	})
	d.log(t).Info().Str("reason", decision.Reason).Msg("surged pod ended, as its ReplicaSet would have")
}

// remove deletes the pod with that UID.
func (d *Drainer) remove(ctx context.Context, decision Decision) error {
	pod := decision.Pod
	return d.opts.Pods.Delete().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).MaxRetries(0).Body(&metav1.DeleteOptions{
		GracePeriodSeconds: decision.Grace, Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
	}).Do(ctx).Error()
}
