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
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"
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
		interruption.CapacityReservationInterruption, interruption.CapacityBlockExpiration, interruption.ScheduledEvent,
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
		return marks.Accept(node, rec), true, nil
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
		data, _ := json.Marshal([]map[string]any{ // texts
			{"op": "test", "path": "/metadata/annotations/spot-handler~1interruption", "value": node.Annotations[interruption.Annotation]},
			{"op": "add", "path": "/metadata/annotations/spot-handler~1cancel", "value": "true"},
		})
		return marks.Patch{Type: types.JSONPatchType, Data: data}, true, nil
	})
}

// takeBack undoes a rehearsal, if nobody has taken it up.
func (r *Rehearsal) takeBack(ctx context.Context, name string) (undone bool, err error) {
	_, err = r.change(ctx, name, func(node *corev1.Node) (marks.Patch, bool, error) {
		rec, ours := r.record(node)
		if undone = ours && rec.Phase == interruption.Noticed; !undone {
			return marks.Patch{}, false, nil
		}
		return marks.Undo(node, rec, nil, time.Now()), true, nil
	})
	return undone, err
}

// record is the Node's, and whether it is the one of this rehearsal.
func (r *Rehearsal) record(node *corev1.Node) (rec interruption.Record, ours bool) {
	rec, err := nodes.Record(node)
	return rec, err == nil && rec.Rehearsed() && rec.Event == r.event
}

// change writes what make wants for the Node as it is, if it wants anything. A Node that is gone
// needs no change, and is nil.
func (r *Rehearsal) change(
	ctx context.Context, name string, make func(*corev1.Node) (p marks.Patch, wanted bool, err error),
) (changed *corev1.Node, err error) {
	overtaken := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsInvalid(err) } // somebody else was there first
	attempt := func() error {
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
	}
	// OnError itself returns nil if ctx has ended.
	_ = retry.OnError(retry.DefaultRetry, overtaken, func() error { err = attempt(); return err })
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
		rec, err := nodes.Record(node)
		if err == nil && !rec.Phase.Over() || err != nil && !errors.Is(err, nodes.ErrNoRecord) {
			n++
		}
	}
	return n, max(1, len(all)*percent/100)
}

const (
	// step is how often the nodes, which are in memory, are read.
	step = 250 * time.Millisecond

	// takenUpIn is how soon the daemon has to do something about a cordoned node. It takes a
	// second, in a mass interruption some more.
	takenUpIn = 20 * time.Second

	// cancelledIn is how long to wait until all is undone, once it is cancelled. An eviction that
	// is under way has to be answered first.
	cancelledIn = time.Minute

	// terminatedIn is how long to wait for a node to be terminated, once its drain is over.
	terminatedIn = 30 * time.Second
)

// ErrCancelled says that a rehearsal was cancelled before its end.
var ErrCancelled = errors.New("cancelled")

// part is one node's part in a rehearsal.
type part struct {
	node    string
	begun   time.Time
	version string // of the Node, once the record was written
	over    bool   // its drain has ended
}

// Run begins the rehearsal on each node in its turn, and returns when all nodes are in service
// again, or terminated. If ctx ends before that, it is cancelled, and Run returns when
// everything is undone. say gets what people should know meanwhile.
func (r *Rehearsal) Run(ctx context.Context, names []string, say func(string)) error {
	lasting, stop := context.WithCancel(context.WithoutCancel(ctx)) // what is cancelled has to be undone
	index, ended := nodes.New(r.nodes, "", zerolog.Nop()), make(chan struct{})
	go func() { defer close(ended); _ = index.Run(lasting) }()
	defer func() { stop(); <-ended }()
	if err := index.Wait(ctx); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() {
		say("cancelled: each node is put back as it was")
		time.AfterFunc(cancelledIn, stop)
	})()
	errs := make([]error, len(names))
	var parts sync.WaitGroup
	for i, name := range names {
		parts.Go(func() { errs[i] = r.play(ctx, lasting, name, r.opts.After(i, len(names)), index) })
	}
	parts.Wait()
	if ctx.Err() != nil {
		return errors.Join(ErrCancelled, errors.Join(errs...))
	}
	return errors.Join(errs...)
}

// play writes the record of one node when its turn comes, and returns when the node is in service again,
// or terminated. If ctx ends before that, its part is cancelled, for which there is time until
// lasting ends.
func (r *Rehearsal) play(ctx, lasting context.Context, name string, after time.Duration, index *nodes.Index) error {
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(after):
	}
	node, err := r.begin(ctx, name)
	if err != nil && ctx.Err() != nil { // it might have been written all the same
		node, err = r.cancel(lasting, name)
	}
	switch {
	case err != nil:
		return err
	case node == nil:
		return fmt.Errorf("node %s is gone", name)
	}
	p := part{node: name, begun: time.Now(), version: node.ResourceVersion}
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for {
		done, err := r.follow(lasting, &p, ctx.Err() != nil, index)
		if done {
			return err
		}
		select {
		case <-lasting.Done():
			return errors.Join(fmt.Errorf("node %s: spot-handler has not put it back within %s: its log says why", name, cancelledIn), err)
		case <-ticker.C:
		}
	}
}

// follow sees how far a node has come, and does what the daemon does not. It reports whether its part
// is done; until then it is called again, whatever the error.
func (r *Rehearsal) follow(ctx context.Context, p *part, cancelled bool, index *nodes.Index) (done bool, err error) {
	now := time.Now()
	node, there := index.Get(p.node)
	switch {
	case !there && !p.over && !r.opts.Release:
		return true, fmt.Errorf("node %s went before its rehearsal was over", p.node)
	case !there:
		return true, nil
	case nodes.Older(node.ResourceVersion, p.version):
		return false, nil // what was written has not come back yet
	}
	rec, ours := r.record(node)
	switch {
	case !ours && rec.Kind != "" && !rec.Rehearsed():
		return true, fmt.Errorf("node %s is interrupted by EC2: spot-handler drains it", p.node)
	case !ours, rec.Ends(node.DeletionTimestamp != nil):
		return true, nil
	}
	switch p.over = rec.Phase.Over(); {
	case p.over && r.opts.Release && !rec.Ended.IsZero() && now.Sub(rec.Ended) > terminatedIn:
		return true, fmt.Errorf("node %s is drained, but was not terminated: see --release-node of spot-handler, and in an "+
			"Auto Scaling group the replacement in its record; to put the node back: "+
			"kubectl annotate node %s %s=true", p.node, p.node, interruption.CancelAnnotation)
	case p.over:
		return false, nil
	case rec.Phase == interruption.Noticed && rec.Replacement == nil && now.Sub(p.begun) > takenUpIn:
		undone, err := r.takeBack(ctx, p.node)
		if err != nil || !undone {
			return false, err
		}
		return true, fmt.Errorf("node %s: nobody has begun to drain it within %s, so it was put back: "+
			"does spot-handler run here, without --dry-run and --cordon-only?", p.node, takenUpIn)
	case node.Annotations[interruption.CancelAnnotation] == "true": // it is being undone
	case cancelled, !r.opts.hasDeadline() && now.Sub(p.begun) > r.opts.Deadline:
		_, err = r.cancel(ctx, p.node)
	}
	return false, err
}
