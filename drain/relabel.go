package drain

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// surgeNote is what the annotation of a surged pod says: enough for any process to finish
// the surge or to undo it.
type surgeNote struct {
	ReplicaSet string    `json:"replicaSet"`
	UID        types.UID `json:"uid"` // the ReplicaSet's
	At         time.Time `json:"at"`
}

// surgeNoteOf reads the annotation; what cannot be read is zero.
func surgeNoteOf(pod *corev1.Pod) surgeNote {
	var r surgeNote
	if err := json.Unmarshal([]byte(pod.Annotations[SurgedAnnotation]), &r); err != nil {
		return surgeNote{}
	}
	return r
}

// labelSurged has the pod's ReplicaSet let it go, with one patch. The UID in the patch is a
// precondition, as it cannot be changed.
func (d *Drainer) labelSurged(ctx context.Context, pod *corev1.Pod, now time.Time) error {
	note, err := noteSurge(pod, now)
	if err != nil {
		return err
	}
	return d.relabel(ctx, pod, map[string]any{
		hashLabel: surgedHash(pod.Labels[hashLabel]), SurgedLabel: pod.Labels[hashLabel],
	}, note)
}

// noteSurge is the note of a pod that is surged now.
func noteSurge(pod *corev1.Pod, now time.Time) (string, error) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return "", fmt.Errorf("surge pod %s/%s: it has no controller", pod.Namespace, pod.Name)
	}
	note, err := json.Marshal(surgeNote{ReplicaSet: owner.Name, UID: owner.UID, At: now.UTC().Truncate(time.Second)})
	if err != nil {
		return "", fmt.Errorf("surge pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return string(note), nil
}

// putBack undoes a surge: it restores the pod's labels, so its ReplicaSet takes it back and
// drops the successor, or the pod itself if there are too many. If the ReplicaSet goes, the pod
// would run on without an owner: it is ended, as the ReplicaSet's own pods are.
func (d *Drainer) putBack(ctx context.Context, decision Decision) (ended bool, err error) {
	pod := decision.Pod
	stays, err := d.replicaSetStays(ctx, pod)
	switch {
	case err != nil:
		return false, err
	case stays:
		return false, d.relabel(ctx, pod, map[string]any{hashLabel: pod.Labels[SurgedLabel], SurgedLabel: nil}, nil)
	}
	if err := d.remove(ctx, decision); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return false, fmt.Errorf("end pod %s/%s, whose ReplicaSet goes: %w", pod.Namespace, pod.Name, err)
	}
	return true, nil
}

// replicaSetStays reports whether the pods of a surged pod's ReplicaSet stay, even if they lose
// their owner. One that exists might be about to end: the garbage collector ends it a moment
// after its Deployment, unless that was deleted with --cascade=orphan.
// https://kubernetes.io/docs/concepts/architecture/garbage-collection/#cascading-deletion
func (d *Drainer) replicaSetStays(ctx context.Context, pod *corev1.Pod) (bool, error) {
	name := surgeNoteOf(pod).ReplicaSet
	if name == "" {
		return true, nil // somebody has removed the note: any ReplicaSet that selects the pod takes it
	}
	set, err := d.opts.Dynamic.Resource(replicaSetResource).Namespace(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
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
	deployment, err := d.opts.Dynamic.Resource(deploymentResource).Namespace(pod.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
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

// relabel changes labels, and SurgedAnnotation, of the pod with that UID; for another the API server calls the change invalid. A pod that is gone needs no
// labels.
func (d *Drainer) relabel(ctx context.Context, pod *corev1.Pod, labels map[string]any, note any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": pod.UID, "labels": labels, "annotations": map[string]any{SurgedAnnotation: note},
	}})
	if err != nil {
		return fmt.Errorf("relabel pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	err = d.opts.Pods.Patch(types.MergePatchType).Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
		MaxRetries(0).Body(patch).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("relabel pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// AsSurged is the pod once its surge has begun: without an owner, and out of its ReplicaSet's sight.
func AsSurged(pod *corev1.Pod, now time.Time) (*corev1.Pod, error) {
	note, err := noteSurge(pod, now)
	if err != nil {
		return nil, err
	}
	c := *pod
	c.Labels, c.OwnerReferences = labelsOnceSurged(pod.Labels), nil
	c.Annotations = maps.Clone(pod.Annotations)
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[SurgedAnnotation] = note
	return &c, nil
}

// AsReturned is a surged pod once its surge is undone, and its ReplicaSet has taken it back.
func AsReturned(pod *corev1.Pod) *corev1.Pod {
	note, yes := surgeNoteOf(pod), true
	c := *pod
	c.Labels, c.Annotations = maps.Clone(pod.Labels), maps.Clone(pod.Annotations)
	c.Labels[hashLabel] = pod.Labels[SurgedLabel]
	delete(c.Labels, SurgedLabel)
	delete(c.Annotations, SurgedAnnotation)
	c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: note.ReplicaSet, UID: note.UID, Controller: &yes}}
	return &c
}
