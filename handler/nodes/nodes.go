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
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/rewatch"
	"spot-handler/handler/interruption"
)

// Client is the subset of the Nodes API that the index reads.
type Client interface {
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.NodeList, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

// Index finds Nodes by name and by instance.
type Index struct {
	store      cache.Indexer
	controller cache.Controller

	mu       sync.RWMutex
	onChange func(name string)
	onAppear func(instance string)
	onGone   func(instance string)
}

const (
	byInstance = "instance"
	byAddress  = "address"
)

// New returns an index of all Nodes, or only of the named one if only is not empty: a DaemonSet
// pod has no business with the others.
func New(client Client, only string, logger zerolog.Logger) *Index {
	x := &Index{}
	narrow := func(o metav1.ListOptions) metav1.ListOptions {
		if only != "" {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", only).String()
		}
		return o
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return List(ctx, client, narrow(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, narrow(o))
		},
	}
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(rewatch.Soon(lw, logger), client),
		ObjectType:    &corev1.Node{},
		Transform:     transform,
		Indexers:      cache.Indexers{byInstance: instanceKeys, byAddress: addressKeys},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(obj any) {
				x.appeared(obj, nil)
				x.changed(obj, nil)
			},
			UpdateFunc: func(old, obj any) {
				x.appeared(obj, old)
				x.changed(obj, old)
			},
			DeleteFunc: func(obj any) {
				if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
					obj = last.Obj
				}
				x.gone(obj)
				x.changed(obj, nil)
			},
		},
	})
	x.store, x.controller = store.(cache.Indexer), controller
	return x
}

// OnChange sets the function that receives the name of every Node with a record, or with what is
// left of one, that appeared, changed or went, and of every Node that lost its record. It runs on the watch's goroutine, so
// it must not block. It does not hear of changes from before it was set; WithRecord has them.
func (x *Index) OnChange(f func(name string)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.onChange = f
}

// OnAppear sets the function that receives every instance that has become a Node: Find knows it
// by then. It runs on the watch's goroutine, so it must not block.
func (x *Index) OnAppear(f func(instance string)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.onAppear = f
}

// OnGone sets the function that receives every instance that is no Node any more. It runs on the
// watch's goroutine, so it must not block.
func (x *Index) OnGone(f func(instance string)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.onGone = f
}

// Run watches until ctx ends.
func (x *Index) Run(ctx context.Context) error {
	x.controller.RunWithContext(ctx)
	return nil
}

// Wait returns when the index knows all Nodes, or with ctx's error.
func (x *Index) Wait(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), x.controller.HasSynced) {
		return fmt.Errorf("read nodes: %w", context.Cause(ctx))
	}
	return nil
}

// Synced reports whether the index knows all Nodes.
func (x *Index) Synced() bool { return x.controller.HasSynced() }

// Get returns the Node of that name.
func (x *Index) Get(name string) (*corev1.Node, bool) {
	obj, ok, err := x.store.GetByKey(name)
	if err != nil || !ok {
		return nil, false
	}
	node, ok := obj.(*corev1.Node)
	return node, ok
}

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
	found, err := x.store.ByIndex(byInstance, n.InstanceID)
	if err != nil {
		return nil, false
	}
	node := holder(found)
	return node, node != nil
}

// HasAddress reports whether that is the address of a Node.
func (x *Index) HasAddress(addr netip.Addr) bool {
	found, err := x.store.IndexKeys(byAddress, addr.String())
	return err == nil && len(found) > 0
}

// WithRecord returns the names of all Nodes that carry a record, or what is left of one.
func (x *Index) WithRecord() []string {
	var names []string
	for _, obj := range x.store.List() {
		if node, ok := obj.(*corev1.Node); ok && concerned(node) {
			names = append(names, node.Name)
		}
	}
	return names
}

// Joined returns the Nodes without a record that were created at or after since, but none that says
// that it is another's instance. It looks at every Node.
func (x *Index) Joined(since time.Time) []*corev1.Node {
	var joined []*corev1.Node
	for _, obj := range x.store.List() {
		if node, ok := obj.(*corev1.Node); ok && !hasRecord(node) && !node.CreationTimestamp.Time.Before(since) && x.Holds(node) == nil {
			joined = append(joined, node)
		}
	}
	return joined
}

// InstanceID is the EC2 instance of a Node: the last path segment of its provider ID
// (aws:///eu-west-1a/i-0123456789abcdef0) if that names one, because nobody can change it.
// Otherwise it comes from the label, which the node's own kubelet can write, or else it is that
// last segment.
func InstanceID(node *corev1.Node) string {
	segment := lastSegment(node)
	if IsInstanceID(segment) {
		return segment
	}
	return cmp.Or(node.Labels[interruption.InstanceIDLabel], segment)
}

