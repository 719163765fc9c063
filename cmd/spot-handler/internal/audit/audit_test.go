package audit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// of are n pods of a workload that lack nothing.
func of(owner string, n int, change func(*Pod)) (list []Pod) {
	for i := range n {
		p := Pod{
			Namespace: "shop", Name: fmt.Sprintf("%s-%d", strings.ReplaceAll(owner, "/", "-"), i), Owner: owner,
			Labels: map[string]string{"app": owner[strings.Index(owner, "/")+1:]}, Grace: 30 * time.Second,
		}
		change(&p)
		list = append(list, p)
	}
	return list
}

func unchanged(*Pod) {}

// budget is one that selects pods by their app, with the status that its controller gives it.
func budget(name, app string, expected, desired int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		Status:     policyv1.PodDisruptionBudgetStatus{ExpectedPods: expected, DesiredHealthy: desired},
	}
}

func TestChecks(t *testing.T) {
	surges := map[string]Deployment{"shop/web": {Replicas: 2, Strategy: rolling, MaxSurge: "25%"}}
	for name, tt := range map[string]struct {
		s    Snapshot
		want []string
	}{
		"nothing": {Snapshot{Deployments: surges}, nil},
		"all is well": {Snapshot{
			Deployments: surges, Pods: of("deployment/web", 2, unchanged), Budgets: []*policyv1.PodDisruptionBudget{budget("web", "web", 2, 1)},
		}, nil},
		"a budget that never allows": {Snapshot{
			Deployments: surges, Pods: of("statefulset/db", 3, unchanged), Budgets: []*policyv1.PodDisruptionBudget{budget("db", "db", 3, 3)},
		}, []string{"SH101 poddisruptionbudget/db 3"}},
		"the same, of a Deployment that surges": {Snapshot{
			Deployments: surges, Pods: of("deployment/web", 2, unchanged), Budgets: []*policyv1.PodDisruptionBudget{budget("web", "web", 2, 2)},
		}, nil},
		"the same, with Deployments not read": {Snapshot{
			Pods: of("deployment/web", 2, unchanged), Budgets: []*policyv1.PodDisruptionBudget{budget("web", "web", 2, 2)},
		}, nil},
		"a budget that is not counted yet": {Snapshot{
			Deployments: surges, Pods: of("statefulset/db", 3, unchanged), Budgets: []*policyv1.PodDisruptionBudget{budget("db", "db", 0, 0)},
		}, nil},
		"a budget of another namespace": {Snapshot{
			Deployments: surges, Pods: of("statefulset/db", 3, func(p *Pod) { p.Namespace = "bank" }), Budgets: []*policyv1.PodDisruptionBudget{budget("db", "db", 3, 3)},
		}, nil},
		"two budgets": {Snapshot{
			Deployments: surges, Pods: of("deployment/web", 2, unchanged),
			Budgets: []*policyv1.PodDisruptionBudget{budget("a", "web", 2, 1), budget("b", "web", 2, 1), budget("c", "db", 2, 1)},
		}, []string{"SH102 poddisruptionbudget/b 2"}},
		"too much grace": {Snapshot{
			Deployments: surges, Pods: of("statefulset/db", 2, func(p *Pod) { p.Grace = 101 * time.Second }),
		}, []string{"SH103 statefulset/db 2"}},
		"just enough grace": {Snapshot{
			Deployments: surges, Pods: of("statefulset/db", 2, func(p *Pod) { p.Grace = 100 * time.Second }),
		}, nil},
		"Recreate": {Snapshot{
			Deployments: map[string]Deployment{"shop/web": {Replicas: 1, Strategy: "Recreate", MaxSurge: "<nil>"}}, Pods: of("deployment/web", 1, unchanged),
		}, []string{"SH104 deployment/web 1"}},
		"maxSurge 0": {Snapshot{
			Deployments: map[string]Deployment{"shop/web": {Replicas: 2, Strategy: rolling, MaxSurge: "0"}}, Pods: of("deployment/web", 2, unchanged),
		}, []string{"SH104 deployment/web 2"}},
		"the worst first, then the most pods": {Snapshot{
			Deployments: map[string]Deployment{"shop/web": {Replicas: 9, Strategy: rolling, MaxSurge: "0%"}},
			Pods:        slices.Concat(of("deployment/web", 9, unchanged), of("statefulset/db", 2, func(p *Pod) { p.Grace = time.Hour })),
			Budgets:     []*policyv1.PodDisruptionBudget{budget("db", "db", 2, 2)},
		}, []string{"SH101 poddisruptionbudget/db 2", "SH104 deployment/web 9", "SH103 statefulset/db 2"}},
	} {
		tt.s.Grace = 100 * time.Second
		var got []string
		for _, f := range Of(tt.s) {
			got = append(got, fmt.Sprint(f.ID, " ", f.Object, " ", f.Pods))
			if f.What == "" || f.Why == "" || f.Fix == "" || f.Namespace == "" || f.Page != "deploy/docs/findings.md#"+strings.ToLower(f.ID) {
				t.Errorf("%s: incomplete: %+v", name, f)
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A command is offered only where it mends the thing.
func TestFixOfGrace(t *testing.T) {
	for object, want := range map[string]string{
		"statefulset/db": `kubectl -n shop patch statefulset db -p '{"spec":{"template":{"spec":{"terminationGracePeriodSeconds":100}}}}'`,
		"job/once":       "in the manifest of job/once: terminationGracePeriodSeconds: 100",
	} {
		if got := shorten(owned{"shop", object}, 100*time.Second); got != want {
			t.Errorf("%s: %s, want %s", object, got, want)
		}
	}
}

func TestOwnersOfPods(t *testing.T) {
	yes := true
	owned := func(kind, name string, labels map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pod-1", Labels: labels, OwnerReferences: []metav1.OwnerReference{{Kind: kind, Name: name, Controller: &yes}}}}
	}
	for want, pod := range map[string]*corev1.Pod{
		"pod/pod-1":      {ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pod-1"}},
		"statefulset/db": owned("StatefulSet", "db", nil),
		"replicaset/web": owned("ReplicaSet", "web", nil),
		"deployment/web": owned("ReplicaSet", "web-abc", map[string]string{"pod-template-hash": "abc"}),
	} {
		if p := lean(pod); p.Owner != want || p.Grace != 30*time.Second {
			t.Errorf("%s with %s, want %s with 30s", p.Owner, p.Grace, want)
		}
	}
}

func TestBaseline(t *testing.T) {
	known := Finding{ID: "SH104", Severity: Warning, Namespace: "shop", Object: "deployment/web", Pods: 3}
	fresh := Finding{ID: "SH101", Severity: Critical, Namespace: "shop", Object: "poddisruptionbudget/db"}
	text, err := json.Marshal(Report{Accepted: []Finding{known}})
	if err != nil {
		t.Fatal(err)
	}
	known.Pods = 4 // it is still the same
	r, err := Report{Findings: []Finding{fresh, known}}.Accept(text)
	if err != nil || len(r.Findings) != 1 || r.Findings[0].ID != "SH101" || len(r.Accepted) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if !r.Fails(Critical) || !r.Fails(Warning) || (Report{Findings: []Finding{known}}).Fails(Critical) {
		t.Error("critical is worse than a warning")
	}
	if _, err := r.Accept([]byte("no JSON")); err == nil {
		t.Error("a baseline that is none is taken")
	}
	lines := strings.Join(r.Lines(0), "\n")
	for _, want := range []string{"SH101  critical  shop poddisruptionbudget/db", "The baseline accepts 1 more."} {
		if !strings.Contains(lines, want) {
			t.Errorf("no %q in\n%s", want, lines)
		}
	}
}
