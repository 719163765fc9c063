package room

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// freshFor is how long a look counts. A burst's nodes are asked about within seconds.
	freshFor = 2 * time.Second

	// waitingFor is how long the list of pods without a node counts.
	waitingFor = time.Second

	// lookTimeout bounds a look: a drain waits for it.
	lookTimeout = 10 * time.Second
)

// Pods is the subset of the Pods API, of all namespaces, that is read.
type Pods interface {
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.PodList, error)
}

// Nodes is the subset of the Nodes API that is read.
type Nodes interface {
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.NodeList, error)
}

// Options configure a Room. All are required.
type Options struct {
	Pods  Pods
	Nodes Nodes
	// Node is a Node as last seen, if it is known: it may be in danger since the look.
	Node func(name string) (*corev1.Node, bool)
}

// Room promises room. Its methods are safe for concurrent use.
type Room struct {
	opts Options

	mu       sync.Mutex
	look     *look // nil if there is none that counts
	promises map[string]*promise
	waiting  []*corev1.Pod
	waitedAt time.Time
}

// promise is the room that a node's pods were promised.
type promise struct {
	places    map[types.UID]place // by pod
	owners    map[types.UID]bool  // whose pods these are: their successors have the same
	withdrawn string              // why; "" while it stands
}

// New returns a Room. It makes no call.
func New(o Options) *Room { return &Room{opts: o, promises: map[string]*promise{}} }

// Holds reports whether there is room elsewhere for all these pods of a node, or why not. A
// node that was promised room has it until one of its pods is found without a place; then it
// has none until Forget.
func (r *Room) Holds(ctx context.Context, node *corev1.Node, pods []*corev1.Pod) (bool, string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.promises[node.Name]; p != nil {
		if p.withdrawn == "" {
			if err := r.check(ctx, p); err != nil {
				return false, "", err
			}
		}
		return p.withdrawn == "", p.withdrawn, nil
	}
	for _, pod := range pods {
		if why := intricate(pod); why != "" {
			return false, pod.Namespace + "/" + pod.Name + " " + why, nil
		}
	}
	if r.look == nil {
		if err := r.lookAround(ctx); err != nil {
			return false, "", err
		}
	}
	places, unplaced := r.look.placeAll(node, pods, r.endangered)
	if unplaced != "" {
		return false, "no room for " + unplaced, nil
	}
	p := &promise{places: places, owners: map[types.UID]bool{}}
	for _, pod := range pods {
		if owner := metav1.GetControllerOf(pod); owner != nil {
			p.owners[owner.UID] = true
		}
	}
	r.promises[node.Name] = p
	return true, "", nil
}

// Forget drops what a node was promised.
func (r *Room) Forget(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.promises, node)
}

// check withdraws a promise that was not kept.
func (r *Room) check(ctx context.Context, p *promise) error {
	if time.Since(r.waitedAt) > waitingFor {
		list, err := r.opts.Pods.List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=", ResourceVersion: "0"})
		if err != nil {
			return fmt.Errorf("list pods without a node: %w", err)
		}
		r.waiting, r.waitedAt = nil, time.Now()
		for i := range list.Items {
			if unschedulable(&list.Items[i]) {
				r.waiting = append(r.waiting, &list.Items[i])
			}
		}
	}
	for _, pod := range r.waiting {
		if owner := metav1.GetControllerOf(pod); owner != nil && p.owners[owner.UID] {
			p.withdrawn = "the room has gone: " + pod.Namespace + "/" + pod.Name + " finds no place"
			return nil
		}
	}
	return nil
}

// unschedulable reports whether the scheduler has looked for a place and found none.
func unschedulable(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
	})
}

// lookAround takes a new look, and subtracts what was promised to pods that are still where
// they were. It is dropped as soon as it no longer counts: of 5,000 nodes it is some megabytes.
func (r *Room) lookAround(ctx context.Context) error {
	promised := map[types.UID]place{}
	for name, p := range r.promises {
		if node, ok := r.opts.Node(name); !ok || !unavailable(node) { // gone, or called off
			delete(r.promises, name)
			continue
		}
		if p.withdrawn == "" {
			for uid, at := range p.places {
				promised[uid] = at
			}
		}
	}
	l, err := read(ctx, r.opts, promised)
	if err != nil {
		return err
	}
	r.look = l
	time.AfterFunc(freshFor, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.look == l {
			r.look = nil
		}
	})
	return nil
}

// endangered reports whether a node has been marked since the look.
func (r *Room) endangered(name string) bool {
	node, ok := r.opts.Node(name)
	return ok && unavailable(node)
}
