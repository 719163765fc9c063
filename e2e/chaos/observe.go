package main

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/plan"
	"spot-handler/e2e/chaos/evidence"
	"spot-handler/e2e/controlplane"
	"spot-handler/handler/provisioner/karpenter"
)

// machineSlow is a span of no fault.
const machineSlow = "machine slow"

// observer remembers which pods were on which nodes, when nodes went, and which replacements
// there were. Its methods are safe for concurrent use.
type observer struct {
	mu     sync.Mutex
	pods   map[types.UID]evidence.Pod
	nodes  map[string]time.Time // when they went
	claims map[types.UID]evidence.Claim
	spans  []evidence.Span
}

// observe watches until ctx ends. It returns when the watches are complete.
func observe(ctx context.Context, cluster *controlplane.Cluster) *observer {
	o := &observer{pods: map[types.UID]evidence.Pod{}}
	o.forget()
	typed := informers.NewSharedInformerFactory(cluster.Client, 0)
	dynamic := dynamicinformer.NewFilteredDynamicSharedInformerFactory(cluster.Dynamic, 0, metav1.NamespaceAll, func(l *metav1.ListOptions) {
		l.LabelSelector = karpenter.ReplacesLabel
	})
	follow(typed.Core().V1().Pods().Informer(), o.pod)
	follow(typed.Core().V1().Nodes().Informer(), o.node)
	follow(dynamic.ForResource(controlplane.NodeClaims).Informer(), o.claim)
	typed.Start(ctx.Done())
	dynamic.Start(ctx.Done())
	typed.WaitForCacheSync(ctx.Done())
	dynamic.WaitForCacheSync(ctx.Done())
	go o.watchMachine(ctx, cluster)
	return o
}

// follow calls see for every version of each object, and with gone for the last one.
func follow[T any](informer cache.SharedIndexInformer, see func(object T, gone bool)) {
	call := func(obj any, gone bool) {
		if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = last.Obj
		}
		if object, ok := obj.(T); ok {
			see(object, gone)
		}
	}
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{ // fails only after the informer's end
		AddFunc:    func(obj any) { call(obj, false) },
		UpdateFunc: func(_, obj any) { call(obj, false) },
		DeleteFunc: func(obj any) { call(obj, true) },
	})
}

// forget begins a round: pods that have gone are of an earlier one. The others stay known, as the
// watch does not report them again until they change.
func (o *observer) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.pods, func(_ types.UID, p evidence.Pod) bool { return !p.Gone.IsZero() })
	o.nodes, o.claims, o.spans = map[string]time.Time{}, map[types.UID]evidence.Claim{}, nil
}

func (o *observer) pod(pod *corev1.Pod, gone bool) {
	if pod.Spec.NodeName == "" {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	p, known := o.pods[pod.UID]
	if !known {
		p = evidence.Pod{UID: string(pod.UID), Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName, Bound: time.Now()}
		p.Tolerates = slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
			return t.Key == "" && t.Operator == corev1.TolerationOpExists && t.Effect == ""
		})
		p.Asks = pod.Annotations[plan.NoticeAnnotation] != ""
		if grace := pod.Spec.TerminationGracePeriodSeconds; grace != nil {
			p.Grace = time.Duration(*grace) * time.Second
		}
	}
	if gone {
		p.Gone = time.Now()
	}
	o.pods[pod.UID] = p
}

func (o *observer) node(node *corev1.Node, gone bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if gone {
		o.nodes[node.Name] = time.Now()
	}
}

// gone is when the node went; zero if it is still there.
func (o *observer) gone(node string) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.nodes[node]
}

func (o *observer) claim(claim *unstructured.Unstructured, gone bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c, known := o.claims[claim.GetUID()]
	if !known {
		if gone || claim.GetDeletionTimestamp() != nil {
			return // of an earlier round
		}
		c = evidence.Claim{Name: claim.GetName(), Replaces: claim.GetLabels()[karpenter.ReplacesLabel], Made: time.Now()}
	}
	if c.Going.IsZero() && (gone || claim.GetDeletionTimestamp() != nil) {
		c.Going = time.Now()
	}
	if gone {
		c.Gone = time.Now()
	}
	if id, _, _ := unstructured.NestedString(claim.Object, "status", "providerID"); id != "" {
		c.Launched = true
	}
	o.claims[claim.GetUID()] = c
}

// span notes a time in which something failed, for the evidence.
func (o *observer) span(s evidence.Span) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.spans = append(o.spans, s)
}

// A machine that is so busy that a small request to the API server takes slowAfter, from here
// and back, is too busy for the replicas as well.
const (
	machineTick = 250 * time.Millisecond
	slowAfter   = time.Second
)

func (o *observer) watchMachine(ctx context.Context, cluster *controlplane.Cluster) {
	for ctx.Err() == nil {
		began := time.Now()
		_ = pause(ctx, machineTick)
		_, _ = cluster.Client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{}) // its time is all that counts
		if now := time.Now(); now.Sub(began) > machineTick+slowAfter {
			o.span(evidence.Span{What: machineSlow, Machine: true, From: began, To: now})
		}
	}
}

// fill adds to the evidence what was seen of the nodes of its losses.
func (o *observer) fill(r *evidence.Round) {
	o.mu.Lock()
	defer o.mu.Unlock()
	lost := map[string]bool{}
	for i, l := range r.Losses {
		r.Losses[i].Gone = o.nodes[l.Node]
		lost[l.Node] = true
	}
	for _, p := range o.pods {
		switch {
		case p.Namespace != roundNamespace:
		case lost[p.Node]:
			r.Pods = append(r.Pods, p)
		default:
			r.Elsewhere = append(r.Elsewhere, p)
		}
	}
	for _, c := range o.claims {
		r.Claims = append(r.Claims, c)
	}
	r.Spans = append(r.Spans, o.spans...)
}
