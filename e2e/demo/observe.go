package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"spot-handler/e2e/controlplane"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner/karpenter"
)

// observer keeps the state up to date from watches. It takes every event singly and in
// order, so it does not miss even a moment with too few ready pods.
type observer struct {
	mu    sync.Mutex
	s     state
	pods  map[types.UID]*corev1.Pod
	nodes map[string]*corev1.Node
	// doomed are the pods that were on the node at the notice and are still there.
	doomed map[types.UID]bool
	// Provider ids join a Node and its NodeClaim, which come from two watches, in either
	// order: the interrupted node's and, once it is known, the replacement's.
	interrupted, replacement string
}

func newObserver(mode string, node *corev1.Node) *observer {
	return &observer{
		s:           state{mode: mode, node: node.Name, shortestGrace: -1},
		interrupted: node.Spec.ProviderID,
		pods:        map[types.UID]*corev1.Pod{}, nodes: map[string]*corev1.Node{}, doomed: map[types.UID]bool{},
	}
}

// watch follows the service's pods, all nodes and all NodeClaims, and returns when it
// knows what there is of them. The caller ends it with the returned function.
func (o *observer) watch(ctx context.Context, client kubernetes.Interface, dynamicClient dynamic.Interface) (unwatch func(), err error) {
	typed := informers.NewSharedInformerFactoryWithOptions(client, 0)
	pods := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(corev1.NamespaceDefault),
		informers.WithTweakListOptions(func(l *metav1.ListOptions) { l.LabelSelector = controlplane.Selector(service) }))
	claims := dynamicinformer.NewDynamicSharedInformerFactory(dynamicClient, 0)

	var handlers []cache.ResourceEventHandlerRegistration
	for _, w := range []struct {
		informer cache.SharedIndexInformer
		changed  func(object any, gone bool)
	}{
		{pods.Core().V1().Pods().Informer(), func(object any, gone bool) { o.pod(time.Now(), object.(*corev1.Pod), gone) }},
		{typed.Core().V1().Nodes().Informer(), func(object any, gone bool) { o.node(time.Now(), object.(*corev1.Node), gone) }},
		{claims.ForResource(controlplane.NodeClaims).Informer(), func(object any, gone bool) {
			o.claim(time.Now(), object.(*unstructured.Unstructured), gone)
		}},
	} {
		h, err := w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { w.changed(object, false) },
			UpdateFunc: func(_, object any) { w.changed(object, false) },
			DeleteFunc: func(object any) {
				if lost, ok := object.(cache.DeletedFinalStateUnknown); ok {
					object = lost.Obj
				}
				w.changed(object, true)
			},
		})
		if err != nil {
			return nil, fmt.Errorf("watch: %w", err)
		}
		handlers = append(handlers, h)
	}

	watching, cancel := context.WithCancel(ctx)
	for _, factory := range []interface{ Start(<-chan struct{}) }{pods, typed, claims} {
		factory.Start(watching.Done())
	}
	unwatch = func() {
		cancel()
		pods.Shutdown()
		typed.Shutdown()
		claims.Shutdown()
	}
	for _, h := range handlers {
		if !cache.WaitForCacheSync(watching.Done(), h.HasSynced) {
			unwatch()
			return nil, fmt.Errorf("watch: %w", context.Cause(ctx))
		}
	}
	return unwatch, nil
}

// noticed is called just before the emulator gets the notice: all times count from it,
// and the pods on the node are those that have to leave.
func (o *observer) noticed(at, deadline time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.s.notice, o.s.deadline = at, deadline
	for uid, pod := range o.pods {
		if pod.Spec.NodeName == o.s.node {
			o.doomed[uid] = true
		}
	}
	o.s.moving = len(o.doomed)
	o.s.fewest = o.readyPods()
}

func (o *observer) pod(at time.Time, pod *corev1.Pod, gone bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.doomed[pod.UID] {
		o.graceOf(pod, gone)
	}
	if gone {
		delete(o.pods, pod.UID)
		delete(o.doomed, pod.UID)
		if o.s.moving > 0 && len(o.doomed) == 0 {
			first(&o.s.drained, at)
		}
	} else {
		o.pods[pod.UID] = pod
	}
	if !o.s.notice.IsZero() {
		o.s.fewest = min(o.s.fewest, o.readyPods())
	}
}

// graceOf notes the grace period that a pod of the node was given. Once its processes
// have ended, the kubelet deletes a pod with a grace period of zero, which does not show
// what it had; a pod deleted like that from the start had none.
func (o *observer) graceOf(pod *corev1.Pod, gone bool) {
	var given time.Duration
	stopping := o.pods[pod.UID].DeletionTimestamp != nil
	if pod.DeletionGracePeriodSeconds != nil {
		given = time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
	}
	if (given > 0 && !gone) || (!stopping && (gone || pod.DeletionTimestamp != nil)) {
		if o.s.shortestGrace < 0 || given < o.s.shortestGrace {
			o.s.shortestGrace = given
		}
	}
}

