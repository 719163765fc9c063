package handler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
	"spot-handler/handler/nodes"
	"spot-handler/handler/notify"
)

// errChanged: others have changed the Node since it was read. Their change arrives by the
// watch, and the node is reconciled again.
var errChanged = errors.New("node changed meanwhile")

// changedCheck is when the node is reconciled again if its change doesn't arrive: the API server's
// admission can refuse a write as a conflict though nobody has changed the Node.
const changedCheck = 5 * time.Second

// steps are what a reconciliation does, in this order: each step moves the interruption on, or leaves
// it to the next; done ends the reconciliation. Every step can be repeated: each decides from the
// Node, its pods and the replacement as they are.
var steps = []func(r *reconciliation, ctx context.Context) (done bool, err error){
	(*reconciliation).show,
	(*reconciliation).recordRemoved,
	(*reconciliation).cancel,
	(*reconciliation).shutDown,
	(*reconciliation).comeBack,
	(*reconciliation).standDown,
	(*reconciliation).announce,
	(*reconciliation).tendHooks,
	(*reconciliation).restore,
	(*reconciliation).rebalance,
	(*reconciliation).finish,
	(*reconciliation).wait,
	(*reconciliation).drain,
}

// reconcile moves a node one step on, and says when to look again if nothing happens before
// then; zero means never.
func (h *Handler) reconcile(ctx context.Context, name string) (time.Duration, error) {
	r := h.read(ctx, name)
	if r == nil {
		return 0, nil
	}
	for _, step := range steps {
		if done, err := step(r, ctx); errors.Is(err, errChanged) {
			return changedCheck, nil
		} else if done || err != nil {
			return until(r.again), err
		}
	}
	return until(r.again), nil
}

// read begins a reconciliation with what the Node carries. It is nil if there is nothing to reconcile, or
// not yet.
func (h *Handler) read(ctx context.Context, name string) *reconciliation {
	k := h.memory.get(name)
	h.memory.takeIn(k)
	node, ok := h.opts.Index.Get(name)
	if !ok {
		h.nodeGone(ctx, name, k)
		return nil
	}
	node = h.memory.newest(node)
	if nodes.Older(node.ResourceVersion, k.resourceVersion) {
		return nil // our own last write has not come back yet; it will
	}
	if k.gone != "" && k.gone == node.ResourceVersion {
		return nil // a write found no such Node; the watch will say so
	}
	rec, err := nodes.Record(node)
	if errors.Is(err, nodes.ErrNoRecord) {
		return &reconciliation{Handler: h, node: node, rec: k.rec, removed: true, known: k}
	}
	if err == nil {
		err = h.opts.Index.Holds(node)
	}
	if err != nil {
		h.refuse(node, k, err)
		return nil
	}
	h.opts.Offerings.Note(node, rec)
	if k.rec.Event != "" && k.rec.Event != rec.Event { // the room of then may be taken by now
		h.opts.Provisioner.Forget(name)
	}
	if !k.rec.Ended.IsZero() && rec.Ended.IsZero() { // the next interruption, to which nothing of the last one belongs
		written := k.resourceVersion
		h.forget(name)
		k = h.memory.get(name)
		k.resourceVersion = written
	}
	h.memory.change(func() { k.takeRecord(rec) })
	if rec.Kind != interruption.RebalanceRecommendation {
		h.opts.Turns.Remove(name)
	}
	return &reconciliation{Handler: h, node: node, rec: rec, known: k}
}

// refuse does nothing about a Node whose record cannot be read, and says so once.
func (h *Handler) refuse(node *corev1.Node, k *known, err error) {
	h.opts.Turns.Remove(node.Name) // else nobody of its pool would ever have another turn
	if k.unreadable {
		return
	}
	k.unreadable = true
	h.stopDrain(node.Name, k)
	h.opts.Hooks.Forget(node.Name)
	h.metrics.rejected.Inc()
	h.opts.Events.Notify(notify.Unreadable(node, err))
	h.opts.Logger.Error().Err(err).Str("node", node.Name).Msg("read record")
}