func lastSegment(node *corev1.Node) string {
	return node.Spec.ProviderID[strings.LastIndexByte(node.Spec.ProviderID, '/')+1:]
}

var instanceID = regexp.MustCompile(`^i-[0-9a-f]{8,17}$`)

// IsInstanceID reports whether the text is the id of an EC2 instance.
func IsInstanceID(text string) bool { return instanceID.MatchString(text) }

// ReadySince is when the Node became Ready, if it is; also zero if that time is not known.
func ReadySince(node *corev1.Node) (since time.Time, ready bool) {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time, true
		}
	}
	return time.Time{}, false
}

func instanceKeys(obj any) ([]string, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil, nil
	}
	if id := InstanceID(node); id != "" {
		return []string{id}, nil
	}
	return nil, nil
}

func addressKeys(obj any) (keys []string, _ error) {
	if node, ok := obj.(*corev1.Node); ok {
		for _, a := range node.Status.Addresses {
			keys = append(keys, a.Address)
		}
	}
	return keys, nil
}

// addresses are the Node's IP addresses, of each type and family the first. The cloud's controller
// can list an instance's others too, which pods have.
func addresses(node *corev1.Node) (kept []corev1.NodeAddress) {
	for _, a := range node.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if err != nil || slices.ContainsFunc(kept, func(k corev1.NodeAddress) bool {
			return k.Type == a.Type && strings.Contains(k.Address, ":") == ip.Is6()
		}) {
			continue
		}
		kept = append(kept, corev1.NodeAddress{Type: a.Type, Address: ip.String()})
	}
	return kept
}

// appeared tells of a Node that is new, or says only now which instance it is.
func (x *Index) appeared(obj, old any) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return
	}
	if before, ok := old.(*corev1.Node); ok && before.Spec.ProviderID == node.Spec.ProviderID &&
		before.Labels[interruption.InstanceIDLabel] == node.Labels[interruption.InstanceIDLabel] {
		return
	}
	x.mu.RLock()
	f := x.onAppear
	x.mu.RUnlock()
	if id := InstanceID(node); f != nil && id != "" {
		f(id)
	}
}

// gone tells of a Node that has been deleted, unless another Node is its instance.
func (x *Index) gone(obj any) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return
	}
	x.mu.RLock()
	f := x.onGone
	x.mu.RUnlock()
	id := InstanceID(node)
	if _, other := x.Find(interruption.Notice{InstanceID: id}); f != nil && id != "" && !other {
		f(id)
	}
}

func (x *Index) changed(obj, old any) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return
	}
	before, _ := old.(*corev1.Node)
	if !concerned(node) && (before == nil || !concerned(before)) {
		return
	}
	x.mu.RLock()
	f := x.onChange
	x.mu.RUnlock()
	if f != nil {
		f(node.Name)
	}
}

func hasRecord(node *corev1.Node) bool {
	_, ok := node.Annotations[interruption.Annotation]
	return ok
}

// concerned reports whether the Node has a record, or still shows the condition of one.
func concerned(node *corev1.Node) bool {
	return hasRecord(node) || slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == interruption.ConditionType })
}

// lean drops what nobody here reads. It keeps only our own annotations, the condition Ready and ours.
// It keeps the labels, which identify pools and zones, and the boot id, which identifies a
// reboot.
func lean(node *corev1.Node) *corev1.Node {
	slim := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:              node.Name,
			UID:               node.UID,
			ResourceVersion:   node.ResourceVersion,
			CreationTimestamp: node.CreationTimestamp,
			DeletionTimestamp: node.DeletionTimestamp,
			Labels:            node.Labels,
			OwnerReferences:   node.OwnerReferences,
		},
		Spec: corev1.NodeSpec{
			ProviderID:    node.Spec.ProviderID,
			Unschedulable: node.Spec.Unschedulable,
			Taints:        node.Spec.Taints,
		},
	}
	slim.Status.NodeInfo.BootID = node.Status.NodeInfo.BootID
	slim.Status.Addresses = addresses(node)
	for key, value := range node.Annotations {
		if strings.HasPrefix(key, "spot-handler/") {
			if slim.Annotations == nil {
				slim.Annotations = map[string]string{}
			}
			slim.Annotations[key] = value
		}
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			slim.Status.Conditions = append(slim.Status.Conditions, corev1.NodeCondition{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime})
		}
		if c.Type == interruption.ConditionType {
			slim.Status.Conditions = append(slim.Status.Conditions, corev1.NodeCondition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message})
		}
	}
	return slim
}

func transform(obj any) (any, error) {
	if node, ok := obj.(*corev1.Node); ok {
		return lean(node), nil
	}
	return obj, nil
}
