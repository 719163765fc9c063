package drain

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"spot-handler/drain/plan"
)

// ReasonForced is the reason of the DisruptionTarget condition of a pod that is deleted past its
// budget.
const ReasonForced = "DeletionBySpotHandler"

// request makes the request, and says what it has done: a pod that was to
// be given back can have been ended instead. A request is not cut short within EvictTimeout when ctx
// ends: the API server could have charged the budget without having deleted the pod.
func (d *Drainer) request(ctx context.Context, r plan.Request) (did plan.Action, err error) {
	began, ended := time.Now(), ctx
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.Within)
	defer cancel()
	if r.Within > plan.EvictTimeout {
		defer context.AfterFunc(ended, func() { time.AfterFunc(time.Until(began.Add(plan.EvictTimeout)), cancel) })()
	}
	switch r.Action {
	case plan.SurgeNow:
		return plan.SurgeNow, Relabel(ctx, d.opts.Pods, r.Becomes)
	case plan.Return:
		return d.putBack(ctx, r.Decision, r.Becomes)
	case plan.Force: // its disruption budget still refuses it
		const message = "spot-handler: its node is about to end, and its PDB refuses the eviction"
		return plan.Force, d.deletePod(ctx, r.Decision, ReasonForced, message)
	case plan.End: // its ReplicaSet would have ended it by now
		return plan.End, d.remove(ctx, r.Decision)
	}
	return plan.Evict, d.evict(ctx, r)
}

// evict asks for the pod's eviction, or carries out one that was granted.
func (d *Drainer) evict(ctx context.Context, r plan.Request) error {
	err := PostEviction(ctx, d.opts.Pods, r.Decision)
	reply := classify(err)
	d.evictions.WithLabelValues(codeOf(reply)).Inc()
	if reply.Outcome == plan.Refused && r.Granted {
		return d.carryOutGranted(ctx, r.Decision, err)
	}
	return err
}

// PostEviction asks the API server to evict the pod with that UID and no other: a
// StatefulSet might have made a new one of the same name. A 429 is not retried here, as
// client-go would do for as long as Retry-After says.
// https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
func PostEviction(ctx context.Context, client rest.Interface, d plan.Decision) error {
	eviction := &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: d.Pod.Name, Namespace: d.Pod.Namespace},
		DeleteOptions: &metav1.DeleteOptions{
			GracePeriodSeconds: d.Grace,
			Preconditions:      metav1.NewUIDPreconditions(string(d.Pod.UID)),
		},
	}
	return client.Post().Namespace(d.Pod.Namespace).Resource("pods").Name(d.Pod.Name).SubResource("eviction").
		MaxRetries(0).Body(eviction).Do(ctx).Error()
}

// putBack undoes a surge: it restores the pod's labels, so its ReplicaSet takes it back and
// drops the replacement pod, or the pod itself if there are too many. If the ReplicaSet goes, the pod
// would run on without an owner: it is ended, as the ReplicaSet's own pods are.
func (d *Drainer) putBack(ctx context.Context, decision plan.Decision, returned *corev1.Pod) (did plan.Action, err error) {
	stays, err := d.replicaSetStays(ctx, returned)
	switch {
	case err != nil:
		return plan.Return, err
	case stays:
		return plan.Return, Relabel(ctx, d.opts.Pods, returned)
	}
	if err := d.remove(ctx, decision); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return plan.Return, fmt.Errorf("end pod %s/%s, whose ReplicaSet goes: %w", returned.Namespace, returned.Name, err)
	}
	return plan.End, nil
}

var (
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	replicaSets = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}
)