// shutDown marks a Node out of service as soon as its machine is known to be gone, and takes
// that back from one that is Ready after all.
func (r *reconciliation) shutDown(ctx context.Context) (done bool, err error) {
	patch, ok := marks.ShutDown(r.node, r.rec)
	if !ok {
		return false, nil
	}
	if err := r.write(ctx, patch); err != nil {
		return false, fmt.Errorf("mark node out of service: %w", err)
	}
	if slices.Contains(r.rec.Ours, interruption.OursOutOfService) {
		r.fields(r.opts.Logger.Info()).Msg("instance terminated, node marked out of service")
	} else {
		r.fields(r.opts.Logger.Warn()).Msg("node is ready though its instance was said to be terminated, out of service no more")
	}
	return true, nil // the watch brings the Node's change back
}

// tendHooks moves the lifecycle hooks in the record on. Until it is known how long the group
// waits, no drain can be planned. While the pods leave, neither they nor the heartbeats wait for the write:
// the next leader asks the group again.
func (r *reconciliation) tendHooks(ctx context.Context) (done bool, err error) {
	tended := r.opts.Hooks.Learn(r.node.Name, r.rec)
	switch {
	case !tended.Changed:
	case r.rec.Phase == interruption.Waiting || r.rec.Phase.Over():
		if err := r.progress(ctx, tended.Record); err != nil {
			return true, err
		}
	default:
		r.progressBeside(ctx, tended.Record)
		r.rec = tended.Record
	}
	r.lookAgain(r.opts.Hooks.Answer(ctx, r.node.Name, tended))
	return !tended.Ready, nil
}

// finish ends with a node whose drain is over.
func (r *reconciliation) finish(ctx context.Context) (done bool, err error) {
	switch {
	case r.rec.Phase == interruption.Released:
		r.stopDrain(r.node.Name, r.known)
	case r.rec.Phase.Over():
		return true, r.release(ctx, r.rec)
	default:
		return false, nil
	}
	return true, nil
}

// wait leaves a node alone until its time has come, and then marks it.
func (r *reconciliation) wait(ctx context.Context) (done bool, err error) {
	if r.rec.Phase != interruption.Waiting {
		return false, nil
	}
	if rules, _ := r.rules(); r.rec.Kind == interruption.ScheduledEvent && !r.due() {
		r.lookAgain(rules.Start(r.rec))
		return true, nil
	}
	return true, r.begin(ctx, r.rec)
}

// begin marks a node whose time or turn has come, with that record.
func (r *reconciliation) begin(ctx context.Context, rec interruption.Record) error {
	rec.Begun = time.Now().UTC()
	return r.mark(ctx, rec)
}

// nodeGone closes the interruption of a Node that no longer exists. One that was waiting, or
// was only cordoned, has missed nothing.
func (h *Handler) nodeGone(ctx context.Context, name string, k *known) {
	if k.begun && !k.rec.Phase.Over() {
		status, _ := h.opts.Drainer.Status(ctx, name)
		pods := h.close(name, k, status, k.rec)
		h.metrics.ended(k.rec, resultFailed, pods, time.Now())
		h.opts.Events.Notify(notify.Ended(lastKnown(name, k.rec), notify.ReasonNodeGone, pods, 0))
		h.opts.Logger.Warn().Str("node", name).EmbedObject(k.rec).Int("left", pods.Left).Msg("node gone before its drain had ended")
	}
	h.opts.Hooks.Orphaned(ctx, name, k.rec)
	h.forget(name)
	h.memory.change(func() { delete(h.memory.ahead, name) })
}

// lastKnown is what we can still say about a Node that no longer exists.
func lastKnown(name string, rec interruption.Record) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(name), Annotations: map[string]string{interruption.Annotation: rec.String()},
	}}
}

