// Package placeholder has an autoscaler make the room that displaced pods need: it
// asks with pods that request as much, do nothing and have the lowest priority.
//
//	node interrupted      a pod leaves its node      drain over
//	       │                      │                      │
//	       ▼                      ▼                      ▼
//	  PodTemplate ──owns──► its placeholder is       PodTemplate deleted,
//	  owned by the Node     deleted: the room is     and with it what is left
//	                        its replacement pod's
//
// It works with Cluster Autoscaler and with whatever else makes nodes for pending pods,
// without talking to it. Each pod that must leave, and whose replacement pod is not made before
// it leaves, has one placeholder: with its requests, as the scheduler counts them, with its
// node selector, required node affinity and tolerations, and with a required affinity to
// the fallback nodes on top. Where the placeholder fits, the replacement pod fits. Pods without a
// replacement pod have no placeholder.
//
// # Who has the room
//
// A placeholder goes when its pod's replacement pod comes: when the pod begins to terminate, if a
// ReplicaSet makes the replacement pod at that moment, else when the pod is gone. So at any time
// either the placeholder or the replacement pod asks for the room, and an autoscaler counts it
// once. Between the two, only a pod that could have preempted the placeholder anyway can
// take the room, or one of even lower priority, which the replacement pod preempts. If the
// replacement pod comes first, the scheduler preempts a placeholder for it; placeholders have no
// grace period, so it does not have to wait. An autoscaler does not remove an emptied node
// within minutes.
//
// A placeholder that is gone is never made again, whatever became of it. Its name follows
// from instance and pod, so there are never more than were asked for at the start, even
// after redelivery, a restart or a change of the leader. (The exception is one that was lost
// in the seconds between the end of a process that had not yet recorded what it had made,
// and the start of the next.) In a burst, a replacement pod might preempt the placeholder of
// another node's pod while its own is being removed. Together they still ask for the same
// room; making the lost one again would ask for more while the other one lasts.
//
// # Never left behind
//
// The placeholders of a node belong to a PodTemplate, which belongs to the Node: the garbage
// collector removes them together with the Node, whatever has become of us. (They do not
// belong to the Node itself, as Karpenter would take them for static pods.) They end by
// themselves at the deadline, or after [patience] if there is none. A running Backend
// removes those whose node is gone or no longer interrupted, including those that an
// earlier process made. A process also remembers which Nodes had a PodTemplate: no
// placeholder may be left that shows it.
package placeholder

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apicache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/watch"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/readcache"
)