// replicaSetStays reports whether the pods of the ReplicaSet that takes a pod back stay, even if they
// lose their owner. One that exists might be about to end: the garbage collector ends it a moment
// after its Deployment, unless that was deleted with --cascade=orphan.
// https://kubernetes.io/docs/concepts/architecture/garbage-collection/#cascading-deletion
func (d *Drainer) replicaSetStays(ctx context.Context, pod *corev1.Pod) (bool, error) {
	name := pod.OwnerReferences[0].Name
	if name == "" {
		return true, nil // somebody has removed the note: any ReplicaSet that selects the pod takes it
	}
	set, err := d.opts.Dynamic.Resource(replicaSets).Namespace(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look up ReplicaSet %s/%s: %w", pod.Namespace, name, err)
	case set.GetDeletionTimestamp() != nil:
		return slices.Contains(set.GetFinalizers(), metav1.FinalizerOrphanDependents), nil
	}
	owner := metav1.GetControllerOf(set)
	if owner == nil || owner.Kind != "Deployment" {
		return true, nil
	}
	deployment, err := d.opts.Dynamic.Resource(deployments).Namespace(pod.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look up Deployment %s/%s: %w", pod.Namespace, owner.Name, err)
	case deployment.GetUID() != owner.UID: // another of that name
		return false, nil
	}
	// A deletion in the background, and one that orphans, touch nothing before the Deployment is
	// gone.
	return !slices.Contains(deployment.GetFinalizers(), metav1.FinalizerDeleteDependents), nil
}

// Relabel gives the pod with that UID the labels and the annotation of its surge, or takes them away, so its
// ReplicaSet lets it go or takes it back. The UID in the patch is a precondition, as it cannot be changed: for another
// pod the API server calls the change invalid. A pod that is gone needs no labels.
func Relabel(ctx context.Context, client rest.Interface, to *corev1.Pod) error {
	changes := func(to map[string]string, keys ...string) map[string]any {
		patch := map[string]any{}
		for _, key := range keys {
			if patch[key] = nil; to[key] != "" {
				patch[key] = to[key]
			}
		}
		return patch
	}
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{ // texts
		"uid":         to.UID,
		"labels":      changes(to.Labels, plan.HashLabel, plan.SurgedLabel),
		"annotations": changes(to.Annotations, plan.SurgedAnnotation),
	}})
	err := client.Patch(types.MergePatchType).Namespace(to.Namespace).Resource("pods").Name(to.Name).
		MaxRetries(0).Body(patch).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("relabel pod %s/%s: %w", to.Namespace, to.Name, err)
	}
	return nil
}

// carryOutGranted does the second step of an eviction that was granted earlier and then cut
// short, as the API server would: the DisruptionTarget condition, by which a Job knows that
// the failure is not its own, then the deletion. If that fails, the refusal stands.
func (d *Drainer) carryOutGranted(ctx context.Context, decision plan.Decision, refusal error) error {
	pod := decision.Pod
	log := d.opts.Logger.With().Str("node", pod.Spec.NodeName).Str("pod", pod.Namespace+"/"+pod.Name).Logger()
	err := d.deletePod(ctx, decision, "EvictionByEvictionAPI", "Eviction API: evicting")
	if reply := classify(err); !reply.Settled() {
		log.Warn().Str("reason", reply.Reason).Msg("carry out granted eviction")
		return refusal
	}
	log.Info().Msg("carried out an eviction that was granted and cut short")
	return err
}

// deletePod marks and deletes the pod with that UID. The eviction API sets DisruptionTarget, a
// deletion does not, so we set it first.
// https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
// The pod is deleted even if that fails, as an admission policy denies it: there is no time left.
//
// If another pod has its name by now, the API server calls the change invalid or a conflict;
// the watch tells that the pod is gone.
func (d *Drainer) deletePod(ctx context.Context, decision plan.Decision, reason, message string) error {
	pod := decision.Pod
	patch, _ := json.Marshal(map[string]any{ // texts and our own time
		"metadata": map[string]any{"uid": pod.UID},
		"status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason,
			Message: message, LastTransitionTime: metav1.Now(),
		}}},
	})
	marked, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	err := d.opts.Pods.Patch(types.StrategicMergePatchType).Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
		SubResource("status").MaxRetries(0).Body(patch).Do(marked).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		d.opts.Logger.Warn().Err(err).Str("node", pod.Spec.NodeName).Str("pod", pod.Namespace+"/"+pod.Name).
			Msg("set condition DisruptionTarget; the pod is deleted without it")
	}
	return d.remove(ctx, decision)
}

// markTimeout bounds the patch before a deletion, which matters more.
const markTimeout = 2 * time.Second

// remove deletes the pod with that UID.
func (d *Drainer) remove(ctx context.Context, decision plan.Decision) error {
	pod := decision.Pod
	return d.opts.Pods.Delete().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).MaxRetries(0).Body(&metav1.DeleteOptions{
		GracePeriodSeconds: decision.Grace, Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
	}).Do(ctx).Error()
}
