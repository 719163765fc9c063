package plan

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"spot-handler/drain/plan"
	"spot-handler/handler/dryrun"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/karpenter"
	"spot-handler/handler/provisioner/room"
)

// request asks for the node's replacement, and notes what it would be. An error is one that the daemon
// would try again, or what could not be read and costs the answer only its reasons.
func (d *Daemon) request(ctx context.Context, l *Lost, need provisioner.Need) error {
	weighed, unread := d.Pools.Weigh(ctx, l.Node, l.record, need) // before Request takes of the limits
	if unread != nil {
		unread = fmt.Errorf("why node %s is replaced from that pool: %w", l.Node.Name, unread)
	}
	got, err := d.Provisioner.Request(ctx, l.Node, l.record, need)
	made := d.Requests.collect()
	if err != nil {
		return errors.Join(unread, fmt.Errorf("ask for the replacement of node %q: %w", l.Node.Name, err))
	}
	r := &Replacement{Backend: got.Backend, State: got.State, Name: got.Name, Pool: got.Pool, Why: got.Reason}
	l.Replacement = r
	if l.Capacity = provisioner.CapacityOf(&got); l.Capacity == plan.NoCapacity {
		for _, pod := range need.Moving {
			r.NoPlace = append(r.NoPlace, pod.Namespace+"/"+pod.Name+": there is no replacement")
		}
	}
	r.Pods, r.Daemons = len(need.Moving), len(need.Daemons)
	switch {
	case got.Backend == provisioner.Karpenter:
		chosen := weigh(r, got, weighed)
		for _, c := range made {
			var claim karpenter.Claim
			if c.Resource == "nodeclaims" && json.Unmarshal(c.Object, &claim) == nil {
				describe(r, claim)
				l.Becomes = becomes(claim, l.Node, chosen.Inherited)
			}
		}
		r.Pods -= len(r.NoPlace)
	case got.State != provisioner.StateRequested:
	case got.Backend == provisioner.Placeholder:
		describePlaceholders(r, made)
		l.Becomes = alike(l.Node, got.Pool)
	case got.Backend == provisioner.ASG:
		r.Why, l.Becomes = assumedGroup, alike(l.Node, "")
	}
	if l.Capacity != plan.PendingCapacity {
		r.Pods, r.Daemons = 0, 0
	}
	return unread
}

// assumedGroup stands in the place of an answer from AWS, which the commands for people never ask.
const assumedGroup = "its Auto Scaling group launches another instance; AWS, which is not asked here, knows whether it is in one"

// weigh says why the chosen pool, and why no other.
func weigh(r *Replacement, got interruption.Replacement, pools []karpenter.Weighed) (chosen karpenter.Weighed) {
	for i, w := range pools {
		switch {
		case w.Pool == got.Pool && w.Capacity == got.Capacity && got.State == provisioner.StateRequested && w.Against == "":
			chosen = w
			for _, misfit := range w.Without {
				for _, pod := range misfit.Pods {
					r.NoPlace = append(r.NoPlace, pod+": "+misfit.Reason)
				}
			}
			remark := r.Why
			switch {
			case w.Named != "":
				r.Why = "named by " + w.Named
			case w.Better != "":
				r.Why = fmt.Sprintf("it %s, unlike %s", w.Better, pools[i+1].Pool)
			default:
				r.Why = "no other pool can"
			}
			if remark != "" {
				r.Why += "; " + remark
			}
		case w.Against != "":
			r.Others = append(r.Others, OtherPool{Name: w.Pool, Why: w.Against})
		default:
			r.Others = append(r.Others, OtherPool{Name: w.Pool, Why: "it comes after " + got.Pool})
		}
	}
	return chosen
}

// describe says what the claim asks for.
func describe(r *Replacement, c karpenter.Claim) {
	r.Requests = c.Spec.Resources.Requests
	for _, q := range c.Spec.Requirements {
		values := slices.Sorted(slices.Values(q.Values))
		r.Requirements = append(r.Requirements, strings.TrimSpace(q.Key+" "+q.Operator+" "+strings.Join(values, ",")))
	}
	if types := c.Choices(corev1.LabelInstanceTypeStable); len(types) == 1 {
		r.InstanceType = types[0]
	}
}

// becomes is the node that the claim becomes at least: Karpenter takes an instance that has what the claim
// asks for, and nearly always some more.
func becomes(c karpenter.Claim, lost *corev1.Node, inherited map[string]string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.Name, Labels: map[string]string{corev1.LabelHostname: c.Name}}}
	for _, key := range []string{
		"karpenter.sh/registered",
		"karpenter.sh/initialized",
		corev1.LabelArchStable,
		corev1.LabelOSStable,
		corev1.LabelTopologyRegion,
	} {
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
		if values := c.Choices(q.Key); len(values) > 0 && !slices.Contains(values, node.Labels[q.Key]) {
			node.Labels[q.Key] = values[0]
			if slices.Contains(values, lost.Labels[q.Key]) {
				node.Labels[q.Key] = lost.Labels[q.Key]
			}
		}
	}
	maps.Copy(node.Labels, c.Labels)
	node.Spec.Taints = c.Spec.Taints
	node.Status.Allocatable, node.Status.Capacity = c.Spec.Resources.Requests, c.Spec.Resources.Requests
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return node
}

// describePlaceholders sums up what placeholder pods ask for.
func describePlaceholders(r *Replacement, made []dryrun.Created) {
	sum, pods := corev1.ResourceList{}, 0
	for _, c := range made {
		pod := &corev1.Pod{}
		if c.Resource == "pods" && json.Unmarshal(c.Object, pod) == nil {
			room.Add(sum, room.Requests(pod))
			pods++
		}
	}
	if pods > 0 {
		r.Requests, r.Pods, r.Daemons = sum, pods, 0
		r.Why = "pods of low priority hold the room, for which the cluster's autoscaler makes nodes"
	}
}

// alike is a new node of the same kind, with the labels by which it was asked for.
func alike(lost *corev1.Node, selector string) *corev1.Node {
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
