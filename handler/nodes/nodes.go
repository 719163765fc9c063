// Package nodes knows which Node an EC2 instance is.
//
// An Index watches Nodes and answers from memory, so getting from a notice to its Node costs no
// request. It keeps only what the handler reads of each Node: at 5,000 Nodes that decides how
// much memory the daemon needs.
//
// An Index is safe for concurrent use. The Nodes that it returns are shared and must not be
// changed; they lack the fields that lean drops.
package nodes

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/rewatch"
	"spot-handler/handler/interruption"
)

// Client is the subset of the Nodes API that the index reads.
type Client = rewatch.Client[*corev1.NodeList]

// Index finds Nodes by name and by instance.
type Index struct {
	nodes *rewatch.Watch[*corev1.Node]

	onChange, onAppear, onGone listener
}

const (
	byInstance = "instance"
	byAddress  = "address"
)

// New returns an index of all Nodes, or only of the named one if only is not empty: a DaemonSet
// pod has no business with the others.
func New(client Client, only string, logger zerolog.Logger) *Index {
	x := &Index{}
	list := rewatch.Of(paged{client}, func(o *metav1.ListOptions) {
		if only != "" {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", only).String()
		}
	})
	x.nodes = rewatch.New(rewatch.Options[*corev1.Node, *corev1.Node]{
		Source:  cache.ToListWatcherWithWatchListSemantics(list, client),
		Keep:    lean,
		Indexes: map[string]func(*corev1.Node) []string{byInstance: instanceKeys, byAddress: addressKeys},
		Changed: x.changed,
		Logger:  logger,
	})
	return x
}

// OnChange sets the function that receives the name of every Node with a record, or with what is
// left of one, that appeared, changed or went, and of every Node that lost its record. It runs on
// the watch's goroutine, so it must not block. It is not notified of changes from before it was set;
// WithRecord has them.
func (x *Index) OnChange(f func(name string)) { x.onChange.Store(&f) }

// OnAppear sets the function that receives every instance that has become a Node: Find knows it
// by then. It runs on the watch's goroutine, so it must not block.
func (x *Index) OnAppear(f func(instance string)) { x.onAppear.Store(&f) }

// OnGone sets the function that receives every instance that is no Node any more. It runs on the
// watch's goroutine, so it must not block.
func (x *Index) OnGone(f func(instance string)) { x.onGone.Store(&f) }

// listener is a function that is notified of a name or an instance once it is set.
type listener struct{ atomic.Pointer[func(string)] }

func (l *listener) notify(of string) {
	if f := l.Load(); f != nil {
		(*f)(of)
	}
}

// Run watches until ctx ends.
func (x *Index) Run(ctx context.Context) error {
	x.nodes.Run(ctx)
	return nil
}

// Wait returns when the index knows all Nodes, or with ctx's error.
func (x *Index) Wait(ctx context.Context) error {
	select {
	case <-x.nodes.Known():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("read nodes: %w", context.Cause(ctx))
	}
}

// Synced reports whether the index knows all Nodes.
func (x *Index) Synced() bool { return x.nodes.HasSynced() }

// Get returns the Node of that name.
func (x *Index) Get(name string) (*corev1.Node, bool) { return x.nodes.Get(name) }

// All returns all Nodes, in no order.
func (x *Index) All() []*corev1.Node { return x.nodes.All() }

// Finder knows which Node a notice is about, as an Index does.
type Finder interface {
	Find(n interruption.Notice) (*corev1.Node, bool)
}

// Find returns the Node that a notice is about: the one it names, else the one that is its
// instance.
func (x *Index) Find(n interruption.Notice) (*corev1.Node, bool) {
	if n.NodeName != "" {
		return x.Get(n.NodeName)
	}
	node := holder(x.nodes.By(byInstance, n.InstanceID))
	return node, node != nil
}

// HasAddress reports whether that is the address of a Node.
func (x *Index) HasAddress(addr netip.Addr) bool {
	return len(x.nodes.By(byAddress, addr.String())) > 0
}

// WithRecord returns the names of all Nodes that carry a record, or what is left of one.
func (x *Index) WithRecord() []string {
	var names []string
	for _, node := range x.nodes.All() {
		if concerned(node) {
			names = append(names, node.Name)
		}
	}
	return names
}

