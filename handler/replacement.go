package handler

import (
	"context"
	"fmt"
	"time"

	"k8s.io/utils/ptr"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/notify"
	"spot-handler/handler/provisioner"
)

// spareLook is how soon to ask again whether pods that need no replacement have found their
// place. An autoscaler that sees them pending launches a node after a second or more.
const spareLook = time.Second

// requestReplacement requests a replacement, or asks how far it has come, and announces what is new. If
// there is nothing to move, it requests nothing.
func (r *reconciliation) requestReplacement(ctx context.Context, next *interruption.Record, view plan.View) error {
	asked := *next
	asked.Replacement = r.known.replacementOf(*next)
	need := provisioner.NeedOf(view)
	if len(need.Moving) == 0 && asked.Replacement == nil {
		return nil
	}
	before := ptr.Deref(asked.Replacement, interruption.Replacement{})
	got, err := r.opts.Provisioner.Request(ctx, r.node, asked, need)
	if err != nil {
		return fmt.Errorf("request replacement: %w", err)
	}
	got.Reason = interruption.Clip(got.Reason)
	if unnamed(got) && before.Name != "" && before.Backend == got.Backend {
		got = before // it has begun with an older record, and is still finding out
	}
	r.memory.change(func() { r.known.replacement = &got })
	next.Replacement = &got
	if got.Backend == provisioner.Spare && len(need.Moving) > 0 {
		r.lookAgainIn(spareLook)
	}
	if got.State != before.State || got.Name != before.Name && got.State != provisioner.StateFailed {
		r.reportReplacement(*next, before, got)
	}
	return nil
}

// unnamed reports whether a backend is still finding out what the replacement is to be.
func unnamed(r interruption.Replacement) bool { return r.Name == "" && provisioner.Pending(r.State) }

// reportReplacement announces what has become of the replacement since the last answer.
func (r *reconciliation) reportReplacement(rec interruption.Record, before, got interruption.Replacement) {
	log := r.fieldsOf(r.opts.Logger.Info(), rec).Str("backend", got.Backend).Str("replacement", got.Name).Str("pool", got.Pool)
	switch got.State {
	case provisioner.StateFailed:
		r.opts.Events.Notify(notify.Replaced(r.node, notify.ReasonReplacementFailed, got))
		log.Str("reason", got.Reason).Msg("replacement failed")
	case provisioner.StateUnsupported: // the provisioner logs it, once for all nodes with the same reason
		r.opts.Events.Notify(notify.Replaced(r.node, notify.ReasonNoReplacement, got))
	case provisioner.StateReady:
		if got.Backend == provisioner.Spare {
			log.Str("reason", got.Reason).Msg("no replacement needed")
			return
		}
		log.Msg("replacement ready")
	default:
		if got.Name != before.Name {
			r.opts.Events.Notify(notify.Replaced(r.node, notify.ReasonReplacementRequested, got))
			log.Msg("replacement requested")
		}
	}
}

// replacementMoved reports whether the replacement alone is reason to write the record. A
// backend may carry on only once the record names what it has found. That the same replacement
// has been launched is not worth a write, nor is another reason or capacity of one that is still
// pending: two replicas that both believe they lead would overwrite each other's without end.
func replacementMoved(recorded, now *interruption.Replacement) bool {
	if now == nil {
		return false
	}
	if recorded == nil {
		return true
	}
	before := *recorded
	if provisioner.Pending(now.State) {
		before.Reason, before.Capacity = now.Reason, now.Capacity
	}
	return before != *now && (before.Backend != now.Backend || before.Name != now.Name || now.State != provisioner.StateLaunched)
}