// Pods is the subset of the Pods API that placeholders are made with, in their
// namespace.
type Pods interface {
	Create(ctx context.Context, pod *corev1.Pod, opts metav1.CreateOptions) (*corev1.Pod, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.PodList, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

// Templates is the subset of the PodTemplates API that their owners are made with, in
// the same namespace.
type Templates interface {
	Create(ctx context.Context, template *corev1.PodTemplate, opts metav1.CreateOptions) (*corev1.PodTemplate, error)
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.PodTemplate, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// Options configure a Backend.
type Options struct {
	// Selector selects the fallback nodes. The zero value switches the backend off: then it
	// only makes calls to remove what the record says is ours.
	Selector Selector

	// Image is what the placeholders run. It need not be pullable: a pod holds room as soon
	// as it is bound to a node.
	Image string

	// SingleNode is the only Node that Request is called for, if there is only one. Then only
	// its placeholders are watched, and other Nodes are not known.
	SingleNode string

	// Node finds a Node in memory, by its name.
	Node func(name string) (*corev1.Node, bool)

	Pods      Pods
	Templates Templates

	// Notify is called with the name of an interrupted node when its placeholders have
	// changed. It is called from any goroutine and must not block.
	Notify func(node string)

	Logger zerolog.Logger
}

// Backend makes replacements by placeholder pods. Its methods are safe for concurrent
// use.
type Backend struct {
	opts     Options
	cache    *store
	log      zerolog.Logger
	said     provisioner.Once
	requests *semaphore.Weighted // of atOnce
	making   *semaphore.Weighted // of nodesAtOnce

	wake  sync.Once
	awake chan struct{} // closed when there is something to watch

	owners   *apicache.LRUExpireCache // Node names, by instance as in labels, that may have a PodTemplate of ours
	emptied  *apicache.LRUExpireCache // names of PodTemplates that were removed as they had no placeholder left
	refusals readcache.Cache[string]  // why the API server refused placeholders, under the key ""; put there, not read
}

var _ provisioner.Backend = (*Backend)(nil)

// New returns a Backend. It makes no call and starts nothing.
func New(opts Options) *Backend {
	b := &Backend{
		opts:  opts,
		log:   opts.Logger.With().Str("component", "provisioner").Str("backend", provisioner.Placeholder).Logger(),
		awake: make(chan struct{}),

		requests: semaphore.NewWeighted(atOnce),
		making:   semaphore.NewWeighted(nodesAtOnce),
		owners:   apicache.NewLRUExpireCache(maxTaken),
		emptied:  apicache.NewLRUExpireCache(maxTaken),
	}
	b.refusals.Lifetime = func(error) time.Duration { return recheck }
	b.cache = newStore(opts.Pods, selectorOf(opts.SingleNode), opts.Notify, b.log)
	return b
}

// Name implements provisioner.Backend.
func (b *Backend) Name() string { return provisioner.Placeholder }

// Made reports false: placeholders suit any node, and no node comes from them.
func (b *Backend) Made(*corev1.Node) bool { return false }

// Request makes the placeholders of the node's pods, or says how far they have come:
// Requested until the scheduler has found a place for one, Launched until all have, or have
// had, a place on a Ready Node. While the placeholders of many nodes are being made it
// answers Requested without a Name, and notifies when to call it again. It also removes
// placeholders when their pods' replacement pods come: call it whenever a pod of the node changes,
// even when the replacement is Ready.
func (b *Backend) Request(
	ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need,
) (interruption.Replacement, error) {
	if prev := provisioner.Asked(rec, provisioner.Placeholder); prev != nil {
		return b.follow(ctx, node, rec, need, *prev)
	}
	o, r := b.choose(node, rec, need)
	if o == nil {
		return r, nil
	}
	if !b.making.TryAcquire(1) {
		b.notifySoon(node.Name)
		r.Name = "" // nothing has been asked for yet
		return r, nil
	}
	defer b.making.Release(1)
	return b.makeAll(ctx, *o, r)
}

// Terminate removes the node's remaining placeholders. It does not touch the node itself.
func (b *Backend) Terminate(ctx context.Context, _ *corev1.Node, rec interruption.Record) error {
	if prev := provisioner.Asked(rec, provisioner.Placeholder); prev != nil {
		return b.removeAll(ctx, prev.Name)
	}
	return nil
}

func unsupported(reason string) interruption.Replacement {
	return provisioner.Unsupported(provisioner.Placeholder, reason)
}

const (
	// patience is how long placeholders wait for room if no deadline ends that sooner. Cluster
	// Autoscaler gives up on a node after the same time (--max-node-provision-time).
	patience = 15 * time.Minute

	// leastTime is the least time in which placeholders are of use: no autoscaler makes a node
	// in less, and pods leave at once.
	leastTime = 10 * time.Second
)

// order is what is made for one node.
type order struct {
	node     *corev1.Node
	instance string
	expires  time.Time
	pods     []*corev1.Pod // those that get a placeholder
	terms    map[types.UID][]corev1.NodeSelectorTerm
}

// choose decides what to make, or says why nothing is made.
func (b *Backend) choose(node *corev1.Node, rec interruption.Record, need provisioner.Need) (*order, interruption.Replacement) {
	now := time.Now()
	expires := interruption.Earlier(rec.Deadline, now.Add(patience))
	switch {
	case b.opts.Selector.Empty():
		return nil, unsupported("--fallback-selector is not set")
	case rec.Instance == "":
		return nil, unsupported("the record names no instance")
	case expires.Sub(now) < leastTime:
		return nil, unsupported("there is no time to make room")
	}
	if last, fresh := b.refusals.Last(""); fresh {
		return nil, unsupported(last.Value)
	}
	o := &order{node: node, instance: rec.Instance, expires: expires, terms: map[types.UID][]corev1.NodeSelectorTerm{}}
	var against []string
	for _, pod := range need.Moving {
		terms, reason := b.homes(node, pod, need)
		if reason == "" {
			o.pods = append(o.pods, pod)
			o.terms[pod.UID] = terms
		} else if !slices.Contains(against, reason) {
			against = append(against, reason)
		}
	}
	if len(o.pods) == 0 {
		slices.Sort(against)
		return nil, unsupported(strings.Join(append([]string{"no pod needs a placeholder"}, against...), "; "))
	}
	return o, interruption.Replacement{
		Backend: provisioner.Placeholder, Name: nameOf(rec.Instance), Pool: b.opts.Selector.String(), State: provisioner.StateRequested,
	}
}

// homes are the terms of node affinity that the pod's placeholder needs one of, or the
// reason why it has no placeholder.
func (b *Backend) homes(node *corev1.Node, pod *corev1.Pod, need provisioner.Need) ([]corev1.NodeSelectorTerm, string) {
	switch {
	case pod.Labels[Label] != "":
		return nil, "placeholders of other nodes are not replaced"
	case need.Surged[pod.UID]:
		return nil, "surged pods' replacement pods ask for themselves"
	case pod.DeletionTimestamp != nil:
		return nil, "replacement pods of pods that are leaving ask for themselves"
	case metav1.GetControllerOf(pod) == nil:
		return nil, "pods without a controller have no replacement pod"
	}
	terms := b.opts.Selector.terms(pod, zoneOf(node, pod))
	if len(terms) == 0 {
		return nil, "pods that cannot run on nodes of --fallback-selector find no room there"
	}
	return terms, ""
}
