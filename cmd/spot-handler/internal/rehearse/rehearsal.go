// Package rehearse plays EC2: it writes onto Nodes the records that notices would leave there,
// marked as rehearsals, and sees to it that each node is in service again at the end.
//
// Everything in between is the daemon's, which also ends a rehearsal by itself, whatever becomes
// of whoever began it. What is written here is written with the permissions of the caller. A record is
// changed only while it is the one that was written here, so a notice from EC2 is never undone.
package rehearse

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"spot-handler/cmd/spot-handler/internal/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
	"spot-handler/handler/nodes"
)

// Nodes is the subset of the Nodes API that a rehearsal needs.
type Nodes interface {
	nodes.Client
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Node, error)
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*corev1.Node, error)
}

// Options say what is rehearsed.
type Options struct {
	// Loss is of one of Kinds. A kind that has no deadline is cancelled then.
	plan.Loss
	// Release has the nodes terminated at the end, as after an interruption.
	Release bool
	// Rules are those of the daemon.
	Rules nodes.RulesFunc
}

// Kinds lists the kinds that can be rehearsed. The others are about an instance that is ending
// already: there is nothing to learn that would be worth pods that get a second.
func Kinds() []interruption.Kind {
	return []interruption.Kind{
		interruption.SpotInterruption, interruption.RebalanceRecommendation,
		interruption.CapacityReservationInterruption, interruption.ScheduledEvent,
	}
}

// LeastDeadline is the shortest deadline that leaves something to rehearse: with less, the drain is
// an emergency, in which pods get a second.
const LeastDeadline = 25 * time.Second

// Rehearsal is one interruption, or mass interruption, that is rehearsed.
type Rehearsal struct {
	nodes Nodes
	opts  Options
	event string
}

// New returns a rehearsal that begins at now. It makes no call.
func New(client Nodes, o Options, now time.Time) *Rehearsal {
	return &Rehearsal{nodes: client, opts: o, event: "rehearsal/" + now.UTC().Format("20060102T150405.000")}
}

// hasDeadline reports whether notices of the kind say when EC2 acts.
func (o Options) hasDeadline() bool { return o.Kind != interruption.RebalanceRecommendation }

// notice is what is said of the node now.
func (r *Rehearsal) notice(node *corev1.Node, now time.Time) interruption.Notice {
	n := r.opts.Notice(node, now)
	n.Source, n.EventID, n.Release = interruption.Rehearsal, r.event, r.opts.Release
	if r.opts.hasDeadline() {
		n.Deadline = now.Add(r.opts.Deadline).Truncate(time.Second)
	}
	return n
}

// Judge is what the rehearsal means for the node, or what is against it.
func (r *Rehearsal) Judge(node *corev1.Node, now time.Time) (rec interruption.Record, against string) {
	switch {
	case node.DeletionTimestamp != nil:
		return rec, "it is being deleted"
	case !nodes.Ready(node):
		return rec, "it is not Ready"
	}
	j := interruption.Judge(nodes.Case(node, r.notice(node, now), r.opts.Rules, now))
	if j.Verdict != interruption.Accepted {
		return rec, j.Reason
	}
	return j.Record, ""
}

// begin writes the record, as a daemon that accepts the notice does.
func (r *Rehearsal) begin(ctx context.Context, name string) (*corev1.Node, error) {
	return r.change(ctx, name, func(node *corev1.Node) (marks.Patch, bool, error) {
		rec, against := r.Judge(node, time.Now())
		if against != "" {
			return marks.Patch{}, false, fmt.Errorf("node %s: %s", name, against)
		}
		p, err := marks.Accept(node, rec)
		return p, true, err
	})
}

// cancel has the daemon undo a rehearsal that is not over, as an operator has it undo an
// interruption.
func (r *Rehearsal) cancel(ctx context.Context, name string) (*corev1.Node, error) {
	return r.change(ctx, name, func(node *corev1.Node) (marks.Patch, bool, error) {
		rec, ours := r.record(node)
		if !ours || rec.Phase == interruption.Released || node.Annotations[interruption.CancelAnnotation] == "true" {
			return marks.Patch{}, false, nil
		}
		data, err := json.Marshal([]map[string]any{
			{"op": "test", "path": "/metadata/annotations/spot-handler~1interruption", "value": node.Annotations[interruption.Annotation]},
			{"op": "add", "path": "/metadata/annotations/spot-handler~1cancel", "value": "true"},
		})
		return marks.Patch{Type: types.JSONPatchType, Data: data}, true, err
	})
}

// takeBack undoes a rehearsal, if nobody has taken it up.
func (r *Rehearsal) takeBack(ctx context.Context, name string) (undone bool, err error) {
	_, err = r.change(ctx, name, func(node *corev1.Node) (marks.Patch, bool, error) {
		rec, ours := r.record(node)
		if undone = ours && rec.Phase == interruption.Noticed; !undone {
			return marks.Patch{}, false, nil
		}
		p, err := marks.Undo(node, rec, nil, time.Now())
		return p, true, err
	})
	return undone, err
}

// record is the Node's, and whether it is the one of this rehearsal.
func (r *Rehearsal) record(node *corev1.Node) (rec interruption.Record, ours bool) {
	rec, has, err := nodes.Record(node)
	return rec, has && err == nil && rec.Rehearsed() && rec.Event == r.event
}

// change writes what make wants for the Node as it is, if it wants anything. A Node that is gone
// needs no change, and is nil.
func (r *Rehearsal) change(ctx context.Context, name string, make func(*corev1.Node) (p marks.Patch, wanted bool, err error)) (changed *corev1.Node, err error) {
	overtaken := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsInvalid(err) } // somebody else was there first
	err = retry.OnError(retry.DefaultRetry, overtaken, func() error {
		node, err := r.nodes.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read node %s: %w", name, err)
		}
		patch, wanted, err := make(node)
		if err != nil || !wanted {
			changed = node
			return err
		}
		if changed, err = r.nodes.Patch(ctx, name, patch.Type, patch.Data, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("mark node %s: %w", name, err)
		}
		return nil
	})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return changed, err
}

// Share is how many nodes would be interrupted at once, those that are already among them, and how
// many of all that percentage allows: one at least.
func Share(all, chosen []*corev1.Node, percent int) (n, most int) {
	n = len(chosen)
	for _, node := range all {
		if rec, has, err := nodes.Record(node); has && (err != nil || !rec.Phase.Over()) {
			n++
		}
	}
	return n, max(1, len(all)*percent/100)
}
