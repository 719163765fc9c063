package status

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func after(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }

const instance = "i-0123456789abcdef0"

// node is a Node of a pool, with the record of a spot interruption noticed at noon as changed.
func node(name, pool string, change func(*interruption.Record)) *corev1.Node {
	rec := interruption.NewRecord(interruption.Notice{
		Kind: interruption.SpotInterruption, Source: interruption.Queue, EventID: "event-" + name, InstanceID: instance,
		Action: interruption.ActionTerminate, Noticed: noon, Received: noon, Deadline: after(120),
	})
	change(&rec)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"karpenter.sh/nodepool": pool},
			Annotations: map[string]string{interruption.Annotation: rec.String()},
		},
		Spec: corev1.NodeSpec{ProviderID: "aws:///eu-west-1a/" + instance},
	}
}

// recommended makes a record one of a rebalance recommendation.
func recommended(received int, change func(*interruption.Record)) func(*interruption.Record) {
	return func(r *interruption.Record) {
		r.Kind, r.Action, r.Deadline, r.Phase = interruption.RebalanceRecommendation, "", time.Time{}, interruption.Waiting
		r.Noticed, r.Received = after(received), after(received)
		change(r)
	}
}

func as(phase interruption.Phase, pods *interruption.Pods, replacement *interruption.Replacement) func(*interruption.Record) {
	return func(r *interruption.Record) { r.Phase, r.Pods, r.Replacement = phase, pods, replacement }
}

func replacement(state, reason string) *interruption.Replacement {
	return &interruption.Replacement{Backend: "karpenter", Name: "fallback-1", Pool: "fallback", State: state, Reason: reason}
}

// pod is a pod of a ReplicaSet with a grace period of 30 s.
func pod(i int, change func(*corev1.Pod)) *corev1.Pod {
	yes := true
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: fmt.Sprint("web-", i), UID: types.UID(fmt.Sprint("uid-", i)),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", Controller: &yes}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	change(p)
	return p
}

func running(*corev1.Pod) {}

func terminating(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: after(62)} }

func surged(p *corev1.Pod) { p.Labels = map[string]string{plan.SurgedLabel: "abc"} }

func daemon(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" }

func stays(p *corev1.Pod) {
	p.Annotations = map[string]string{"karpenter.sh/do-not-disrupt": "true"}
}
