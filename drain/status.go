package drain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
)

// Result says what became of the pods of a node whose drain was cancelled.
type Result struct {
	interruption.Pods // that had to leave

	// Staying are the pods that are on the node, except those that are terminating.
	Staying []*corev1.Pod
}

// tracked is one pod that has to leave, from when it was first seen.
type tracked struct {
	pod     *corev1.Pod
	task    *task // while its eviction is in the queue, waits beside it or is under way
	sent    exit
	gone    bool
	goneAt  time.Time
	fixed   string // why it cannot be surged
	forcing bool   // the time has come to delete it past its disruption budget

	refusal  string // of its eviction; empty once it was sent away
	failure  string // what its last request failed of that says nothing about the pod
	ofBudget bool   // by a disruption budget
	blocked  bool   // refused for seconds
}

// exit is how a pod was sent away: what comes later overrides what comes before.
type exit int

const (
	notSent      exit = iota
	evicted           // the API server has accepted the eviction, or said that the pod is gone
	cutShort          // with less grace than it asks for
	forceDeleted      // past its disruption budget
)

// stays reports whether the pod is there and was not sent away.
func (t *tracked) stays() bool { return !t.gone && t.sent == notSent }

// sendLocked notes that the pod was sent away.
func (t *tracked) sendLocked(by exit) { t.sent, t.refusal = max(t.sent, by), "" }

// result counts the pods, and calls left with each that is still there and was not sent away.
func (s *session) result(left func(pod *corev1.Pod, refusal string)) (r interruption.Pods) {
	pods := s.watch.All()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catchUpLocked(pods)
	for _, t := range s.tracked {
		r.Total++
		switch {
		case t.stays():
			r.Left++
			r.Refusal = cmp.Or(t.refusal, r.Refusal)
			left(t.pod, cmp.Or(t.refusal, t.failure))
		case t.sent == forceDeleted:
			r.Forced++
		case t.sent == cutShort, !t.gone:
			r.Truncated++
		default:
			r.Graceful++
		}
	}
	return r
}

// meet takes in the pods that have to leave and that no plan was made for.
func (s *session) meet(in plan.NodeState) {
	view, _ := s.view(time.Now(), in)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in = in
	for _, pod := range view.Moving {
		s.trackLocked(pod)
	}
}

// catchUpLocked takes in which pods are leaving or have gone since the last plan.
func (s *session) catchUpLocked(pods []*corev1.Pod) {
	sit := plan.Situation{NodeState: s.in}
	for _, t := range s.tracked {
		t.gone = true
	}
	for _, pod := range pods {
		if t := s.tracked[pod.UID]; t != nil && sit.NotOurs(pod) == "" {
			t.gone = false
			if pod.DeletionTimestamp != nil {
				t.sendLocked(evicted)
			}
		}
	}
}

// Look reads a node's pods and plans for them, without moving any. The first call starts
// the node's watch, which lives until Forget or the end of ctx. It returns false until the
// pods, and what has to be known of their Deployments, are known; Notify is called when
// they are.
func (d *Drainer) Look(ctx context.Context, node string, in plan.NodeState) (plan.View, bool) {
	s := d.session(ctx, node)
	if !s.watch.HasSynced() {
		return plan.View{}, false
	}
	return s.view(time.Now(), in)
}

// Answer takes in what a pod has answered to a notice: it overrides what is annotated. It does
// nothing for a node that is not being drained.
func (d *Drainer) Answer(node string, pod types.UID, when plan.When) {
	d.mu.Lock()
	s := d.sessions[node]
	d.mu.Unlock()
	if s == nil {
		return
	}
	s.note(func() { s.answers[pod] = when })
	d.opts.Notify(node)
}

// Status is how far a node's drain has come.
type Status struct {
	plan.View
	// Total is how many pods had to leave since the drain began.
	Total int
	// Begun: some pod has been evicted or is to be evicted now, or the replacement is ready
	// for the replacement pods of surged pods.
	Begun bool
	// Moved: every pod that had to leave has left, and none stays.
	Moved bool
	// Refusal is why a pod has been held back for seconds, in the API server's words.
	Refusal string
	// Volumes is how many are still attached for pods that have left.
	Volumes int
	// Done: they have left, and their volumes are detached.
	Done bool
	// Next is when the plan changes by the clock alone; zero if it does not.
	Next time.Time
}

// Drain starts what is due. It plans again unless what Look has just returned is for the same
// interruption. It returns at once. Call it again whenever Notify says so, at Status.Next, and when
// the interruption changes.
func (d *Drainer) Drain(ctx context.Context, node string, in plan.NodeState, view plan.View) (Status, bool) {
	s := d.session(ctx, node)
	if !s.watch.HasSynced() {
		return Status{}, false
	}
	s.concerns(in)
	now := time.Now()
	if d.refresh() || view.For != in {
		view, _ = s.view(now, in)
	}
	status, due := s.advance(now, view)
	for _, t := range due {
		d.queue.push(t)
	}
	return status, true
}

// Finish ends a node's drain and returns what became of every pod, each counted once. Pods
// that are still on the node and have not been evicted count as left; those that are still
// terminating past the deadline had less than their grace period. The interruption tells which
// pods had to leave a node that only a predecessor has drained.
func (d *Drainer) Finish(node string, in plan.NodeState) interruption.Pods {
	d.mu.Lock()
	s, ok := d.sessions[node]
	d.mu.Unlock()
	if !ok {
		return interruption.Pods{}
	}
	defer d.Forget(node)
	s.meet(in)
	return s.result(func(pod *corev1.Pod, refusal string) { d.opts.Events.PodLeft(node, pod, refusal) })
}

// Cancel stops a node's drain and puts its surged pods back into their ReplicaSets. It
// returns false while something is still under way: Notify says when to call again. When it
// returns true the drain has ended, and the result says what had become of the pods; none
// counts as left. Pods that are terminating cannot be kept.
func (d *Drainer) Cancel(ctx context.Context, node string) (Result, bool, error) {
	s := d.session(ctx, node)
	if !s.cancel() || !s.watch.HasSynced() {
		return Result{}, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, evictTimeout) // the caller's workers are few
	defer cancel()
	// The watch might not have shown yet which pods were surged a moment ago.
	if err := d.putBackAll(ctx, node, "", func(*corev1.Pod) bool { return true }); err != nil {
		return Result{}, false, err
	}
	result := Result{Pods: s.result(func(*corev1.Pod, string) {})}
	result.Total, result.Left = result.Total-result.Left, 0
	result.Staying = slices.DeleteFunc(s.watch.All(), func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil })
	d.Forget(node)
	return result, true, nil
}

// Sweep puts surged pods back into their ReplicaSets where nobody drains their node, as
// after a drain that was cancelled by removing the record. An empty node means all nodes.
func (d *Drainer) Sweep(ctx context.Context, node string, drained func(node string) bool) error {
	return d.putBackAll(ctx, node, "0", func(pod *corev1.Pod) bool {
		if drained(pod.Spec.NodeName) {
			return false
		}
		d.opts.Logger.Warn().Str("node", pod.Spec.NodeName).Str("pod", pod.Namespace+"/"+pod.Name).
			Msg("pod was surged but its node is not being drained: put back into its ReplicaSet")
		return true
	})
}

// putBackAll puts back the surged pods that the filter picks, of one node or of all. They
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
			_, err := d.putBack(ctx, plan.Decision{Pod: pod})
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
