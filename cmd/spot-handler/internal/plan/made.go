package plan

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	resourcehelper "k8s.io/component-helpers/resource"

	"spot-handler/handler/interruption"
)

// claimed is a NodeClaim that was asked for.
type claimed struct {
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Requirements []struct {
			Key      string   `json:"key"`
			Operator string   `json:"operator"`
			Values   []string `json:"values"`
		} `json:"requirements"`
		Resources struct {
			Requests corev1.ResourceList `json:"requests"`
		} `json:"resources"`
		Taints []corev1.Taint `json:"taints"`
	} `json:"spec"`
}

// readClaim reads what was created as a NodeClaim, if it is one.
func readClaim(u *unstructured.Unstructured) (c claimed, ok bool) {
	if u.GetKind() != "NodeClaim" {
		return c, false
	}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &c)
	return c, err == nil
}

func (c claimed) describe(r *Replacement) {
	r.Requests = texts(c.Spec.Resources.Requests)
	for _, q := range c.Spec.Requirements {
		values := slices.Sorted(slices.Values(q.Values))
		r.Requirements = append(r.Requirements, strings.TrimSpace(q.Key+" "+q.Operator+" "+strings.Join(values, ",")))
	}
	if types := c.choices(corev1.LabelInstanceTypeStable); len(types) == 1 {
		r.InstanceType = types[0]
	}
}

// node is what the claim becomes at least: Karpenter takes an instance that has what the claim
// asks for, and nearly always some more.
func (c claimed) node(lost *corev1.Node, inherited map[string]string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.Name, Labels: map[string]string{corev1.LabelHostname: c.Name}}}
	for _, key := range []string{"karpenter.sh/registered", "karpenter.sh/initialized", corev1.LabelArchStable, corev1.LabelOSStable, corev1.LabelTopologyRegion} {
		if value, ok := lost.Labels[key]; ok {
			node.Labels[key] = value
		}
	}
	for key, value := range inherited {
		if !strings.Contains(key, "karpenter") && node.Labels[key] == "" {
			node.Labels[key] = value
		}
	}
	for _, q := range c.Spec.Requirements {
		if values := c.choices(q.Key); len(values) > 0 && !slices.Contains(values, node.Labels[q.Key]) {
			node.Labels[q.Key] = values[0]
			if slices.Contains(values, lost.Labels[q.Key]) {
				node.Labels[q.Key] = lost.Labels[q.Key]
			}
		}
	}
	for key, value := range c.Labels {
		node.Labels[key] = value
	}
	node.Spec.Taints = c.Spec.Taints
	node.Status.Allocatable, node.Status.Capacity = c.Spec.Resources.Requests, c.Spec.Resources.Requests
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return node
}

// choices are the values that all requirements on a label allow by name; none if no requirement
// names any.
func (c claimed) choices(key string) (values []string) {
	named := false
	for _, q := range c.Spec.Requirements {
		switch {
		case q.Key != key || q.Operator != "In":
		case !named:
			values, named = slices.Clone(q.Values), true
		default:
			values = slices.DeleteFunc(values, func(v string) bool { return !slices.Contains(q.Values, v) })
		}
	}
	for _, q := range c.Spec.Requirements {
		if q.Key == key && q.Operator == "NotIn" {
			values = slices.DeleteFunc(values, func(v string) bool { return slices.Contains(q.Values, v) })
		}
	}
	slices.Sort(values)
	return values
}

// describePlaceholders sums up what placeholder pods ask for.
func describePlaceholders(r *Replacement, made []any) {
	sum, pods := corev1.ResourceList{}, 0
	for _, object := range made {
		if pod, ok := object.(*corev1.Pod); ok {
			pods++
			for name, q := range resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}) {
				have := sum[name]
				have.Add(q)
				sum[name] = have
			}
		}
	}
	if pods == 0 {
		return
	}
	sum[corev1.ResourcePods] = *resource.NewQuantity(int64(pods), resource.DecimalSI)
	r.Requests, r.Pods, r.Daemons = texts(sum), pods, 0
	r.Why = "pods of low priority hold the room, for which the cluster's autoscaler makes nodes"
}

func texts(list corev1.ResourceList) map[string]string {
	out := map[string]string{}
	for name, q := range list {
		out[string(name)] = q.String()
	}
	return out
}

// Alike is a new node of the same kind, with the labels by which it was asked for.
func Alike(lost *corev1.Node, selector string) *corev1.Node {
	node := lost.DeepCopy()
	node.Name = "in-place-of-" + lost.Name
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	node.Labels[corev1.LabelHostname] = node.Name
	if asked, err := labels.ConvertSelectorToLabelsMap(selector); err == nil {
		maps.Copy(node.Labels, asked)
	}
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == interruption.TaintKey || t.Key == corev1.TaintNodeUnschedulable
	})
	node.Spec.Unschedulable = false
	return node
}
