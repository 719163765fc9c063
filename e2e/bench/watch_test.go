package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"spot-handler/handler/interruption"
)

// watcher sees nodes become unschedulable, as the scheduler does: when that change
// comes out of the API server. That is later than when the daemon or the raw loop has
// its answer, and the only time that counts for a pod. The API server filters, so
// nothing else holds the watch up; how long one event takes here is told by busy.
type watcher struct {
	mu       sync.Mutex
	first    map[string]sight // by node: when it was first seen cordoned, and how it was then
	released int              // nodes whose record says that all is done
	err      error
	busy     time.Duration // spent on events, which is time in which the next one waits

	changed chan struct{}
}

type sight struct {
	at   time.Time
	node *corev1.Node
}

// watchCordons watches until the context or the benchmark ends.
func watchCordons(b *testing.B, ctx context.Context, client kubernetes.Interface) *watcher {
	b.Helper()
	w := &watcher{first: map[string]sight{}, changed: make(chan struct{}, 1)}
	stream, err := client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "spec.unschedulable=true"})
	must(b, err)
	b.Cleanup(stream.Stop)
	go func() {
		for event := range stream.ResultChan() {
			now := time.Now()
			node, ok := event.Object.(*corev1.Node)
			if !ok {
				w.note(func() { w.err = fmt.Errorf("watch nodes: %v", event.Object) })
				return
			}
			w.note(func() { w.see(node, now) })
		}
		w.note(func() { w.err = errors.New("watch nodes: the API server has ended it") })
	}()
	return w
}

func (w *watcher) see(node *corev1.Node, now time.Time) {
	if _, seen := w.first[node.Name]; !seen {
		w.first[node.Name] = sight{now, node}
	} else if rec, err := interruption.ParseRecord(node.Annotations[interruption.Annotation]); err == nil && rec.Phase == interruption.Released {
		w.released++
	}
	w.busy += time.Since(now)
}

func (w *watcher) note(change func()) {
	w.mu.Lock()
	change()
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// wait returns when enough says so. It holds the lock while it asks.
func (w *watcher) wait(ctx context.Context, what string, enough func() bool) error {
	for {
		w.mu.Lock()
		done, err := enough(), w.err
		w.mu.Unlock()
		if done || err != nil {
			return err
		}
		select {
		case <-w.changed:
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, context.Cause(ctx))
		}
	}
}

// waitCordoned returns when n nodes are cordoned, and how they were seen first.
func (w *watcher) waitCordoned(ctx context.Context, n int) (map[string]sight, error) {
	err := w.wait(ctx, fmt.Sprintf("%d nodes are cordoned", n), func() bool { return len(w.first) == n })
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.first, err // no further node is added
}

// waitReleased returns when the daemon has done all that it does for n nodes.
func (w *watcher) waitReleased(ctx context.Context, n int) error {
	return w.wait(ctx, fmt.Sprintf("%d nodes are released", n), func() bool { return w.released == n })
}
