package handler

import (
	"cmp"
	"context"
	"time"

	"k8s.io/utils/ptr"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/workloads"
)

// drain requests the replacement, moves the pods that may move now, and ends the interruption
// when none is left or time is up. With CordonOnly it does nothing, and the record stays as it
// is.
func (r *reconciliation) drain(ctx context.Context) (done bool, err error) {
	if r.opts.CordonOnly {
		return true, nil
	}
	r.cancelNoMore()
	if k := r.known; k.final != nil && k.final.Kind == r.rec.Kind && k.final.Rehearsed() == r.rec.Rehearsed() {
		return true, r.endAgain(ctx)
	}
	r.known.begun = true
	r.noteStart()
	in, goal := r.interruption(), plan.Look // until a replacement has been requested, which the plan sizes
	if r.known.draining {
		in.Capacity, goal = r.known.capacity, plan.Drain
	}
	status, ok := r.set(ctx, in, goal)
	end := r.rec.DrainEndFrom(r.known.started)
	ended := !end.IsZero() && !time.Now().Before(end)
	if !ended {
		r.lookAgain(end)
	}
	switch {
	case !ok: // the drainer wakes us when it knows the pods, which can be after the end
		return true, nil
	case !ended:
	case len(status.Moving) == 0: // only their volumes are still attached
		return true, r.end(ctx, status, r.rec, interruption.Drained)
	default:
		if rest, later := r.rec.Outlasted(time.Now()); later {
			return true, r.progress(ctx, rest)
		}
		return true, r.end(ctx, status, r.rec, interruption.DeadlineReached)
	}

	next := r.rec
	requestErr := r.replace(ctx, &next, in, status.View)
	if why := r.wayBackLost(); why != "" {
		return true, r.dropRecommendation(ctx, why)
	}
	in.Capacity = provisioner.CapacityOf(r.known.replacement)
	if requestErr != nil { // it is made again, and so is worth waiting for as long as pods can wait
		in.Capacity = plan.PendingCapacity
	}
	if !r.known.draining || in.Capacity != r.known.capacity {
		r.known.draining, r.known.capacity = true, in.Capacity
		status, ok = r.set(ctx, in, plan.Drain)
	}
	r.known.noteProgress(status)
	switch {
	case !ok:
		return true, requestErr
	case status.Done:
		return true, r.end(ctx, status, next, interruption.Drained)
	}
	if !r.justAsked(status) && progressOf(r.rec, &next, in, status) {
		r.progressBeside(ctx, next)
	}
	r.lookAgain(status.Next)
	return true, requestErr
}

// set tells the drainer what is wanted of the node, and asks how far that has come.
func (r *reconciliation) set(ctx context.Context, in plan.NodeState, goal plan.Goal) (status plan.Status, known bool) {
	r.opts.Drainer.Set(r.node.Name, plan.Wanted{NodeState: in, Goal: goal})
	return r.opts.Drainer.Status(ctx, r.node.Name)
}

// cancelNoMore starts over with a node that is interrupted again before its cancellation was done. Until the drainer has
// forgotten the node, it names no pods that have to leave.
func (r *reconciliation) cancelNoMore() {
	if k := r.known; k.cancelling {
		r.stopDrain(r.node.Name, k)
		k.cancelling, k.final = false, nil
	}
}

// stopDrain has the drainer forget a node.
func (h *Handler) stopDrain(node string, k *known) {
	h.opts.Drainer.Remove(node)
	k.draining = false
}

// noteStart notes when the drain for this interruption began, unless another process began it. Another notice with
// the same deadline starts no new drain. A node that is not Ready by then has no time to be given. The mark can be
// on the node much later than the notice was received: its write might hang.
func (r *reconciliation) noteStart() {
	k := r.known
	first := k.event == ""
	same := k.event == r.rec.Event || !first && k.deadline.Equal(r.rec.Deadline)
	k.event, k.deadline = r.rec.Event, r.rec.Deadline
	if same {
		return
	}
	k.started, k.marked = time.Time{}, time.Time{}
	if first && r.rec.Phase != interruption.Noticed {
		return
	}
	k.marked = time.Now()
	if nodes.Ready(r.node) {
		k.started = k.marked
	}
}

// interruption is what the drain is planned with, before the replacement is asked about: mostly its
// state has not changed since the last time, so one plan does.
func (r *reconciliation) interruption() plan.NodeState {
	rules, _ := r.opts.Rules(r.node, false)
	return plan.NodeState{
		Taint:    marks.Taint(r.rec),
		Since:    r.rec.Since(),
		Marked:   r.known.marked,
		Deadline: rules.DrainBy(r.rec, time.Now()),
		Capacity: provisioner.CapacityOf(r.known.replacement),
	}
}

// replace requests a replacement, or asks how far it has come, and notifies the pods: those that are
// notified of a replacement only when it is Ready, too.
func (r *reconciliation) replace(ctx context.Context, next *interruption.Record, in plan.NodeState, view plan.View) error {
	r.notifyPods(ctx, in.Deadline, view.Plan)
	err := r.requestReplacement(ctx, next, view)
	r.notifyPods(ctx, in.Deadline, view.Plan)
	return err
}

