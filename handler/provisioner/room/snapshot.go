package room

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"spot-handler/drain/plan"
	"spot-handler/drain/rewatch"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

const (
	// nodesPerPage and podsPerPage bound how many whole objects are in memory at a time.
	nodesPerPage = 100
	podsPerPage  = 500

	// maxWaiting bounds the pods without a node that are placed first. With more, nobody can
	// say what room is left.
	maxWaiting = 500
)

// snapshot is what was free at a time, less what was promised since.
type snapshot struct {
	nodes map[string]*free
	keeps []Term // of pods that are there: whom they keep away, be it from their node, their zone or further
}

// free is a node and what is free on it.
type free struct {
	node *corev1.Node // only name, labels and taints
	left Space
}

// Space is what is free on a node.
type Space struct {
	left      corev1.ResourceList
	all, free Measure // of the whole node, and of what is free
}

// Measure is the CPU and the memory of a resource list, as numbers.
type Measure [2]float64

// MeasureOf measures a resource list.
func MeasureOf(list corev1.ResourceList) Measure {
	cpu, memory := list[corev1.ResourceCPU], list[corev1.ResourceMemory]
	return Measure{cpu.AsApproximateFloat64(), memory.AsApproximateFloat64()}
}

// NewSpace is the space on a node without pods.
func NewSpace(allocatable corev1.ResourceList) Space {
	s := Space{left: corev1.ResourceList{}, all: MeasureOf(allocatable)}
	s.GiveBack(allocatable)
	return s
}

// Reserve subtracts what a pod requests.
func (s *Space) Reserve(requests corev1.ResourceList) {
	for name, q := range requests {
		left := s.left[name]
		left.Sub(q)
		s.left[name] = left
	}
	s.free = MeasureOf(s.left)
}

// GiveBack undoes Take.
func (s *Space) GiveBack(requests corev1.ResourceList) {
	Add(s.left, requests)
	s.free = MeasureOf(s.left)
}

// Add adds more to the sum.
func Add(sum, more corev1.ResourceList) {
	for name, q := range more {
		have := sum[name]
		have.Add(q)
		sum[name] = have
	}
}

// Fits reports whether a pod with these requests fits.
func (s *Space) Fits(requests corev1.ResourceList) bool {
	for name, q := range requests {
		if left := s.left[name]; q.Sign() > 0 && left.Cmp(q) < 0 {
			return false
		}
	}
	return true
}

// Score adds up the shares of CPU and memory that are free once a pod with this need is there. By
// default the scheduler prefers more.
func (s *Space) Score(need Measure) (sum float64) {
	for i, all := range s.all {
		if all > 0 {
			sum += (s.free[i] - need[i]) / all
		}
	}
	return sum
}

// place is where a pod was promised room, and how much.
type place struct {
	node     string
	requests corev1.ResourceList
}

// eachPod calls use for every pod that the field selector selects.
func (o Options) eachPod(ctx context.Context, selector string, use func(*corev1.Pod)) error {
	return rewatch.Pages(ctx, o.Pods.List, metav1.ListOptions{Limit: podsPerPage, FieldSelector: selector}, func(page *corev1.PodList) {
		for i := range page.Items {
			use(&page.Items[i])
		}
	})
}

