package drain

import (
	"context"
	"errors"
	"fmt"
	"time"

	smithytime "github.com/aws/smithy-go/time"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain/plan"
)

const (
	// sweepEvery is how often we look for surged pods that nobody drains. The process that cancels a drain
	// puts them back; this is for those that no process has seen.
	sweepEvery = 10 * time.Minute
	// sweepRetry is when to try again after an error.
	sweepRetry = 10 * time.Second
)

// sweep puts surged pods back into their ReplicaSets where nobody drains their node, as after a drain that was
// cancelled by removing the record.
func (d *Drainer) sweep(ctx context.Context) {
	for {
		wait := sweepEvery
		if err := d.sweepOnce(ctx); err != nil && ctx.Err() == nil {
			d.opts.Logger.Warn().Err(err).Msg("look for surged pods that nobody drains")
			wait = sweepRetry
		}
		if smithytime.SleepWithContext(ctx, wait) != nil {
			return
		}
	}
}

func (d *Drainer) sweepOnce(ctx context.Context) error {
	return d.putBackAll(ctx, d.opts.Node, "0", func(pod *corev1.Pod) bool {
		if d.opts.Drained(pod.Spec.NodeName) {
			return false
		}
		d.opts.Logger.Warn().Str("node", pod.Spec.NodeName).Str("pod", pod.Namespace+"/"+pod.Name).
			Msg("pod was surged but its node is not being drained: put back into its ReplicaSet")
		return true
	})
}

// returnSurged puts the surged pods of a cancelled node back. The watch might not have shown yet which were surged
// a moment ago.
func (d *Drainer) returnSurged(ctx context.Context, node string) {
	limited, cancel := context.WithTimeout(ctx, plan.EvictTimeout)
	defer cancel()
	err := d.putBackAll(limited, node, "", func(*corev1.Pod) bool { return true })
	if err != nil && ctx.Err() == nil {
		d.opts.Logger.Warn().Err(err).Str("node", node).Msg("put surged pods back into their ReplicaSets")
	}
	d.inbox.put(func(now time.Time) { d.fleet.Apply(now, plan.PutBack{Node: node, Failed: err != nil}) })
}

// putBackAll puts back the surged pods that the filter picks, of one node or, if it is empty, of all. They
// are read at the resource version: "" is the latest, "0" costs the API server least.
func (d *Drainer) putBackAll(ctx context.Context, node, version string, filter func(*corev1.Pod) bool) error {
	r := d.opts.Pods.Get().Resource("pods").Param("labelSelector", plan.SurgedLabel)
	if version != "" {
		r = r.Param("resourceVersion", version)
	}
	if node != "" {
		r = r.Param("fieldSelector", "spec.nodeName="+node)
	}
	list := &corev1.PodList{}
	if err := r.Do(ctx).Into(list); err != nil {
		return fmt.Errorf("list surged pods: %w", err)
	}
	var errs []error
	for i := range list.Items {
		if pod := &list.Items[i]; pod.DeletionTimestamp == nil && filter(pod) {
			_, err := d.putBack(ctx, plan.Decision{Pod: pod}, plan.AsReturned(pod))
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