// answersWithin is how long a backend mostly takes to find out what becomes of the replacement: whether the instance is
// in a group, and whether its pods fit on nodes that are there.
const answersWithin = time.Second

// justAsked reports whether the provisioner is still finding out whether there is a replacement to wait for, and no pod
// leaves yet. That is not worth a write of its own: the answer will be recorded in a moment.
func (r *reconciliation) justAsked(status plan.Status) bool {
	asked, until := r.known.replacement, r.known.marked.Add(answersWithin)
	switch {
	case r.rec.Phase != interruption.Noticed, status.Begun, !time.Now().Before(until):
		return false
	case asked == nil, asked.State != provisioner.StateRequested, asked.Name != "", asked.Detached, asked.Tried != "":
		return false
	}
	r.lookAgain(until)
	return true
}

// progressOf adds to the record how far its drain has come, and reports whether that is worth a write: the
// next process has to know which pools were tried, as none is tried twice, and how many pods there were.
func progressOf(was interruption.Record, next *interruption.Record, in plan.NodeState, status plan.Status) (worth bool) {
	recorded := was.Replacement
	if now := next.Replacement; recorded != nil && now != nil && recorded.Tried != now.Tried {
		worth = true
	}
	note := func(news fact) {
		worth = true
		next.Phase = phaseAfter(next.Phase, news)
		if news != replacementReady && news != replacementNamed {
			next.Pods = &interruption.Pods{
				Total:   max(status.Total, len(status.Moving), podsOf(*next).Total),
				Refusal: interruption.Clip(status.Refusal),
			}
		}
	}
	if next.Phase == interruption.Noticed {
		recorded = next.Replacement // it comes with the rest
		switch {
		case len(status.Moving) == 0:
			return worth
		case in.Capacity == plan.PendingCapacity, in.Deadline.IsZero():
			note(podsWait)
		default:
			note(podsLeave)
		}
	}
	switch {
	case status.Begun && (next.Phase == interruption.Replacing || next.Pods == nil):
		note(podsLeave)
	case status.Refusal != "" && podsOf(*next).Refusal == "":
		note(podRefused)
	case status.Refusal == "" && !status.Due && podsOf(*next).Refusal != "":
		note(refusalOver)
	case !replacementMoved(recorded, next.Replacement):
	case in.Capacity == plan.ReadyCapacity:
		note(replacementReady)
	default:
		note(replacementNamed)
	}
	return worth
}

// fact is what moves the phase of a drain on.
type fact int

const (
	podsWait         fact = iota // pods have to leave, and wait for their replacement
	podsLeave                    // the first pod leaves, or is about to
	podRefused                   // the API server has refused an eviction for seconds
	refusalOver                  // no eviction is refused any more: the remaining pods wait for something else
	replacementReady             // pods follow in a moment, which is not worth a write of its own
	replacementNamed             // the replacement has a name, another name, or has failed
)

// phases are what facts make of a drain's phase. What is not here leaves it as it is.
var phases = map[interruption.Phase]map[fact]interruption.Phase{
	interruption.Noticed: {
		podsWait:   interruption.Replacing,
		podsLeave:  interruption.Draining,
		podRefused: interruption.Draining,
	},
	interruption.Replacing: {
		podsLeave:        interruption.Draining,
		podRefused:       interruption.Draining,
		replacementReady: interruption.Draining,
	},
}

func phaseAfter(phase interruption.Phase, news fact) interruption.Phase {
	return cmp.Or(phases[phase][news], phase)
}

// notifyPods notifies those that ask, and have not been notified yet.
func (r *reconciliation) notifyPods(ctx context.Context, deadline time.Time, plan []plan.Decision) {
	in := workloads.Interruption{Node: r.node.Name, Record: r.rec, Deadline: deadline}
	if asked := r.known.replacementOf(r.rec); asked != nil {
		in.Replacement, in.Ready = asked.State, asked.State == provisioner.StateReady
	}
	r.opts.Workloads.Notify(ctx, in, plan)
}

// noteProgress notes that pods have left, or are leaving: those have their grace periods.
func (k *known) noteProgress(status plan.Status) {
	left, leaving := status.Total-len(status.Moving), 0
	for _, pod := range status.Moving {
		if pod.DeletionTimestamp != nil {
			leaving++
			k.leaving = interruption.Later(k.leaving, pod.DeletionTimestamp.Time)
		}
	}
	if left > k.left || left+leaving > k.left+k.onTheirWay {
		k.moved = interruption.Later(k.moved, time.Now())
	}
	k.left, k.onTheirWay = max(k.left, left), leaving
}

// podsOf are those that the record counts; none before the drain has begun.
func podsOf(rec interruption.Record) interruption.Pods {
	return ptr.Deref(rec.Pods, interruption.Pods{})
}
