package bench

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"spot-handler/handler/interruption"
)

// watcher sees nodes become unschedulable, as the scheduler does: when that change
// comes out of the API server. That is later than when the daemon or the raw loop has
// its answer, and the only time that counts for a pod. The API server filters, so
// nothing else holds the watch up; how long the events take here is shown by busy.
//
// An API server under load ends watches that it cannot serve in time, and this one is
// no exception: it goes on from where it was, as informers do, and counts.
// https://github.com/kubernetes/kubernetes/blob/v1.36.0/staging/src/k8s.io/apiserver/pkg/storage/cacher/cache_watcher.go
type watcher struct {
	client kubernetes.Interface

	mu       sync.Mutex
	first    map[string]sight // by node: when it was first seen cordoned, and how it was then
	released map[string]bool  // nodes whose record says that all is done
	err      error
	busy     time.Duration // spent on events, which is time in which the next one waits
	ended    int           // watches that the API server has ended

	changed chan struct{}
}

type sight struct {
	at   time.Time
	node *corev1.Node
}

// watchCordons watches until ctx ends.
func watchCordons(ctx context.Context, client kubernetes.Interface) (*watcher, error) {
	w := &watcher{client: client, first: map[string]sight{}, released: map[string]bool{}, changed: make(chan struct{}, 1)}
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: cordoned})
	if err != nil {
		return nil, fmt.Errorf("watch nodes: %w", err)
	}
	stream, err := w.open(ctx, list.ResourceVersion)
	if err != nil {
		return nil, err
	}
	go w.run(ctx, stream, list.ResourceVersion)
	return w, nil
}

const cordoned = "spec.unschedulable=true"

func (w *watcher) open(ctx context.Context, from string) (watch.Interface, error) {
	stream, err := w.client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: cordoned, ResourceVersion: from})
	if err != nil {
		return nil, fmt.Errorf("watch nodes: %w", err)
	}
	return stream, nil
}

func (w *watcher) run(ctx context.Context, stream watch.Interface, at string) {
	for {
		for event := range stream.ResultChan() {
			now := time.Now()
			node, ok := event.Object.(*corev1.Node)
			if !ok {
				w.note(func() { w.err = fmt.Errorf("watch nodes: %v", event.Object) })
				return
			}
			at = node.ResourceVersion
			w.note(func() { w.see(node, now) })
		}
		if ctx.Err() != nil {
			return
		}
		next, err := w.open(ctx, at)
		w.note(func() { w.ended, w.err = w.ended+1, err })
		if err != nil {
			return
		}
		stream = next
	}
}

func (w *watcher) see(node *corev1.Node, now time.Time) {
	if _, seen := w.first[node.Name]; !seen {
		w.first[node.Name] = sight{now, node}
	} else if rec, err := interruption.ParseRecord(node.Annotations[interruption.Annotation]); err == nil && rec.Phase == interruption.Released {
		w.released[node.Name] = true
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

// wait returns when so many nodes are as the watch is asked to count.
func (w *watcher) wait(ctx context.Context, n int, what string, count func() int) error {
	for {
		w.mu.Lock()
		reached, err := count(), w.err
		w.mu.Unlock()
		if reached >= n || err != nil {
			return err
		}
		select {
		case <-w.changed:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d nodes are %s: %w", reached, n, what, context.Cause(ctx))
		}
	}
}

// waitCordoned returns when n nodes are cordoned, and how they were seen first.
func (w *watcher) waitCordoned(ctx context.Context, n int) (map[string]sight, error) {
	err := w.wait(ctx, n, "cordoned", func() int { return len(w.first) })
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.first), err
}

// waitReleased returns when the daemon has done all that it does for n nodes.
func (w *watcher) waitReleased(ctx context.Context, n int) error {
	return w.wait(ctx, n, "released", func() int { return len(w.released) })
}

// cost is what the watch has spent on events, and how often it was ended, until now.
func (w *watcher) cost() (busy float64, ended int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.busy.Seconds(), w.ended
}
