package karpenter

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/drain/narrow"
	"spot-handler/drain/plan"
)

var (
	daemonSetResource = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}
	budgetResource    = schema.GroupVersionResource{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"}
)

// elsewhere are the pods of the DaemonSets that can run on a new node and have none on the interrupted
// one, where those of here are: one of each. Without permission to read DaemonSets, which is said once,
// there are none.
//
// Anybody who can create DaemonSets in a namespace could size everybody's replacement with one that has
// no pod, whatever the namespace's quota. So only kube-system's count without a pod that is Ready. All
// together count for no more than a share of the node, see [replacedNode.ask].
func (b *Backend) elsewhere(ctx context.Context, here []*corev1.Pod) ([]*corev1.Pod, error) {
	all, err := b.daemons.Get(ctx, "")
	_, away := unavailable(err)
	if err != nil && !away {
		return nil, err
	}
	if away && b.said.First("daemonsets") {
		b.log.Warn().Msg("the API server forbids us to list DaemonSets: replacements are sized with those of the interrupted nodes")
	}
	seen := map[types.NamespacedName]bool{}
	for _, pod := range here {
		if owner := metav1.GetControllerOf(pod); owner != nil {
			seen[types.NamespacedName{Namespace: pod.Namespace, Name: owner.Name}] = true
		}
	}
	var pods []*corev1.Pod
	for _, d := range all {
		counts := d.runs || d.pod.Namespace == metav1.NamespaceSystem
		if counts && !seen[types.NamespacedName{Namespace: d.pod.Namespace, Name: d.pod.Name}] {
			pods = append(pods, d.pod)
		}
	}
	return pods, nil
}

// daemon is a DaemonSet: a pod of it, as its template has it, and whether any of its pods is Ready.
type daemon struct {
	pod  *corev1.Pod
	runs bool
}

// readDaemons reads the cluster's DaemonSets. Some will run on the new node that do not run on the
// interrupted one, such as those for on-demand nodes only.
func (b *Backend) readDaemons(ctx context.Context, _ string) ([]daemon, error) {
	var daemons []daemon
	counted := map[string]int{} // by namespace
	err := eachPage(ctx, b.opts.Dynamic, daemonSetResource, "", func(set *unstructured.Unstructured) {
		if pod := podOf(set); pod != nil && counted[pod.Namespace] < daemonsOf {
			counted[pod.Namespace]++
			ready, _, _ := unstructured.NestedInt64(set.Object, "status", "numberReady")
			daemons = append(daemons, daemon{pod, ready > 0})
		}
	})
	return daemons, err
}

// daemonsOf is how many DaemonSets of one namespace count: a tenant can make any number. How much is
// kept of each is bounded by package narrow.
const daemonsOf = 200

// podOf is a pod of the DaemonSet, named after it; nil if it cannot be read.
func podOf(set *unstructured.Unstructured) *corev1.Pod {
	template, _, err := unstructured.NestedMap(set.Object, "spec", "template")
	pod := &corev1.Pod{}
	if err != nil || runtime.DefaultUnstructuredConverter.FromUnstructured(template, pod) != nil {
		return nil
	}
	pod.Namespace, pod.Name = set.GetNamespace(), set.GetName()
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: set.GetName(), Controller: new(true)}}
	return pod
}

// stranded are those pods of a node that Karpenter ends for which it makes no room: those
// that ask not to be disrupted, and those whose budgets never let them go. Karpenter does
// not evict them, and concludes that they need no other home; at the deadline they need one
// all the same.
// https://karpenter.sh/docs/concepts/disruption/#pod-level-controls
func (b *Backend) stranded(ctx context.Context, pods []*corev1.Pod) ([]*corev1.Pod, error) {
	budgets := map[string][]*policyv1.PodDisruptionBudget{}
	var stranded []*corev1.Pod
	for _, pod := range pods {
		_, active := plan.DoNotDisruptActive(pod, time.Now())
		list, known := budgets[pod.Namespace]
		if !known && !active {
			var err error
			if list, err = b.readBudgets(ctx, pod.Namespace); err != nil {
				return nil, err
			}
			budgets[pod.Namespace] = list
		}
		if active || blockedFor(pod, list) {
			stranded = append(stranded, pod)
		}
	}
	return stranded, nil
}

// How much is read of the budgets of one namespace, and how much is kept of it, in bytes: enough for
// a thousand.
const budgetsRead, budgetsKept = 8 << 20, 1 << 20

// readBudgets reads a namespace's budgets. Without the permission to, there are none.
func (b *Backend) readBudgets(ctx context.Context, namespace string) ([]*policyv1.PodDisruptionBudget, error) {
	// "0" is answered from the API server's watch cache.
	bounded := narrow.Limit(ctx, budgetsRead, budgetsKept)
	list, err := b.opts.Dynamic.Resource(budgetResource).Namespace(namespace).List(bounded, metav1.ListOptions{ResourceVersion: "0"})
	if errors.Is(err, narrow.ErrTooLong) {
		b.log.Warn().Str("namespace", namespace).Msg("the namespace has more PDBs than are read: " +
			"pods that they block get no replacement where Karpenter ends a node itself")
		return nil, nil
	}
	if apierrors.IsForbidden(err) {
		if b.said.First("budgets") {
			b.log.Warn().Err(err).Msg("PDBs not read: pods that they block get no replacement where Karpenter ends a node itself")
		}
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list PodDisruptionBudgets: %w", err)
	}
	var budgets []*policyv1.PodDisruptionBudget
	for i := range list.Items {
		budget := &policyv1.PodDisruptionBudget{}
		err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, budget)
		if err == nil { // else the API server would not have taken it
			budgets = append(budgets, budget)
		}
	}
	return budgets, nil
}

// blockedFor reports whether the budgets of its namespace never let the pod go. The eviction
// API refuses a pod with two budgets.
func blockedFor(pod *corev1.Pod, budgets []*policyv1.PodDisruptionBudget) bool {
	matching, blocking := 0, false
	_, ready := plan.Ready(pod)
	for _, budget := range budgets {
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		matching++
		spec := budget.Spec
		never := is(spec.MaxUnavailable, "0%") || is(spec.MaxUnavailable, "0") || is(spec.MinAvailable, "100%")
		notReady := spec.UnhealthyPodEvictionPolicy != nil && *spec.UnhealthyPodEvictionPolicy == policyv1.AlwaysAllow
		blocking = blocking || never && (ready || !notReady)
	}
	return matching > 1 || blocking
}

func is(v *intstr.IntOrString, text string) bool {
	return v != nil && v.String() == text
}
