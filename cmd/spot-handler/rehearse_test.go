package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"spot-handler/cmd/spot-handler/internal/plan"
	"spot-handler/cmd/spot-handler/internal/rehearse"
	"spot-handler/handler/interruption"
)

// Only what EC2 can take back is drawn. What has no label counts if the operator has selected it.
func TestDraw(t *testing.T) {
	node := func(name, provider string, of map[string]string) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: of},
			Spec:       corev1.NodeSpec{ProviderID: provider},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		}
	}
	never := []*corev1.Node{
		node("fargate", "aws:///eu-west-1a/0123456789-abcdef/fargate-ip-10-0-1-2.eu-west-1.compute.internal", map[string]string{"eks.amazonaws.com/compute-type": "fargate"}),
		node("hybrid", "eks-hybrid:///eu-west-1/cluster/mi-0123456789abcdef0", map[string]string{"eks.amazonaws.com/compute-type": "hybrid"}),
		node("control-plane", "aws:///eu-west-1a/i-0123456789abcdef1", map[string]string{"node-role.kubernetes.io/control-plane": ""}),
		node("virtual", "", map[string]string{"type": "virtual-kubelet"}),
		node("on-demand", "aws:///eu-west-1a/i-0123456789abcdef2", map[string]string{"node-lifecycle": "on-demand"}),
	}
	unlabelled := node("unlabelled", "aws:///eu-west-1a/i-0123456789abcdef3", nil)
	spot := node("spot", "aws:///eu-west-1a/i-0123456789abcdef4", map[string]string{"karpenter.sh/capacity-type": "spot"})
	draining := node("draining", "aws:///eu-west-1a/i-0123456789abcdef5", spot.Labels)
	now := time.Now().Truncate(time.Second)
	draining.Annotations = map[string]string{interruption.Annotation: interruption.NewRecord(interruption.Notice{
		Kind:       interruption.SpotInterruption,
		Source:     interruption.Queue,
		EventID:    "event-1",
		InstanceID: "i-0123456789abcdef5",
		Noticed:    now,
		Received:   now,
		Deadline:   now.Add(2 * time.Minute),
	}).String()}

	for name, tt := range map[string]struct {
		more []*corev1.Node
		pool string
		want []string
	}{
		"spot":                          {[]*corev1.Node{spot, unlabelled, draining}, "", []string{"spot"}},
		"spot among those selected":     {[]*corev1.Node{spot, unlabelled, draining}, "batch", []string{"spot"}},
		"nobody labels":                 {[]*corev1.Node{unlabelled}, "", nil},
		"nobody labels, and selected":   {[]*corev1.Node{unlabelled}, "batch", []string{"unlabelled"}},
		"selected, and EC2 takes none":  {nil, "batch", nil},
		"all, of which EC2 takes none ": {nil, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := rehearse.New(nil, rehearse.Options{
				Loss:  plan.Loss{Kind: interruption.SpotInterruption, Deadline: time.Minute},
				Rules: rulesOf(settings{mode: modeQueue}, nil),
			}, now)
			of := &rehearseCommand{random: 1, chosen: selection{any: true, pool: tt.pool, labels: labels.Everything()}}
			got, err := of.draw(append(slices.Clone(never), tt.more...), r)
			if (err == nil) != (tt.want != nil) || !slices.Equal(namesOf(got), tt.want) {
				t.Errorf("drawn %q, %v; want %q", namesOf(got), err, tt.want)
			}
		})
	}
}

// Drawn nodes are sorted by name.
func TestDrawnNodesAreInOrder(t *testing.T) {
	var all []*corev1.Node
	var want []string
	for i := range 9 {
		want = append(want, fmt.Sprint("spot-", i))
		all = append(all, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: want[i], Labels: map[string]string{"karpenter.sh/capacity-type": "spot"}},
			Spec:       corev1.NodeSpec{ProviderID: fmt.Sprintf("aws:///eu-west-1a/i-%017x", i)},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		})
	}
	r := rehearse.New(nil, rehearse.Options{
		Loss: plan.Loss{Kind: interruption.SpotInterruption, Deadline: time.Minute}, Rules: rulesOf(settings{mode: modeQueue}, nil),
	}, time.Now())
	got, err := (&rehearseCommand{random: 9, chosen: selection{any: true, labels: labels.Everything()}}).draw(all, r)
	if err != nil || !slices.Equal(namesOf(got), want) {
		t.Errorf("drawn %q, %v; want %q", namesOf(got), err, want)
	}
}

func TestWhatARehearsalMayDraw(t *testing.T) {
	for _, tt := range []struct {
		random, maxShare int
		names            []string
		want             string // part of the error; empty: it is valid
	}{
		{0, 0, []string{"spot-1"}, ""}, {1, 0, nil, ""}, {3, 100, nil, ""},
		{-1, 0, nil, "--random=-1"}, {1, 0, []string{"spot-1"}, "--random=1"},
		{1, -1, nil, "--max-share=-1"}, {1, 101, nil, "--max-share=101"},
	} {
		err := (&rehearseCommand{random: tt.random, maxShare: tt.maxShare, chosen: selection{names: tt.names}}).validate()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("--random=%d --max-share=%d %q: %v, want %q", tt.random, tt.maxShare, tt.names, err, tt.want)
		}
	}
}
