package handler

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
	"spot-handler/handler/nodes"
	"spot-handler/handler/notify"
	"spot-handler/handler/workloads"
)

// callOff undoes an interruption that somebody, or EC2 itself, has called off.
func (v *visit) callOff(ctx context.Context) (done bool, err error) {
	if !v.rec.Canceled && v.node.Annotations[interruption.CancelAnnotation] != "true" || v.rec.Phase == interruption.Released {
		return false, nil
	}
	return true, v.undo(ctx, nil)
}

// comeBack undoes the interruption of an instance that runs again. A scheduled event whose time
// has not come yet still stands.
func (v *visit) comeBack(ctx context.Context) (done bool, err error) {
	if !returned(v.node, v.rec) {
		return false, nil
	}
	rules, _ := v.rules()
	rest, stands := rules.NotYet(v.rec, time.Now())
	if !stands {
		return true, v.undo(ctx, nil)
	}
	return true, v.undo(ctx, &rest)
}

// standDown undoes a node whose time has not come after all.
func (v *visit) standDown(ctx context.Context) (done bool, err error) {
	if v.rec.Phase != interruption.Waiting || len(v.rec.Ours) == 0 {
		return false, nil
	}
	return true, v.undo(ctx, &v.rec)
}

// recordRemoved stops the drain of a Node that somebody has taken the record off. What we had
// set on the Node stays: whoever takes the record away takes the Node over.
func (v *visit) recordRemoved(ctx context.Context) (done bool, err error) {
	if !v.removed {
		return false, nil
	}
	if v.rec.Phase == "" || v.rec.Phase.Over() || waitsUnmarked(v.rec) {
		v.forget(v.node.Name)
		return true, nil
	}
	return true, v.undo(ctx, nil)
}

// undo ends an interruption as if it had never been: evictions stop, surged pods go back to
// their ReplicaSets, then everything that we set on the Node goes, and the record with it. If
// rest is not nil it takes the record's place, and waits for its time. The Node is written
// last, so if the process is killed in between, its successor carries on.
func (v *visit) undo(ctx context.Context, rest *interruption.Record) error {
	v.known.off = true
	result, done, err := v.opts.Drainer.CallOff(ctx, v.node.Name)
	if err != nil {
		return fmt.Errorf("call off drain: %w", err)
	}
	if !done {
		v.lookAgainIn(time.Second) // the drainer wakes us earlier
		return nil
	}
	was, before := v.rec, v.node
	underWay := !was.Phase.Over() && was.Ended == nil && v.known.final == nil && !waitsUnmarked(was)
	if rest != nil {
		waits := rest.Undone()
		waits.Ours = nil
		rest = &waits
	}
	if !v.removed {
		patch, err := marks.Undo(v.node, was, rest, time.Now())
		if err == nil {
			err = v.write(ctx, patch)
		}
		if err != nil {
			return fmt.Errorf("unmark node: %w", err)
		}
	}
	v.opts.Workloads.CalledOff(ctx, workloads.Interruption{Node: before.Name, Record: was}, result.Staying)
	if underWay {
		v.metrics.ended(was, resultCanceled, podsOf(result), time.Now())
	}
	v.tellUndone(before, was, rest, result)
	v.forget(v.node.Name)
	if !v.removed { // else the record would be seen again, and its end counted twice
		rests := known{resourceVersion: v.node.ResourceVersion}
		if rest != nil {
			rests.rec, rests.first = *rest, v.known.first
		}
		now := v.memory.of(v.node.Name)
		v.memory.change(func() { *now = rests })
	}
	return nil // the watch brings the Node's change back, and then the rest is forgotten
}

// tellUndone says why a node is as it was before, and what still stands.
func (v *visit) tellUndone(node *corev1.Node, was interruption.Record, rest *interruption.Record, result drain.Result) {
	stands := was
	if rest != nil {
		stands = *rest
	}
	log := v.tellOf(v.opts.Logger.Info(), stands).Int("pods", result.Total)
	switch back := returned(node, was); {
	case v.removed:
		v.tellOf(v.opts.Logger.Warn(), was).Msg("record removed by somebody else, drain stopped")
		return
	case was.Rehearsed() && was.Phase.Over():
		log.Msg("rehearsal over, node back in service")
	case back && rest == nil:
		log.Msg("instance is back, node as it was")
	case back:
		log.Msg("instance is back, node as it was, next drain waits")
	case rest == nil:
		log.Msg("interruption called off, node as it was")
	default:
		log.Msg("drain called off, node as it was, next drain waits")
	}
	if returned(node, was) || was.Rehearsed() && was.Phase.Over() {
		v.opts.Events.Notify(notify.Returned(node, was))
	} else {
		v.opts.Events.Notify(notify.Canceled(node, was))
	}
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
