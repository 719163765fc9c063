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
	// A record whose write has failed is written again after firstRetry, and from then on after twice as long each
	// time, up to longestRetry.
	firstRetry   = 50 * time.Millisecond
	longestRetry = 5 * time.Second
	// For this long a failed write keeps its place and is retried there. After that it waits for the node's next
	// reconciliation, which can take seconds. If another process takes over meanwhile, that process requests again
	// whatever the record doesn't name.
	retriedInPlace = 200 * time.Millisecond
)

// retryAfter is how long after so many failures in a row a record is written again.
func retryAfter(failed int) time.Duration { return min(firstRetry<<min(failed-1, 10), longestRetry) }

// besideWrite is one that is under way.
type besideWrite struct {
	ctx  context.Context // nobody writes it once this has ended
	over atomic.Bool     // it has been tried, and what follows stays

	rec             interruption.Record
	failed          int    // attempts in a row, with those of earlier writes; 0 after a success
	resourceVersion string // empty if it has failed
	outdated        string // the version of the Node that it was made for, if that is not the Node's any more
}

// progressBeside moves the record on while the reconciliation goes on. As long as it's under way, nothing
// further is written so: when it is over, the node is reconciled again. Nor is anything written for a version
// of the Node that is known to be outdated: the watch, which may be seconds behind, brings a newer one.
func (r *reconciliation) progressBeside(ctx context.Context, next interruption.Record) {
	switch k := r.known; {
	case k.beside != nil, k.outdated == r.node.ResourceVersion:
		return
	case time.Now().Before(k.writeAt):
		r.lookAgain(k.writeAt)
		return
	}
	write := &besideWrite{ctx: ctx, rec: next, failed: r.known.failedWrites}
	h, node, before := r.Handler, r.node, r.rec.Phase
	going := h.progress.Do(ctx, fair.Task{Tenant: node.Name, Who: node.UID, Run: func() {
		until := time.Now().Add(retriedInPlace)
		err := h.writeBeside(ctx, node, write)
		for err != nil && write.outdated == "" && time.Now().Add(retryAfter(write.failed)).Before(until) && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(retryAfter(write.failed)):
				err = h.writeBeside(ctx, node, write)
			}
		}
		write.over.Store(true)
		switch {
		case err == nil && next.Phase == interruption.Draining && before != interruption.Draining:
			h.opts.Logger.Info().Str("node", node.Name).EmbedObject(next).Int("pods", podsOf(next).Total).Msg("draining")
		case err != nil && write.outdated == "" && ctx.Err() == nil:
			h.opts.Logger.Warn().Err(err).Str("node", node.Name).Msg("write record")
		}
		h.queue.Add(node.Name) // also if it is outdated: the watch may have said so meanwhile
	}})
	if going {
		r.known.beside = write
	}
}

// writeBeside makes one attempt, and stores its outcome in write.
func (h *Handler) writeBeside(ctx context.Context, node *corev1.Node, write *besideWrite) error {
	patch := marks.Progress(node, write.rec, firstConditions(node, write.rec, time.Now())...)
	patched, err := h.opts.Nodes.Patch(ctx, node.Name, patch.Type, patch.Data, metav1.PatchOptions{}, patch.Subresources...)
	if len(patch.Subresources) > 0 && (apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) {
		patch = marks.Progress(node, write.rec) // no conditions: the Node has changed, or its status is forbidden
		patched, err = h.opts.Nodes.Patch(ctx, node.Name, patch.Type, patch.Data, metav1.PatchOptions{})
	}
	switch {
	case err == nil:
		write.resourceVersion, write.failed = patched.ResourceVersion, 0
	case apierrors.IsNotFound(err), apierrors.IsInvalid(err): // the Node is gone, or its record has changed
		write.outdated = node.ResourceVersion
	default:
		write.failed++
	}
	return err
}

// takeIn takes in what has been written beside.
func (m *memory) takeIn(k *known) {
	written := k.beside
	if written == nil || !written.over.Load() && written.ctx.Err() == nil {
		return
	}
	k.beside = nil
	switch {
	case !written.over.Load():
	case written.outdated != "":
		k.outdated = written.outdated
	case written.resourceVersion != "":
		k.failedWrites = 0
		m.change(func() { k.rec, k.resourceVersion = written.rec, written.resourceVersion })
	default:
		k.failedWrites = written.failed
		k.writeAt = time.Now().Add(retryAfter(k.failedWrites))
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
