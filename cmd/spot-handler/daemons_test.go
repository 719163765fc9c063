package main

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"spot-handler/cmd/spot-handler/internal/audit"
	"spot-handler/cmd/spot-handler/internal/plan"
	"spot-handler/cmd/spot-handler/internal/rehearse"
	"spot-handler/handler/interruption"
)

// What a pod of spot-handler does, and which permissions it needs for that, follows from its arguments.
func TestDaemonOfPod(t *testing.T) {
	pod := func(args ...string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "pod", Labels: map[string]string{
			"helm.sh/chart": "c", "app.kubernetes.io/instance": "r", "app.kubernetes.io/component": "queue", "pod-template-hash": "abc",
		}}}
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "handler-abc", Controller: new(true)}}
		p.Spec.Containers = []corev1.Container{{Args: args}}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		return p
	}
	create := audit.Permission{Verb: "create", Group: "karpenter.sh", Resource: "nodeclaims"}
	lease := audit.Permission{Verb: "get", Group: "coordination.k8s.io", Resource: "leases", Namespace: "ops", ToStart: true}
	patch := audit.Permission{Verb: "patch", Resource: "nodes", ToStart: true}
	for name, tt := range map[string]struct {
		pod                          *corev1.Pod
		fleet, queue, drains, acting bool
		needs, without               []audit.Permission
	}{
		"queue":             {pod("queue"), true, true, true, true, []audit.Permission{create, lease, patch}, nil},
		"without Karpenter": {pod("drain", "--provisioner=none"), true, false, true, true, []audit.Permission{lease, patch}, []audit.Permission{create}},
		"mark only":         {pod("imds", "--drain=false"), false, false, false, true, []audit.Permission{patch}, []audit.Permission{create, lease}},
		"its own node":      {pod("imds"), false, false, true, true, []audit.Permission{create, patch}, []audit.Permission{lease}},
		"dry run":           {pod("queue", "--dry-run"), true, true, false, false, nil, []audit.Permission{create, patch}},
	} {
		cfg, err := settingsOf(tt.pod)
		d := daemonOf(slimDaemon(tt.pod), "deployment/handler", cfg)
		if err != nil || d.Fleet != tt.fleet || d.Queue != tt.queue || d.Drains != tt.drains || d.Ready != tt.acting {
			t.Errorf("%s: %v, %+v", name, err, d)
		}
		if d.Object != "deployment/handler" || d.Release != "r" {
			t.Errorf("%s: %s, %s", name, d.Object, d.Release)
		}
		for _, r := range tt.needs {
			if !slices.Contains(d.Permissions, r) {
				t.Errorf("%s: does not need to %s", name, r)
			}
		}
		for _, r := range tt.without {
			if slices.Contains(d.Permissions, r) {
				t.Errorf("%s: needs to %s", name, r)
			}
		}
	}
	cfg, _ := settingsOf(pod("queue", "--managed-nodes=team=blue"))
	if d := daemonOf(pod(), "", cfg); d.Nodes.Matches(labels.Set{"team": "red"}) || !d.Nodes.Matches(labels.Set{"team": "blue"}) {
		t.Errorf("it acts on %s", d.Nodes)
	}
}

// A rehearsal is refused on a node that the daemon leaves alone, for the same reason.
func TestRulesOfPod(t *testing.T) {
	cfg, _ := settingsOf(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Args: []string{"drain", "--managed-nodes=team=blue"}}}}})
	now := time.Now()
	rehearsal := rehearse.New(nil, rehearse.Options{Loss: plan.Loss{Kind: interruption.SpotInterruption, Deadline: time.Minute}, Rules: rulesOf(cfg, nil)}, now)
	for team, want := range map[string]string{"blue": "", "red": "--managed-nodes does not select the node"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"team": team}}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if _, got := rehearsal.Judge(node, now); got != want {
			t.Errorf("team %s: %q, want %q", team, got, want)
		}
	}
}