// reconciliation is one of an interrupted Node: what the Node carries, what this process remembers of
// it, and when to reconcile it again.
type reconciliation struct {
	*Handler
	node  *corev1.Node        // as last read, or written here
	rec   interruption.Record // as it stands on the Node, or is about to
	known *known

	removed bool // somebody has taken the record off the Node: rec is as it was

	again time.Time // zero: when something happens
}

// lookAgain schedules another reconciliation at that time, if nothing happens before; zero means never.
func (r *reconciliation) lookAgain(at time.Time) { r.again = interruption.Earlier(r.again, at) }

func (r *reconciliation) lookAgainIn(d time.Duration) {
	if d > 0 {
		r.lookAgain(time.Now().Add(d))
	}
}

// rules are the operator's for this node. An error is transient, and concerns only the
// rebalance policy.
func (r *reconciliation) rules() (interruption.Rules, error) {
	return r.opts.Rules(r.node, r.rec.Kind == interruption.RebalanceRecommendation)
}

// due reports whether a scheduled event's drain has to begin, or should have begun.
func (r *reconciliation) due() bool {
	rules, _ := r.opts.Rules(r.node, false)
	return rules.Due(r.rec, time.Now())
}

// write changes the Node and remembers what was written. A Node that is gone needs no change.
// If others have changed it meanwhile, the error is errChanged or, for a patch that depends on
// the record alone, the API server's own.
func (r *reconciliation) write(ctx context.Context, patch marks.Patch) error {
	patched, err := r.opts.Nodes.Patch(ctx, r.node.Name, patch.Type, patch.Data, metav1.PatchOptions{}, patch.Subresources...)
	switch {
	case apierrors.IsNotFound(err):
		patched = r.node
		r.known.gone = r.node.ResourceVersion
	case apierrors.IsConflict(err) && patch.Type == types.MergePatchType:
		return errChanged
	case err != nil:
		return err
	}
	r.node = patched
	if patch.Record != nil {
		r.rec = *patch.Record
	}
	r.memory.change(func() { r.known.rec, r.known.resourceVersion = r.rec, patched.ResourceVersion })
	return nil
}

// progress moves the record on. If it is not as it was, the error is errChanged: the watch, which may be seconds
// behind, brings it.
func (r *reconciliation) progress(ctx context.Context, rec interruption.Record) error {
	switch err := r.write(ctx, marks.Progress(r.node, rec)); {
	case apierrors.IsInvalid(err):
		if r.known.refused == r.node.ResourceVersion { // not by the watch, so the reason may be another
			r.fields(r.opts.Logger.Warn()).Err(err).Msg("write record")
		}
		r.known.refused = r.node.ResourceVersion
		return errChanged
	case err != nil:
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// mark cordons a node whose wait is over, and records that its interruption has begun.
func (r *reconciliation) mark(ctx context.Context, rec interruption.Record) error {
	rec.Phase = interruption.Noticed
	if err := r.write(ctx, marks.Set(r.node, rec)); err != nil {
		return fmt.Errorf("mark node: %w", err)
	}
	r.opts.Events.Notify(notify.Noticed(r.node, r.rec))
	r.fields(r.opts.Logger.Info()).Str("phase", string(r.rec.Phase)).Msg("wait is over, node cordoned")
	return nil
}

// fields adds the fields that every line of an interruption carries.
func (r *reconciliation) fields(e *zerolog.Event) *zerolog.Event { return r.fieldsOf(e, r.rec) }

func (r *reconciliation) fieldsOf(e *zerolog.Event, rec interruption.Record) *zerolog.Event {
	return e.Str("node", r.node.Name).EmbedObject(rec)
}

// overdue is when to look again at what is already past due. Looking again at once would repeat thousands of times a
// second.
const overdue = time.Second

// until is the time left until t, or overdue if t has passed; zero means never.
func until(t time.Time) time.Duration {
	switch left := time.Until(t); {
	case t.IsZero():
		return 0
	case left <= 0:
		return overdue
	default:
		return left
	}
}
