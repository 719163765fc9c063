package handler

import (
	"context"
	"fmt"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// staleAfter is how long after its deadline a notice is still believed when its
// node is alive and Ready. EC2 acts within seconds of the time that it gives, so a
// node that is well minutes later is another life of it, or the message is late:
// EventBridge delivers for up to 24 hours.
const staleAfter = 3 * time.Minute

// acceptAttempts bounds how often Accept writes again after somebody else changed
// the Node at the same moment. Each attempt reads the Node anew, so more than one
// or two mean that something rewrites it all the time; the source comes back later.
const acceptAttempts = 5

// acceptsAtOnce is how many notices are written at the same moment. It is enough to
// keep any API server busy, and more would only make each wait longer, and with them
// all other requests, such as the renewal of the leader's lease.
const acceptsAtOnce = 64

// Accept records a notice on its Node. It returns an error only when the notice is
// not settled and has to be delivered again; the verdict says what became of it
// otherwise. Unknown means that no Node is that instance at this moment: whether to
// ask again is the source's decision.
func (h *Handler) Accept(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
	if n.Hook != nil {
		return h.acceptHook(ctx, n)
	}
	return h.record(ctx, n)
}

// record writes a notice on its Node.
func (h *Handler) record(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
	h.accepting.Add(1)
	defer h.accepting.Add(-1)
	h.foresee(n)
	if err := h.writing.Acquire(ctx, 1); err != nil {
		return "", fmt.Errorf("wait for a place among %d notices: %w", acceptsAtOnce, err)
	}
	defer h.writing.Release(1)
	node, ok := h.opts.Index.Find(n)
	for attempt := 0; ok && attempt < acceptAttempts; attempt++ {
		rec, verdict := h.judge(node, n)
		if verdict != interruption.Accepted {
			return verdict, nil
		}
		patch, err := acceptPatch(node, &rec)
		if err != nil {
			return "", fmt.Errorf("mark node %q: %w", node.Name, err)
		}
		patched, err := h.opts.Nodes.Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		switch {
		case err == nil:
			h.accepted(patched, rec, n)
			return interruption.Accepted, nil
		case apierrors.IsNotFound(err):
			return interruption.Unknown, nil
		case !apierrors.IsConflict(err):
			return "", fmt.Errorf("mark node %q: %w", node.Name, err)
		}
		name := node.Name
		node, err = h.opts.Nodes.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return interruption.Unknown, nil
		}
		if err != nil {
			return "", fmt.Errorf("read node %q: %w", name, err)
		}
	}
	if !ok {
		return interruption.Unknown, nil
	}
	return "", fmt.Errorf("mark node %q: changed by others %d times in a row", node.Name, acceptAttempts)
}

// judge compares a notice with what the Node says already. The record is only
// meaningful with the verdict Accepted.
func (h *Handler) judge(node *corev1.Node, n interruption.Notice) (interruption.Record, interruption.Verdict) {
	if n.Kind == interruption.RebalanceRecommendation && h.rebalancePolicy(node) == RebalanceIgnore {
		return interruption.Record{}, interruption.Ignored
	}
	if n.InstanceID == "" {
		n.InstanceID = nodes.InstanceID(node)
	}
	old, has, err := recordOf(node)
	has = has && err == nil
	if n.Withdrawn {
		return h.withdraw(old, has, n)
	}
	if interruption.ParsePast(node.Annotations[interruption.PastAnnotation]).Has(n) {
		return old, interruption.Duplicate
	}
	acts := n.Deadline
	if n.Action == interruption.ActionHibernate { // at once, however late we hear of it
		acts = n.Noticed
	}
	since, ready := nodes.ReadySince(node)
	if n.Kind != interruption.ScheduledEvent && !acts.IsZero() && time.Since(acts) > staleAfter && ready {
		return interruption.Record{}, interruption.Stale
	}
	if n.Kind == interruption.StateChange {
		switch {
		case ranSince(node, n.Noticed):
			return old, interruption.Stale
		case !has && idle(node, old, old, has):
			return old, interruption.Ignored
		}
	}
	if has && old.Canceled {
		return h.revive(node, old, n)
	}
	if has && n.OfNextRun(old, node.Status.NodeInfo.BootID, since) {
		old, has = h.lastRun(old)
	}
	if !has || n.Supersedes(old) {
		rec := interruption.NewRecord(n)
		rec.Ours, rec.Past = old.Ours, old.Past // whatever it was set for, it was not there before
		if h.waits(node, rec) {
			rec.Phase = interruption.Waiting
		}
		return rec, interruption.Accepted
	}
	rec, changed := old.Merge(n)
	if !changed {
		return old, interruption.Duplicate
	}
	switch {
	case n.Kind == interruption.StateChange && idle(node, old, rec, has):
		return old, interruption.Duplicate
	case h.waitsAgain(old, rec):
		rec.Phase = interruption.Waiting
	case n.Kind == interruption.StateChange && old.Phase.Over(): // what could be moved has been
	case rec.Kind != old.Kind && old.Phase.Over() && old.Phase != interruption.Released:
		rec.Phase = interruption.Noticed // cordoned only until now, or drained in part
	case old.Phase == interruption.Waiting && !h.waits(node, rec):
		rec.Phase = interruption.Noticed
	}
	return rec, interruption.Accepted
}

func (h *Handler) accepted(node *corev1.Node, rec interruption.Record, n interruption.Notice) {
	log := tell(h.opts.Logger.Info(), node.Name, rec).Str("event_id", n.EventID).Str("phase", string(rec.Phase)).
		Float64("took_seconds", time.Since(n.Received).Seconds())
	switch {
	case n.Withdrawn:
		log.Msg("announcement withdrawn")
		return
	case rec.Phase.Over():
		log.Msg("interruption accepted, drain is over already")
		h.metrics.noticed(n, false)
		return
	case rec.Phase == interruption.Waiting:
		log.Msg("interruption accepted, drain waits")
	default:
		log.Msg("interruption accepted, node cordoned")
	}
	h.metrics.noticed(n, rec.Phase != interruption.Waiting)
	if rec.Event == n.EventID { // else a further word on an interruption that has been told of
		h.opts.Events.Noticed(node, rec)
	}
}

// tell adds the fields that every line of an interruption's story has.
func tell(e *zerolog.Event, node string, r interruption.Record) *zerolog.Event {
	e = e.Str("node", node).Str("instance_id", r.Instance).Str("kind", string(r.Kind)).Str("source", string(r.Source))
	if d := r.DeadlineTime(); !d.IsZero() {
		e = e.Time("deadline", d).Float64("remaining_seconds", time.Until(d).Seconds())
	}
	return e
}

// recordOf reads a Node's record: whether there is one, and whether it can be read.
func recordOf(node *corev1.Node) (rec interruption.Record, has bool, err error) {
	text, has := node.Annotations[interruption.Annotation]
	if !has {
		return interruption.Record{}, false, nil
	}
	rec, err = interruption.ParseRecord(text)
	return rec, true, err
}

func isReady(node *corev1.Node) bool {
	_, ready := nodes.ReadySince(node)
	return ready
}