// read reads all Nodes and pods.
func read(ctx context.Context, o Options, promised map[types.UID]place) (*snapshot, error) {
	l := &snapshot{nodes: map[string]*free{}}
	err := rewatch.Pages(ctx, o.Nodes.List, metav1.ListOptions{Limit: nodesPerPage}, func(page *corev1.NodeList) {
		for i := range page.Items {
			l.addNode(&page.Items[i])
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	var waiting []*corev1.Pod
	err = o.eachPod(ctx, "status.phase!=Succeeded,status.phase!=Failed", func(pod *corev1.Pod) {
		if pod.Spec.NodeName == "" {
			if len(waiting) <= maxWaiting {
				waiting = append(waiting, pod.DeepCopy()) // not the page with it
			}
			return
		}
		l.keeps = append(l.keeps, AntiTerms(pod)...)
		l.occupy(place{pod.Spec.NodeName, Requests(pod)})
		if at, ok := promised[pod.UID]; ok {
			l.occupy(at)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	if len(waiting) > maxWaiting {
		return nil, fmt.Errorf("more than %d pods wait for a node", maxWaiting)
	}
	for _, pod := range waiting {
		if at, ok := l.best(nil, pod, nil); ok && intricate(pod) == "" {
			l.occupy(at)
		}
	}
	return l, nil
}

func (l *snapshot) addNode(node *corev1.Node) {
	if unavailable(node) || !nodes.Ready(node) {
		return
	}
	slim := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: node.Labels}}
	slim.Spec.Taints = node.Spec.Taints
	l.nodes[node.Name] = &free{node: slim.DeepCopy(), left: NewSpace(node.Status.Allocatable)}
}

// unavailable reports whether nothing is to be put on the node: it is cordoned, interrupted or
// going.
func unavailable(node *corev1.Node) bool {
	_, interrupted := node.Annotations[interruption.Annotation]
	return interrupted || node.Spec.Unschedulable || node.DeletionTimestamp != nil
}

// occupy subtracts what a pod requests from what is left on its node.
func (l *snapshot) occupy(at place) {
	if f := l.nodes[at.node]; f != nil {
		f.left.Reserve(at.requests)
	}
}

// placeAll places the pods of a node elsewhere, largest first, and takes that room; or it takes
// none, and names the pod that has no place.
func (l *snapshot) placeAll(
	from *corev1.Node, pods []*corev1.Pod, not func(node string) bool,
) (places map[types.UID]place, unplaced string) {
	places = map[types.UID]place{}
	bySize := slices.Clone(pods)
	slices.SortStableFunc(bySize, func(a, b *corev1.Pod) int {
		sizeA, sizeB := Requests(a), Requests(b)
		return sizeB.Cpu().Cmp(*sizeA.Cpu())
	})
	for _, pod := range bySize {
		at, ok := l.best(from, pod, not)
		if !ok {
			for _, taken := range places {
				l.nodes[taken.node].left.GiveBack(taken.requests)
			}
			return nil, pod.Namespace + "/" + pod.Name
		}
		l.occupy(at)
		places[pod.UID] = at
	}
	return places, ""
}

// best is the place for the pod where the most is left.
func (l *snapshot) best(from *corev1.Node, pod *corev1.Pod, not func(node string) bool) (place, bool) {
	if slices.ContainsFunc(l.keeps, func(t Term) bool { return t.Matches(pod) }) {
		return place{}, false
	}
	requests, affinity := Requests(pod), nodeaffinity.GetRequiredNodeAffinity(pod)
	var best *free
	need, score := MeasureOf(requests), 0.0
	for _, f := range l.nodes {
		s := f.left.Score(need)
		if best != nil && (s < score || s == score && f.node.Name > best.node.Name) { // so the order of the map does not matter
			continue
		}
		if from != nil && f.node.Name == from.Name || not != nil && not(f.node.Name) || !f.left.Fits(requests) || !f.suits(pod, affinity, from) {
			continue
		}
		best, score = f, s
	}
	if best == nil {
		return place{}, false
	}
	return place{best.node.Name, requests}, true
}

// Requests is what a pod takes, as the scheduler counts it, and its place among the node's
// pods.
func Requests(pod *corev1.Pod) corev1.ResourceList {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{UseStatusResources: true})
	requests[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return requests
}

// suits reports whether the pod may run on the node. Its volumes are where the node is that it
// comes from.
func (f *free) suits(pod *corev1.Pod, affinity nodeaffinity.RequiredNodeAffinity, from *corev1.Node) bool {
	if !suits(f.node, pod, affinity) {
		return false
	}
	zone := corev1.LabelTopologyZone
	return !plan.HasVolumes(pod) || from != nil && from.Labels[zone] != "" && f.node.Labels[zone] == from.Labels[zone]
}

// Suits says of nodes whether the pod may run there, as far as their taints, the pod's node selector
// and its required node affinity tell.
func Suits(pod *corev1.Pod) func(node *corev1.Node) bool {
	affinity := nodeaffinity.GetRequiredNodeAffinity(pod)
	return func(node *corev1.Node) bool { return suits(node, pod, affinity) }
}

func suits(node *corev1.Node, pod *corev1.Pod, affinity nodeaffinity.RequiredNodeAffinity) bool {
	if _, found := corev1helpers.FindMatchingUntoleratedTaint(klog.Logger{}, node.Spec.Taints, pod.Spec.Tolerations, keepsAway, false); found {
		return false
	}
	ok, err := affinity.Match(node)
	return err == nil && ok
}

func keepsAway(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }
