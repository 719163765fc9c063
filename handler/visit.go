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
	"spot-handler/handler/marks"
	"spot-handler/handler/notify"
)

// visit is one reconciliation of an interrupted Node: what the Node carries, what this process
// remembers of it, and when to look again.
type visit struct {
	*Handler
	node  *corev1.Node        // as last read, or written here
	rec   interruption.Record // as it stands on the Node
	known *known

	removed bool // somebody has taken the record off the Node: rec is as it was

	again time.Time // zero: when something happens
}

// lookAgain schedules another visit at that time, if nothing happens before; zero means never.
func (v *visit) lookAgain(at time.Time) { v.again = interruption.Earlier(v.again, at) }

func (v *visit) lookAgainIn(d time.Duration) {
	if d > 0 {
		v.lookAgain(time.Now().Add(d))
	}
}

// rules are the operator's for this node. An error is transient, and concerns only the
// rebalance policy.
func (v *visit) rules() (interruption.Rules, error) {
	return v.opts.Rules(v.node, v.rec.Kind == interruption.RebalanceRecommendation)
}

// due reports whether a scheduled event's drain has to begin, or should have begun.
func (v *visit) due() bool {
	rules, _ := v.opts.Rules(v.node, false)
	return rules.Due(v.rec, time.Now())
}

// write changes the Node and remembers what was written. A Node that is gone needs no change.
// If others have changed it meanwhile, the error is errChanged or, for a patch that depends on
// the record alone, the API server's own.
func (v *visit) write(ctx context.Context, patch marks.Patch) error {
	patched, err := v.opts.Nodes.Patch(ctx, v.node.Name, patch.Type, patch.Data, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err):
		patched = v.node
	case apierrors.IsConflict(err) && patch.Type == types.MergePatchType:
		return errChanged
	case err != nil:
		return err
	}
	v.node = patched
	if patch.Record != nil {
		v.rec = *patch.Record
	}
	v.memory.change(func() { v.known.rec, v.known.resourceVersion = v.rec, patched.ResourceVersion })
	return nil
}

// progress moves the record on.
func (v *visit) progress(ctx context.Context, rec interruption.Record) error {
	patch, err := marks.Progress(v.node, rec)
	if err == nil {
		err = v.write(ctx, patch)
	}
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// mark cordons a node whose wait is over, and records that its interruption has begun.
func (v *visit) mark(ctx context.Context, rec interruption.Record) error {
	rec.Phase = interruption.Noticed
	patch, err := marks.Set(v.node, rec)
	if err == nil {
		err = v.write(ctx, patch)
	}
	if err != nil {
		return fmt.Errorf("mark node: %w", err)
	}
	v.opts.Events.Notify(notify.Noticed(v.node, v.rec))
	v.tell(v.opts.Logger.Info()).Str("phase", string(v.rec.Phase)).Msg("wait is over, node cordoned")
	return nil
}

// tell adds the fields that every line of an interruption's story carries.
func (v *visit) tell(e *zerolog.Event) *zerolog.Event { return v.tellOf(e, v.rec) }

func (v *visit) tellOf(e *zerolog.Event, rec interruption.Record) *zerolog.Event {
	return e.Str("node", v.node.Name).EmbedObject(rec)
}

// until is the time to t, but at least a millisecond: zero means never.
func until(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return max(time.Millisecond, time.Until(t))
}
