package status

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/nodes"
)

const (
	// everyList and everyStory are how often a watch looks. Nodes are watched; pods are read each
	// time, from the API server's cache.
	everyList  = time.Second
	everyStory = 2 * time.Second
)

// Watch tells of all interruptions again and again, until ctx ends, which is no error.
func (r Reader) Watch(ctx context.Context, show func(List) error) error {
	// The watch would try forever what the caller is not allowed to do.
	if _, err := r.Nodes.List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	index, ended := nodes.New(r.Nodes, "", zerolog.Nop()), make(chan struct{})
	go func() { defer close(ended); _ = index.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	if err := index.Wait(ctx); err != nil {
		return ignoreEnd(ctx, err)
	}
	return repeat(ctx, everyList, func() error {
		var all []*corev1.Node
		for _, name := range index.WithRecord() {
			if node, ok := index.Get(name); ok {
				all = append(all, node)
			}
		}
		list := r.Look(ctx, all)
		if ctx.Err() != nil {
			return nil
		}
		return show(list)
	})
}

// WatchStory tells the story of a node again and again, until ctx ends, which is no error.
func (r Reader) WatchStory(ctx context.Context, name string, in InForce, show func(Story) error) error {
	return repeat(ctx, everyStory, func() error {
		story, err := r.Story(ctx, name, in)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		return show(story)
	})
}

// repeat does it now and at every tick, until it fails or ctx ends.
func repeat(ctx context.Context, every time.Duration, do func() error) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		if err := do(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Same reports whether two lists differ by the time that has passed at most.
func (l List) Same(o List) bool { return reflect.DeepEqual(l.still(), o.still()) }

// Same reports whether two stories differ by the time that has passed at most.
func (s Story) Same(o Story) bool {
	s.SecondsLeft, o.SecondsLeft = nil, nil
	return reflect.DeepEqual(s, o)
}

func (l List) still() List {
	still := List{Unread: l.Unread}
	for _, i := range l.Interruptions {
		i.SecondsLeft = nil
		still.Interruptions = append(still.Interruptions, i)
	}
	return still
}