func (o *observer) node(at time.Time, node *corev1.Node, gone bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if gone {
		delete(o.nodes, node.Name)
	} else {
		o.nodes[node.Name] = node
	}
	o.followReplacement(at)
	if node.Name != o.s.node {
		return
	}
	// The last event of a Node that goes may still bring news of its record.
	if rec, err := interruption.ParseRecord(node.Annotations[interruption.Annotation]); err == nil {
		o.s.phase = rec.Phase
		if rec.Phase.Over() {
			o.s.result = rec.Pods
		}
	}
	if node.Spec.Unschedulable {
		first(&o.s.cordoned, at)
	}
	if gone {
		first(&o.s.nodeGone, at)
	}
}

func (o *observer) claim(at time.Time, c *unstructured.Unstructured, gone bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	providerID, _, _ := unstructured.NestedString(c.Object, "status", "providerID")
	if providerID == o.interrupted && gone {
		first(&o.s.claimGone, at)
	}
	if c.GetLabels()[karpenter.ReplacesLabel] != controlplane.InstanceID(o.s.node) {
		return
	}
	first(&o.s.requested, at)
	o.s.replacement = claim{name: c.GetName(), state: claimState(c, gone)}
	if conditionTrue(c, "Launched") {
		first(&o.s.launched, at)
	}
	o.replacement = providerID
	o.followReplacement(at)
}

// followReplacement looks whether the replacement's Node takes pods.
func (o *observer) followReplacement(at time.Time) {
	for _, node := range o.nodes {
		if o.role(node) == roleReplacement && controlplane.NodeReady(node) {
			first(&o.s.ready, at)
		}
	}
}

// state returns a copy of what is known.
func (o *observer) state(now time.Time) state {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.s
	s.now = now
	s.readyPods = o.readyPods()
	s.remaining = len(o.doomed)
	s.log = slices.Clone(o.s.log)
	s.places, s.unscheduled = o.places()
	return s
}

// places returns all nodes that are known or carry pods of the service.
func (o *observer) places() (list []place, unscheduled int) {
	on := map[string]*place{}
	at := func(name string) *place {
		p, ok := on[name]
		if !ok {
			p = &place{node: name}
			if node := o.nodes[name]; node != nil {
				p.role, p.capacity = o.role(node), node.Labels["karpenter.sh/capacity-type"]
			}
			on[name] = p
		}
		return p
	}
	for name := range o.nodes {
		at(name)
	}
	for _, pod := range o.pods {
		switch {
		case pod.Spec.NodeName == "":
			unscheduled++
		case pod.DeletionTimestamp != nil:
			at(pod.Spec.NodeName).stopping++
		case controlplane.Ready(pod):
			at(pod.Spec.NodeName).ready++
		default:
			at(pod.Spec.NodeName).starting++
		}
	}
	for _, p := range on {
		list = append(list, *p)
	}
	order := []string{roleInterrupted, roleOther, roleReplacement}
	slices.SortFunc(list, func(a, b place) int {
		if a.role != b.role {
			return slices.Index(order, a.role) - slices.Index(order, b.role)
		}
		return strings.Compare(a.node, b.node)
	})
	return list, unscheduled
}

func (o *observer) role(node *corev1.Node) string {
	switch id := node.Spec.ProviderID; {
	case node.Name == o.s.node:
		return roleInterrupted
	case id != "" && id == o.replacement:
		return roleReplacement
	}
	return roleOther
}

func (o *observer) readyPods() int {
	n := 0
	for _, pod := range o.pods {
		if controlplane.Ready(pod) {
			n++
		}
	}
	return n
}

// States of a NodeClaim that the view distinguishes from the others.
const (
	claimLaunched    = "launched"
	claimInitialized = "initialized"
)

// claimState is how far Karpenter has come with a NodeClaim.
func claimState(c *unstructured.Unstructured, gone bool) string {
	switch {
	case gone:
		return "gone"
	case c.GetDeletionTimestamp() != nil:
		return "going"
	case conditionTrue(c, "Initialized"):
		return claimInitialized
	case conditionTrue(c, "Registered"):
		return "registered"
	case conditionTrue(c, "Launched"):
		return claimLaunched
	}
	return "requested"
}

func conditionTrue(object *unstructured.Unstructured, kind string) bool {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(entry any) bool {
		condition, ok := entry.(map[string]any)
		return ok && condition["type"] == kind && condition["status"] == "True"
	})
}

// first keeps the earliest time of what may be reported several times.
func first(mark *time.Time, at time.Time) {
	if mark.IsZero() {
		*mark = at
	}
}
