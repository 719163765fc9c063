// Package condition shows an interruption as a condition of its Node, for those who watch Nodes
// without knowing our record: kube-state-metrics, other controllers, people.
//
// The condition follows the record, and nothing follows the condition. It is written after the
// cordon, by a goroutine that no drain and no notice waits for. A Writer that is shown a Node
// brings the condition in line with what the Node carries, so it can be shown one too often, and
// another process goes on where one has ended.
package condition

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/notify"
)

// Nodes is the subset of the Nodes API that a Writer writes with.
type Nodes interface {
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*corev1.Node, error)
}

// Options configure a Writer.
type Options struct {
	Nodes  Nodes
	Index  *nodes.Index
	Logger zerolog.Logger
}

// Writer writes the conditions of Nodes. Its methods are safe for concurrent use.
type Writer struct {
	opts    Options
	queue   workqueue.TypedRateLimitingInterface[string]
	refused atomic.Bool // logged once

	mu      sync.Mutex
	written map[string]string // the resource versions of our own last writes, by Node
}

// New returns a Writer. It makes no call and starts nothing.
func New(opts Options) *Writer {
	return &Writer{opts: opts, written: map[string]string{}, queue: workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](500*time.Millisecond, 30*time.Second))}
}

// Show has the Node's condition brought in line with its record, if it is not. It never blocks.
func (w *Writer) Show(node *corev1.Node) {
	if _, changed := patch(node, time.Now()); changed {
		w.queue.Add(node.Name)
	}
}

// writers is how many conditions are written at once: few, as evictions matter more.
const writers = 2

// Run writes until ctx ends. Call it at most once.
func (w *Writer) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, w.queue.ShutDown)
	defer stop()
	done := make(chan struct{})
	for range writers {
		go func() {
			defer func() { done <- struct{}{} }()
			for w.next(ctx) {
			}
		}()
	}
	for range writers {
		<-done
	}
	return nil
}

func (w *Writer) next(ctx context.Context) bool {
	name, shutdown := w.queue.Get()
	if shutdown {
		return false
	}
	defer w.queue.Done(name)
	switch err := w.write(ctx, name); {
	case err == nil, ctx.Err() != nil:
		w.queue.Forget(name)
	case apierrors.IsForbidden(err):
		w.queue.Forget(name)
		if w.refused.CompareAndSwap(false, true) {
			w.opts.Logger.Warn().Err(err).Str("node", name).Msg("condition of interrupted nodes is not written")
		}
	default:
		w.opts.Logger.Debug().Err(err).Str("node", name).Msg("write condition")
		w.queue.AddRateLimited(name)
	}
	return true
}

func (w *Writer) write(ctx context.Context, name string) error {
	node, ok := w.opts.Index.Get(name)
	if !ok {
		return nil
	}
	data, changed := patch(node, time.Now())
	if !changed || w.older(node) {
		return nil // what we wrote has not come back yet; when it does, the Node is shown again
	}
	patched, err := w.opts.Nodes.Patch(ctx, name, types.StrategicMergePatchType, data, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) || apierrors.IsConflict(err) { // or another Node has its name: the UID is a precondition
		return nil
	}
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.written) >= maxWritten {
			clear(w.written) // at worst a condition is written twice
		}
		w.written[name] = patched.ResourceVersion
	}
	return err
}

// maxWritten bounds what is remembered: more Nodes than are interrupted at a time.
const maxWritten = 5000

// older reports whether the Node is older than our own last write of it.
func (w *Writer) older(node *corev1.Node) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return nodes.Older(node.ResourceVersion, w.written[node.Name])
}

// patch is what brings the Node's condition in line with its record; changed is false if it is.
// A record that cannot be read says nothing.
func patch(node *corev1.Node, now time.Time) (data []byte, changed bool) {
	rec, has, err := nodes.Record(node)
	if err != nil {
		return nil, false
	}
	shown := shownOn(node)
	var entry map[string]any
	switch stands := has && rec.Phase != interruption.Waiting; {
	case stands && shown != nil && shown.Status == corev1.ConditionTrue && shown.Reason == notify.NoticeReason(rec.Kind) && shown.Message == message(rec),
		!stands && shown == nil:
		return nil, false
	case stands:
		at := metav1.NewTime(now).Rfc3339Copy()
		entry = map[string]any{
			"type": interruption.ConditionType, "status": corev1.ConditionTrue, "reason": notify.NoticeReason(rec.Kind), "message": message(rec),
			"lastHeartbeatTime": at,
		}
		if shown == nil || shown.Status != corev1.ConditionTrue {
			entry["lastTransitionTime"] = at
		}
	default:
		entry = map[string]any{"$patch": "delete", "type": interruption.ConditionType}
	}
	data, err = json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID},
		"status":   map[string]any{"conditions": []any{entry}},
	})
	return data, err == nil
}

// message says what ends the node, and when.
func message(r interruption.Record) string {
	if d := r.Deadline; !d.IsZero() {
		return fmt.Sprintf("%s, deadline %s", r.Kind, d.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("%s, no deadline", r.Kind)
}

// shownOn is the condition as it stands on the Node; nil if there is none.
func shownOn(node *corev1.Node) *corev1.NodeCondition {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == interruption.ConditionType })
	if i < 0 {
		return nil
	}
	return &node.Status.Conditions[i]
}
