package drain

import (
	"context"
	"encoding/json"
	"fmt"
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
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return fmt.Errorf("surge pod %s/%s: it has no controller", pod.Namespace, pod.Name)
	}
	note, err := json.Marshal(surgeNote{ReplicaSet: owner.Name, UID: owner.UID, At: now.UTC().Truncate(time.Second)})
	if err != nil {
		return fmt.Errorf("surge pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return d.relabel(ctx, pod, map[string]any{
		hashLabel: surgedHash(pod.Labels[hashLabel]), SurgedLabel: pod.Labels[hashLabel],
	}, string(note))
}

// putBack restores a surged pod's labels: its ReplicaSet takes it back and drops the
// successor, or the pod itself if there are too many. If the ReplicaSet is gone the pod would
// run on without an owner, so it is evicted; if its budget refuses that it stays, and Sweep
// finds it again.
func (d *Drainer) putBack(ctx context.Context, pod *corev1.Pod) error {
	of := surgeNoteOf(pod)
	set, err := d.opts.Dynamic.Resource(replicaSetResource).Namespace(pod.Namespace).Get(ctx, of.ReplicaSet, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && set.GetUID() != of.UID:
		answer := classify(postEviction(ctx, d.opts.Pods, Decision{Pod: pod}))
		d.metrics.evictions.WithLabelValues(answer.code()).Inc()
		switch answer.outcome {
		case accepted, podGone:
			return nil
		case refused:
			d.opts.Logger.Warn().Str("pod", pod.Namespace+"/"+pod.Name).Str("reason", answer.reason).
				Msg("pod was surged, its ReplicaSet is gone, and it cannot be evicted")
			return nil
		}
		return fmt.Errorf("evict pod %s/%s, whose ReplicaSet is gone: %s", pod.Namespace, pod.Name, answer.reason)
	case err != nil:
		return fmt.Errorf("look up ReplicaSet %s/%s: %w", pod.Namespace, of.ReplicaSet, err)
	}
	return d.relabel(ctx, pod, map[string]any{hashLabel: pod.Labels[SurgedLabel], SurgedLabel: nil}, nil)
}

// relabel changes labels, and SurgedAnnotation, of the pod with that
// UID; for another the API server calls the change invalid. A pod that is gone needs no
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