// PoolSize is how many Nodes the pool has. It looks at every Node.
func (x *Index) PoolSize(of Pool) int {
	n := 0
	for _, node := range x.nodes.All() {
		if PoolOf(node) == of {
			n++
		}
	}
	return n
}

// Joined returns the Nodes without a record that were created at or after since, but none that says
// that it is another's instance. It looks at every Node.
func (x *Index) Joined(since time.Time) []*corev1.Node {
	return slices.DeleteFunc(x.nodes.All(), func(node *corev1.Node) bool {
		return hasRecord(node) || node.CreationTimestamp.Time.Before(since) || x.Holds(node) != nil
	})
}

// Reserved returns the instances of the Nodes that are labelled as running in that capacity reservation,
// but none of a Node that says that it is another's instance. A kubelet can write these labels on its own
// Node, which ends no other. It looks at every Node.
func (x *Index) Reserved(reservation string) []string {
	var instances []string
	for _, node := range x.nodes.All() {
		if node.Labels[karpenterReservation] != reservation && node.Labels[interruption.ReservationLabel] != reservation {
			continue
		}
		if id := InstanceID(node); IsInstanceID(id) && x.Holds(node) == nil {
			instances = append(instances, id)
		}
	}
	slices.Sort(instances)
	return slices.Compact(instances)
}

// karpenterReservation is Karpenter's label for the capacity reservation of a Node's instance.
// https://github.com/aws/karpenter-provider-aws/blob/main/pkg/apis/v1/labels.go
const karpenterReservation = "karpenter.k8s.aws/capacity-reservation-id"

func instanceKeys(node *corev1.Node) []string {
	if id := InstanceID(node); id != "" {
		return []string{id}
	}
	return nil
}

func addressKeys(node *corev1.Node) (keys []string) {
	for _, a := range node.Status.Addresses {
		keys = append(keys, a.Address)
	}
	return keys
}

// changed notifies of a Node that is new, or whose instance was not known before, of one whose
// interruption might have moved on, and of one that has been deleted, unless another Node is its
// instance.
func (x *Index) changed(before, after *corev1.Node) {
	node := cmp.Or(after, before)
	id := InstanceID(node)
	switch {
	case id == "":
	case after == nil:
		if _, other := x.Find(interruption.Notice{InstanceID: id}); !other {
			x.onGone.notify(id)
		}
	case before == nil || InstanceID(before) != id:
		x.onAppear.notify(id)
	}
	if concerned(node) || before != nil && concerned(before) {
		x.onChange.notify(node.Name)
	}
}

// pageSize bounds how many whole Nodes are in memory at a time. Each is 10 to 20 KiB, most of
// it images and managed fields.
const pageSize = 100

// List reads all Nodes page by page, and keeps of each page only what lean leaves. It serves
// a command that looks once, and an Index where the API server does not stream the Nodes at the start
// of a watch, as up to Kubernetes 1.31 and in 1.33 (the feature gate WatchList): in one answer
// 5,000 Nodes are 100 MB. It does not pass on the caller's resource version: the API server
// never pages what it answers from its cache, and what we read instead is never older.
func List(ctx context.Context, client Client, o metav1.ListOptions) (*corev1.NodeList, error) {
	o.Limit, o.ResourceVersion, o.ResourceVersionMatch = pageSize, "", ""
	all := &corev1.NodeList{}
	err := rewatch.Pages(ctx, client.List, o, func(page *corev1.NodeList) {
		for i := range page.Items {
			all.Items = append(all.Items, *lean(&page.Items[i]))
		}
		all.ListMeta = metav1.ListMeta{ResourceVersion: page.ResourceVersion}
	})
	return all, err
}

// paged is a client whose List is ours.
type paged struct{ Client }

func (p paged) List(ctx context.Context, o metav1.ListOptions) (*corev1.NodeList, error) {
	return List(ctx, p.Client, o)
}

// Holds returns an error if another Node is the instance that this one says it is: then nothing
// that this one says must be done to the instance.
func (x *Index) Holds(node *corev1.Node) error {
	id := InstanceID(node)
	if !IsInstanceID(id) {
		return nil
	}
	if other := holder(x.nodes.By(byInstance, id)); other != nil && other.Name != node.Name {
		return fmt.Errorf("instance %s is node %s", id, other.Name)
	}
	return nil
}
