package workloads

import (
	"context"
	"encoding/json"
	"time"

	smithytime "github.com/aws/smithy-go/time"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
)

// What a pod without a server reads: annotations, which a volume of the downward API shows as
// files.
// https://kubernetes.io/docs/concepts/storage/volumes/#downwardapi

const (
	noteTimeout  = 5 * time.Second
	noteAttempts = 5
)

// noted reports whether the pod carries a note, from whomever.
func noted(pod *corev1.Pod) bool {
	return pod.Annotations[plan.DeadlineAnnotation] != "" || pod.Annotations[plan.EvictByAnnotation] != ""
}

// note writes when the pod's node ends and when its eviction begins at the latest, or removes
// that.
func (t *Notifier) note(ctx context.Context, what string, deadline time.Time, d plan.Decision) {
	if what == typeCanceled {
		deadline, d.At = time.Time{}, time.Time{}
	}
	want := map[string]any{plan.DeadlineAnnotation: text(deadline), plan.EvictByAnnotation: text(d.At)}
	changed := what == typeCanceled // what stands there now might be newer than what we have seen
	for key, value := range want {
		stands, has := d.Pod.Annotations[key]
		changed = changed || has != (value != nil) || has && stands != value
	}
	if !changed {
		return
	}
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"uid": d.Pod.UID, "annotations": want}}) // texts
	for attempt := 1; ; attempt++ {
		switch err := t.patch(ctx, d.Pod, patch); {
		case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsInvalid(err): // or another pod has its name
			return
		case apierrors.IsForbidden(err):
			if t.refused.CompareAndSwap(false, true) {
				t.opts.Logger.Warn().Err(err).Msg("annotations of workloads are not written")
			}
			return
		case attempt == noteAttempts || smithytime.SleepWithContext(ctx, time.Duration(attempt)*time.Second) != nil:
			t.opts.Logger.Debug().Err(err).Str("pod", d.Pod.Namespace+"/"+d.Pod.Name).Msg("annotate workload")
			return
		}
	}
}

func (t *Notifier) patch(ctx context.Context, pod *corev1.Pod, patch []byte) error {
	ctx, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	return t.opts.Pods.Patch(types.MergePatchType).Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
		MaxRetries(0).Body(patch).Do(ctx).Error()
}

// text is a time as an annotation has it; nil removes the annotation.
func text(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format(time.RFC3339)
}
