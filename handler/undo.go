package handler

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
	"spot-handler/handler/nodes"
	"spot-handler/handler/notify"
	"spot-handler/handler/workloads"
)

// cancel undoes an interruption that somebody, or EC2 itself, has cancelled.
func (r *reconciliation) cancel(ctx context.Context) (done bool, err error) {
	canceled := r.rec.Canceled || r.node.Annotations[interruption.CancelAnnotation] == "true"
	if !canceled || r.rec.Ends(r.node.DeletionTimestamp != nil) {
		return false, nil
	}
	return true, r.undo(ctx, nil)
}

// comeBack undoes the interruption of an instance that runs again. A scheduled event whose time
// has not come yet still stands.
func (r *reconciliation) comeBack(ctx context.Context) (done bool, err error) {
	if !returned(r.node, r.rec) {
		return false, nil
	}
	rules, _ := r.rules()
	rest, stands := rules.NotYet(r.rec, time.Now())
	if !stands {
		return true, r.undo(ctx, nil)
	}
	return true, r.undo(ctx, &rest)
}

// standDown undoes a node whose time has not come after all.
func (r *reconciliation) standDown(ctx context.Context) (done bool, err error) {
	if r.rec.Phase != interruption.Waiting || len(r.rec.Ours) == 0 {
		return false, nil
	}
	return true, r.undo(ctx, &r.rec)
}

// recordRemoved stops the drain of a Node that somebody has taken the record off. What we had
// set on the Node stays: if you remove the record, you take the Node over.
func (r *reconciliation) recordRemoved(ctx context.Context) (done bool, err error) {
	if !r.removed {
		return false, nil
	}
	if r.rec.Phase == "" || r.rec.Phase.Over() || waitsUnmarked(r.rec) {
		r.forget(r.node.Name)
		return true, nil
	}
	return true, r.undo(ctx, nil)
}

// undo ends an interruption as if it had never been: evictions stop, surged pods go back to
// their ReplicaSets, then everything that we set on the Node goes, and the record with it. If
// rest is not nil it takes the record's place, and waits for its time. The Node is written
// last, so if the process is killed in between, the next process carries on.
func (r *reconciliation) undo(ctx context.Context, rest *interruption.Record) error {
	r.known.cancelling = true
	status, _ := r.set(ctx, plan.NodeState{}, plan.Cancel)
	left := status.Canceled
	if left == nil {
		r.lookAgainIn(time.Second) // the drainer wakes us earlier
		return nil
	}
	was, before := r.rec, r.node
	underWay := !was.Phase.Over() && was.Ended.IsZero() && r.known.final == nil && !waitsUnmarked(was)
	if rest != nil {
		waits := rest.Undone()
		waits.Ours = nil
		rest = &waits
	}
	if !r.removed {
		if err := r.write(ctx, marks.Undo(r.node, was, rest, time.Now())); err != nil {
			return fmt.Errorf("unmark node: %w", err)
		}
	}
	r.opts.Workloads.Canceled(ctx, workloads.Interruption{Node: before.Name, Record: was}, left.Staying)
	if underWay {
		r.metrics.ended(was, resultCanceled, left.Pods, time.Now())
	}
	r.reportUndone(before, was, rest, *left)
	r.forget(r.node.Name)
	if !r.removed { // else the record would be seen again, and its end counted twice
		rests := known{resourceVersion: r.node.ResourceVersion}
		if rest != nil {
			rests.rec, rests.firstDue = *rest, r.known.firstDue
		}
		now := r.memory.get(r.node.Name)
		r.memory.change(func() { *now = rests })
	}
	return nil // the watch brings the Node's change back, and then the rest is forgotten
}

// reportUndone says why a node is as it was before, and what still stands.
func (r *reconciliation) reportUndone(node *corev1.Node, was interruption.Record, rest *interruption.Record, left plan.Canceled) {
	stands := ptr.Deref(rest, was)
	text, news := "interruption cancelled, node as it was", notify.Canceled
	switch {
	case r.removed:
		r.fieldsOf(r.opts.Logger.Warn(), was).Msg("record removed by somebody else, drain stopped")
		return
	case was.Rehearsed() && was.Phase.Over():
		text, news = "rehearsal over, node back in service", notify.Returned
	case returned(node, was):
		text, news = "instance is back, node as it was", notify.Returned
	}
	if rest != nil {
		text += ", next drain waits"
	}
	r.fieldsOf(r.opts.Logger.Info(), stands).Int("pods", left.Total).Msg(text)
	r.opts.Events.Notify(news(node, was))
}

// waitsUnmarked reports whether there is nothing but the record: the node is not cordoned.
func waitsUnmarked(rec interruption.Record) bool {
	return rec.Phase == interruption.Waiting && len(rec.Ours) == 0
}

// returned reports whether the instance runs again after what it was drained for. The Node must
// be Ready too: until then pods would come and wait.
func returned(node *corev1.Node, rec interruption.Record) bool {
	since, ready := nodes.ReadySince(node)
	return ready && rec.Phase != interruption.Waiting && rec.Phase != interruption.Released &&
		rec.Returned(node.Status.NodeInfo.BootID, since)
}
