package handler

import (
	"context"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/fair"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
)

// How far a drain has come is written beside it: the record is for whoever drains the node next, and for
// people. Neither this node's pods nor the other nodes wait for the write.

const (
	// progressPlaces is how many records are written beside their drains at the same time.
	progressPlaces = workers
	// progressWaiting is more Nodes than are drained at a time. One that finds no room is written at its
	// next reconciliation.
	progressWaiting = 15_000
)

// besideWrite is one that is under way.
type besideWrite struct {
	ctx  context.Context // nobody writes it once this has ended
	over atomic.Bool     // it has been tried, and what follows stays

	rec             interruption.Record
	resourceVersion string // empty if it has failed
	outdated        string // the version of the Node that it was made for, if that is not the Node's any more
}

// progressBeside moves the record on while the reconciliation goes on. As long as it's under way, nothing
// further is written so: when it is over, the node is reconciled again. Nor is anything written for a version
// of the Node that is known to be outdated: the watch, which may be seconds behind, brings a newer one.
func (r *reconciliation) progressBeside(ctx context.Context, next interruption.Record) {
	if r.known.beside != nil || r.known.outdated == r.node.ResourceVersion {
		return
	}
	write := &besideWrite{ctx: ctx, rec: next}
	h, node, before := r.Handler, r.node, r.rec.Phase
	patch := marks.Progress(node, next)
	going := h.progress.Do(ctx, fair.Task{Tenant: node.Name, Who: node.UID, Run: func() {
		patched, err := h.opts.Nodes.Patch(ctx, node.Name, patch.Type, patch.Data, metav1.PatchOptions{})
		if err == nil {
			write.resourceVersion = patched.ResourceVersion
		}
		if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) { // the Node is gone, or its record has changed
			write.outdated = node.ResourceVersion
		}
		write.over.Store(true)
		switch {
		case err == nil:
			if next.Phase == interruption.Draining && before != interruption.Draining {
				h.opts.Logger.Info().Str("node", node.Name).EmbedObject(next).Int("pods", podsOf(next).Total).Msg("draining")
			}
			h.queue.Add(node.Name)
		case write.outdated != "": // the watch may have said so meanwhile
			h.queue.Add(node.Name)
		case ctx.Err() == nil:
			h.opts.Logger.Warn().Err(err).Str("node", node.Name).Msg("write record")
			h.queue.AddRateLimited(node.Name)
		}
	}})
	if going {
		r.known.beside = write
	}
}

// takeIn takes in what has been written beside.
func (m *memory) takeIn(k *known) {
	written := k.beside
	if written == nil || !written.over.Load() && written.ctx.Err() == nil {
		return
	}
	k.beside = nil
	if written.over.Load() && written.outdated != "" {
		k.outdated = written.outdated
	}
	if written.over.Load() && written.resourceVersion != "" {
		m.change(func() { k.rec, k.resourceVersion = written.rec, written.resourceVersion })
	}
}

// nodeWriteTimeout bounds a request about a Node. The API server answers in milliseconds, and lets one that
// hangs go on for a minute.
const nodeWriteTimeout = 10 * time.Second

// bounded are Nodes none of whose requests takes longer than nodeWriteTimeout, with all attempts that the
// client makes.
type bounded struct{ Nodes }

func (b bounded) Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, nodeWriteTimeout)
	defer cancel()
	return b.Nodes.Get(ctx, name, opts)
}

func (b bounded) Patch(
	ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, sub ...string,
) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, nodeWriteTimeout)
	defer cancel()
	return b.Nodes.Patch(ctx, name, pt, data, opts, sub...)
}

func (b bounded) Mark(ctx context.Context, name string, pt types.PatchType, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, nodeWriteTimeout)
	defer cancel()
	return b.Nodes.Mark(ctx, name, pt, data)
}
