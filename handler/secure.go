package handler

import (
	"context"
	"time"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
	"spot-handler/handler/provisioner"
)

// secure requests a replacement for a recommended node whose turn has come, and marks the node
// once that is Ready. Not earlier: until then the node loses nothing if there is no capacity,
// the machine does not boot or a group launches none, and is of use meanwhile. Pods that come
// in the minute that this takes move with the others.
func (v *visit) secure(ctx context.Context) error {
	view, ok := v.opts.Drainer.Look(ctx, v.node.Name, drain.Interruption{Taint: marks.Taint(v.rec), Capacity: drain.PendingCapacity})
	switch {
	case !ok: // the drainer wakes us when it knows the pods
		return nil
	case len(view.Moving)+len(view.Staying) == 0: // nothing needs another home
		return v.begin(ctx, v.rec)
	case len(view.Moving) == 0:
		none := interruption.Replacement{Backend: provisioner.None, State: provisioner.StateUnsupported, Reason: "no pod would leave on a recommendation"}
		if was := v.rec.Replacement; was == nil || *was != none {
			v.tellReplacement(v.rec, none, false)
		}
		return v.pass(ctx, none)
	}
	view.Surged = nil // no successor is made before the replacement is Ready, so none asks for room
	next := v.rec
	if err := v.replace(ctx, &next, view); err != nil {
		return err
	}
	switch got := *next.Replacement; {
	case got.State == provisioner.StateReady:
		return v.begin(ctx, next)
	case !provisioner.Pending(got.State):
		return v.pass(ctx, got)
	case got.Name == "": // not requested yet
		return nil
	}
	if next.Begun == nil {
		now := time.Now().UTC()
		next.Begun = &now
	} else if !replacementMoved(v.rec.Replacement, next.Replacement) {
		return nil
	}
	return v.progress(ctx, next)
}

// pass leaves a node in service for which there is no replacement, gives its turn to the next in
// line, and tries again after a while.
func (v *visit) pass(ctx context.Context, none interruption.Replacement) error {
	v.opts.Drainer.Forget(v.node.Name)
	v.leaveLine(v.node.Name)
	// Without its name it is decided again.
	none = interruption.Replacement{Backend: none.Backend, State: none.State, Reason: none.Reason}
	v.memory.change(func() {
		v.known.replacement, v.known.requested, v.known.retry = none, true, time.Now().Add(rebalanceLook)
	})
	v.lookAgain(v.known.retry)
	if was := v.rec.Replacement; was != nil && *was == none {
		return nil // said already
	}
	rec := v.rec.Undone()
	rec.Replacement = &none
	if err := v.progress(ctx, rec); err != nil {
		return err
	}
	v.tell(v.opts.Logger.Info()).Str("reason", none.Reason).Msg("no replacement, node stays in service")
	return nil
}
