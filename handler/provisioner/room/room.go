// Package room says whether the pods that must leave a node fit on nodes that are there, so
// that no replacement has to be made for them.
//
// It answers as the scheduler would, as far as one reading can: by resources, taints, node
// selectors and required node affinity, the zone of volumes, and the anti-affinity of pods that
// are there. A pod whose place depends on other pods counts as one that does not fit. Pods that
// wait for a place come first, and each placed pod goes to the node with the most room, as with
// the scheduler's own default.
//
// Taking a snapshot reads all Nodes and all pods, page by page, and keeps only sums: its cost grows with
// the cluster. So it is shared by a burst, and what one interrupted node was promised is no
// room for the next. There is none before somebody asks.
//
// It is a forecast: other pods may come first, and a node with room may go. So the node that was
// promised room asks again, which costs one read of the pods that have no node. If a pod that
// was promised room is among those, the promise is withdrawn, and a replacement can be made.
package room

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
	"spot-handler/handler/provisioner"
)

const (
	// freshFor is how long a snapshot counts. A burst's nodes are asked about within seconds.
	freshFor = 2 * time.Second

	// waitingFor is how long the list of pods without a node counts.
	waitingFor = time.Second

	// readTimeout bounds a read. Until it ends the pods that can wait do, and the others leave.
	readTimeout = 10 * time.Second

	// failedFor is how long a read that failed is not repeated: where one hangs the next would.
	failedFor = 10 * time.Second
)

// Pods is the subset of the Pods API, of all namespaces, that is read.
type Pods interface {
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.PodList, error)
}

// Nodes is the subset of the Nodes API that is read.
type Nodes interface {
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.NodeList, error)
}

// Options configure a Room. All but Notify are required.
type Options struct {
	Pods  Pods
	Nodes Nodes
	// Node is a Node as last seen, if it is known: it may be in danger since the snapshot.
	Node func(name string) (*corev1.Node, bool)
	// Notify is called with each node that was not answered, when it can be. It must not block.
	// If it is nil, Fit waits instead.
	Notify func(node string)
}

// Room promises room. Its methods are safe for concurrent use.
type Room struct {
	opts Options

	mu       sync.Mutex
	snapshot *snapshot // nil if there is none that counts
	taking   reading
	checking reading
	promises map[string]*promise
}

// reading is a read of the cluster that goes on in the background, one at a time: a caller that asks
// meanwhile must not wait, as evictions would.
type reading struct {
	goesOn chan struct{} // closed at its end; nil if none goes on
	ended  time.Time     // the last one
	err    error         // of the last one
	asked  []string      // nodes that wait for the end
}

// promise is the room that a node's pods were promised.
type promise struct {
	places    map[types.UID]place // by pod
	owners    map[types.UID]bool  // whose pods these are: their replacement pods have the same
	withdrawn string              // why; "" while it stands
}

// New returns a Room. It makes no call.
func New(o Options) *Room { return &Room{opts: o, promises: map[string]*promise{}} }

// Fit says whether there is room elsewhere for all these pods of a node. If that is not known yet, the node
// is notified when it is. A node that was promised room has it until one of its pods is found without a
// place; then it has none until Forget.
func (r *Room) Fit(ctx context.Context, node *corev1.Node, pods []*corev1.Pod) (provisioner.Fit, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.promises[node.Name]; p != nil {
		if p.withdrawn == "" {
			if err := r.check(ctx); err != nil {
				return provisioner.Fit{}, err
			}
		}
		return provisioner.Fit{Known: true, Against: p.withdrawn}, nil
	}
	for _, pod := range pods {
		if why := intricate(pod); why != "" {
			return provisioner.Fit{Known: true, Against: pod.Namespace + "/" + pod.Name + " " + why}, nil
		}
	}
	if r.snapshot == nil && (r.taking.err == nil || time.Since(r.taking.ended) >= failedFor) {
		r.takeSnapshot(ctx)
	}
	switch {
	case r.snapshot != nil:
	case r.taking.goesOn != nil:
		r.taking.asked = append(r.taking.asked, node.Name)
		return provisioner.Fit{}, nil
	default:
		return provisioner.Fit{}, r.taking.err
	}
	return provisioner.Fit{Known: true, Against: r.place(node, pods)}, nil
}

// place promises room to the pods of a node, or says which of them has none. The caller holds the lock.
func (r *Room) place(node *corev1.Node, pods []*corev1.Pod) (against string) {
	places, unplaced := r.snapshot.placeAll(node, pods, func(name string) bool { // marked since
		now, ok := r.opts.Node(name)
		return ok && unavailable(now)
	})
	if unplaced != "" {
		return "no room for " + unplaced
	}
	p := &promise{places: places, owners: map[types.UID]bool{}}
	for _, pod := range pods {
		if owner := metav1.GetControllerOf(pod); owner != nil {
			p.owners[owner.UID] = true
		}
	}
	r.promises[node.Name] = p
	return ""
}

// Forget drops what a node was promised.
func (r *Room) Forget(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.promises, node)
}

// read reads in the background, unless that goes on already. list is called without the lock, and
// returns what is to be done with what it has found. Without Notify read waits for the end. The
// caller holds the lock.
func (r *Room) read(ctx context.Context, what *reading, list func(context.Context) (keep func(), err error)) {
	if what.goesOn == nil {
		end := make(chan struct{})
		what.goesOn = end
		if r.opts.Notify != nil {
			ctx = context.WithoutCancel(ctx)
		}
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		go func() {
			defer cancel()
			keep, err := list(ctx)
			r.mu.Lock()
			defer r.mu.Unlock()
			if err == nil {
				keep()
			}
			for _, node := range what.asked {
				r.opts.Notify(node)
			}
			what.goesOn, what.ended, what.err, what.asked = nil, time.Now(), err, nil
			close(end)
		}()
	}
	if r.opts.Notify == nil {
		end := what.goesOn
		r.mu.Unlock()
		<-end
		r.mu.Lock()
	}
}

// check has the promises withdrawn that were not kept. The error is that of the last attempt:
// then nobody can tell.
func (r *Room) check(ctx context.Context) error {
	if time.Since(r.checking.ended) > waitingFor {
		r.read(ctx, &r.checking, func(ctx context.Context) (func(), error) {
			unplaced := map[types.UID]string{} // by owner
			err := r.opts.eachPod(ctx, "spec.nodeName=", func(pod *corev1.Pod) {
				if owner := metav1.GetControllerOf(pod); owner != nil && plan.Unschedulable(pod) {
					unplaced[owner.UID] = pod.Namespace + "/" + pod.Name
				}
			})
			if err != nil {
				return nil, fmt.Errorf("list pods without a node: %w", err)
			}
			return func() { r.withdraw(unplaced) }, nil
		})
	}
	return r.checking.err
}

// withdraw withdraws the promises to owners of whose pods one finds no place.
func (r *Room) withdraw(unplaced map[types.UID]string) {
	for node, p := range r.promises {
		for owner := range p.owners {
			if pod := unplaced[owner]; pod != "" && p.withdrawn == "" {
				p.withdrawn = "the room has gone: " + pod + " finds no place"
				if r.opts.Notify != nil {
					r.opts.Notify(node)
				}
			}
		}
	}
}

// takeSnapshot reads a new snapshot, and subtracts what was promised to pods that are still where
// they were. It is dropped as soon as it no longer counts: of 5,000 nodes it is some megabytes.
func (r *Room) takeSnapshot(ctx context.Context) {
	r.read(ctx, &r.taking, func(ctx context.Context) (func(), error) {
		l, err := read(ctx, r.opts, r.promised())
		return func() {
			r.snapshot = l
			time.AfterFunc(freshFor, func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				if r.snapshot == l {
					r.snapshot = nil
				}
			})
		}, err
	})
}

// promised is where room stands promised to pods.
func (r *Room) promised() map[types.UID]place {
	r.mu.Lock()
	defer r.mu.Unlock()
	promised := map[types.UID]place{}
	for name, p := range r.promises {
		if node, ok := r.opts.Node(name); !ok || !unavailable(node) { // gone, or cancelled
			delete(r.promises, name)
			continue
		}
		if p.withdrawn == "" {
			maps.Copy(promised, p.places)
		}
	}
	return promised
}
