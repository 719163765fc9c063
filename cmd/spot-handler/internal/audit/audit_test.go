package audit

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"spot-handler/drain/plan"
)

// of are n pods of a workload that lack nothing.
func of(owner string, n int, change func(*Pod)) (list []Pod) {
	kind, name, _ := strings.Cut(owner, "/")
	for i := range n {
		p := Pod{Pod: &corev1.Pod{}, Owner: Owned{"shop", owner}, Surges: kind == "deployment"}
		p.Namespace, p.Name, p.Labels = "shop", fmt.Sprintf("%s-%s-%d", kind, name, i), map[string]string{"app": name}
		p.Spec.Containers = []corev1.Container{{ReadinessProbe: &corev1.Probe{}}}
		change(&p)
		list = append(list, p)
	}
	return list
}

func unchanged(*Pod) {}

func grace(seconds int64) func(*Pod) {
	return func(p *Pod) { p.Spec.TerminationGracePeriodSeconds = &seconds }
}

func sleeping(seconds int64) func(*Pod) {
	return func(p *Pod) {
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: seconds}}}
	}
}

func unprobed(p *Pod) { p.Spec.Containers[0].ReadinessProbe = nil }

// pdb is one that selects pods by their app, with the status that its controller gives it.
func pdb(name, app string, expected, desired int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		Status:     policyv1.PodDisruptionBudgetStatus{ExpectedPods: expected, DesiredHealthy: desired},
	}
}

// byHash is a budget that covers what belongs to the hash.
func byHash(name, app, hash string) *policyv1.PodDisruptionBudget {
	b := pdb(name, app, 2, 1)
	b.Spec.Selector.MatchLabels[hashLabel] = hash
	return b
}

// nodesWith are n nodes with the labels.
func nodesWith(n int, labels map[string]string) []*corev1.Node {
	list := make([]*corev1.Node, n)
	for i := range list {
		list[i] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i), Labels: labels}}
	}
	return list
}

func TestChecks(t *testing.T) {
	surges := map[Owned]*Deployment{{"shop", "deployment/web"}: {Replicas: 2}}
	refuses := map[Owned]*Deployment{{"shop", "deployment/web"}: {Replicas: 2, Refuses: "has maxSurge 0"}}
	own := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	keepsApart := func(p *Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: own}},
		}}
	}
	spread := func(p *Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{TopologyKey: corev1.LabelHostname, MaxSkew: 1, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: own}}
	}
	held := func(p *Pod) { spread(p); p.Surges = false }
	for name, tt := range map[string]struct {
		s    Snapshot
		want []string
	}{
		"nothing": {Snapshot{Deployments: surges}, nil},
		"all is well": {Snapshot{
			Deployments: surges, Pods: of("deployment/web", 2, unchanged), Budgets: []*policyv1.PodDisruptionBudget{pdb("web", "web", 2, 1)},
		}, nil},
		"a budget that never allows": {Snapshot{
			Deployments: surges, Pods: of("statefulset/db", 3, unchanged), Budgets: []*policyv1.PodDisruptionBudget{pdb("db", "db", 3, 3)},
		}, []string{"SH101 poddisruptionbudget/db 3"}},
		"the same, of a Deployment that surges": {Snapshot{
			Deployments: surges, Pods: of("deployment/web", 2, unchanged), Budgets: []*policyv1.PodDisruptionBudget{pdb("web", "web", 2, 2)},
		}, nil},
		"the same, with Deployments not read": {Snapshot{
			Pods: of("deployment/web", 2, unchanged), Budgets: []*policyv1.PodDisruptionBudget{pdb("web", "web", 2, 2)},
		}, nil},
		"a budget that is not counted yet": {Snapshot{
			Deployments: surges, Pods: of("statefulset/db", 3, unchanged), Budgets: []*policyv1.PodDisruptionBudget{pdb("db", "db", 0, 0)},
		}, nil},
		"a budget of another namespace": {Snapshot{
			Deployments: surges, Pods: of("statefulset/db", 3, func(p *Pod) { p.Namespace, p.Owner.Namespace = "bank", "bank" }), Budgets: []*policyv1.PodDisruptionBudget{pdb("db", "db", 3, 3)},
		}, nil},
		"two budgets": {Snapshot{
			Deployments: surges, Pods: of("deployment/web", 2, unchanged),
			Budgets: []*policyv1.PodDisruptionBudget{pdb("a", "web", 2, 1), pdb("b", "web", 2, 1), pdb("c", "db", 2, 1)},
		}, []string{"SH102 poddisruptionbudget/b 2"}},
		"too much grace": {Snapshot{
			Deployments: surges, Pods: of("statefulset/db", 2, grace(101)),
		}, []string{"SH103 statefulset/db 2"}},
		"just enough grace": {Snapshot{
			Deployments: surges, Pods: of("statefulset/db", 2, grace(100)),
		}, nil},
		"a Deployment that refuses":    {Snapshot{Deployments: refuses, Pods: of("deployment/web", 2, unchanged)}, []string{"SH104 deployment/web 2"}},
		"a budget that selects none":   {Snapshot{Pods: of("statefulset/db", 2, unchanged), Budgets: []*policyv1.PodDisruptionBudget{pdb("db", "db2", 0, 0)}}, []string{"SH105 poddisruptionbudget/db 2"}},
		"nobody knows for whom it was": {Snapshot{Pods: of("statefulset/db", 2, unchanged), Budgets: []*policyv1.PodDisruptionBudget{pdb("old", "old", 0, 0)}}, []string{"SH105 poddisruptionbudget/old 0"}},
		"it selects pods on demand":    {Snapshot{Pods: of("statefulset/db", 2, unchanged), Budgets: []*policyv1.PodDisruptionBudget{pdb("old", "old", 2, 1)}}, nil},
		"it is for none at the moment": {Snapshot{
			Pods: of("statefulset/db", 2, unchanged), Budgets: []*policyv1.PodDisruptionBudget{pdb("old", "old", 0, 0)},
			Idle: map[string][]labels.Set{"shop": {{"app": "old", "tier": "web"}}},
		}, nil},
		"a budget that selects by hash": {Snapshot{
			Deployments: surges, Pods: of("deployment/web", 2, func(p *Pod) { p.Labels[hashLabel] = "abc" }),
			Budgets: []*policyv1.PodDisruptionBudget{byHash("web", "web", "abc")},
		}, []string{"SH106 poddisruptionbudget/web 2"}},
		"the same, of pods that are not surged": {Snapshot{
			Deployments: refuses, Pods: of("deployment/web", 2, func(p *Pod) { p.Labels[hashLabel], p.Surges = "abc", false }),
			Budgets: []*policyv1.PodDisruptionBudget{byHash("web", "web", "abc")},
		}, []string{"SH104 deployment/web 2"}},
		"an only pod that cannot be surged": {Snapshot{
			Pods: of("statefulset/db", 1, func(p *Pod) { p.NoSurge = "its controller is a StatefulSet" }), Replicas: map[Owned]int{{"shop", "statefulset/db"}: 1},
		}, []string{"SH107 statefulset/db 1"}},
		"one of several, elsewhere": {Snapshot{
			Pods: of("statefulset/db", 1, func(p *Pod) { p.NoSurge = "its controller is a StatefulSet" }), Replicas: map[Owned]int{{"shop", "statefulset/db"}: 3},
		}, nil},
		"a Deployment that would surge, and cannot": {Snapshot{
			Deployments: surges, Pods: of("deployment/web", 2, func(p *Pod) { p.NoSurge, p.Surges = "its volume data cannot be shared", false }),
			Replicas: map[Owned]int{{"shop", "deployment/web"}: 2},
		}, []string{"SH107 deployment/web 2"}},
		"a Deployment that would not": {Snapshot{
			Deployments: refuses, Pods: of("deployment/web", 2, func(p *Pod) { p.NoSurge, p.Surges = "Deployment web has maxSurge 0", false }),
		}, []string{"SH104 deployment/web 2"}},
		"a sleep as long as the grace": {Snapshot{Pods: of("statefulset/db", 2, sleeping(30))}, []string{"SH108 statefulset/db 2"}},
		"a shorter sleep":              {Snapshot{Pods: of("statefulset/db", 2, sleeping(29))}, nil},
		"no sleep and no grace":        {Snapshot{Pods: of("statefulset/db", 2, grace(0))}, nil},
		"all is tolerated": {Snapshot{Pods: of("statefulset/db", 2, func(p *Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: "a"}, {Operator: corev1.TolerationOpExists}}
		})}, []string{"SH109 statefulset/db 2"}},
		"no probe": {Snapshot{Deployments: surges, Pods: of("deployment/web", 2, unprobed)}, []string{"SH110 deployment/web 2"}},
		"no probe, but patience": {Snapshot{
			Deployments: map[Owned]*Deployment{{"shop", "deployment/web"}: {Replicas: 2, MinReady: 5}}, Pods: of("deployment/web", 2, unprobed),
		}, nil},
		"no probe of what is not surged": {Snapshot{Deployments: surges, Pods: of("statefulset/db", 2, unprobed)}, nil},
		"no node for a replacement pod": {Snapshot{
			Nodes: nodesWith(2, nil), Pods: of("deployment/web", 2, keepsApart), Replicas: map[Owned]int{{"shop", "deployment/web"}: 2},
		}, []string{"SH111 deployment/web 2"}},
		"a node for a replacement pod": {Snapshot{
			Nodes: nodesWith(3, nil), Pods: of("deployment/web", 2, keepsApart), Replicas: map[Owned]int{{"shop", "deployment/web"}: 2},
		}, nil},
		"Karpenter makes one": {Snapshot{
			Nodes: nodesWith(2, map[string]string{"karpenter.sh/nodepool": "spot"}), Pods: of("deployment/web", 2, keepsApart), Replicas: map[Owned]int{{"shop", "deployment/web"}: 2},
		}, nil},
		"a strict spread, one each, surged": {Snapshot{
			Nodes: nodesWith(2, nil), Pods: of("deployment/web", 2, spread), Replicas: map[Owned]int{{"shop", "deployment/web"}: 2},
		}, nil},
		"a strict spread, one each, held": {Snapshot{
			Nodes: nodesWith(2, nil), Pods: of("deployment/web", 2, held), Replicas: map[Owned]int{{"shop", "deployment/web"}: 2},
		}, []string{"SH111 deployment/web 2"}},
		"a strict spread, many each, surged": {Snapshot{
			Nodes: nodesWith(2, nil), Pods: of("deployment/web", 4, spread), Replicas: map[Owned]int{{"shop", "deployment/web"}: 4},
		}, []string{"SH111 deployment/web 4"}},
		"never to be disrupted": {Snapshot{
			Deployments: surges, Pods: of("deployment/web", 2, func(p *Pod) { p.Annotations, p.Surges = map[string]string{plan.DoNotDisrupt: "true"}, false }),
		}, []string{"SH112 deployment/web 2"}},
		"the worst first, then the most pods": {Snapshot{
			Deployments: map[Owned]*Deployment{{"shop", "deployment/web"}: {Replicas: 9, Refuses: "has maxSurge 0"}},
			Pods:        slices.Concat(of("deployment/web", 9, unchanged), of("statefulset/db", 2, grace(3600))),
			Budgets:     []*policyv1.PodDisruptionBudget{pdb("db", "db", 2, 2)},
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

// A command is offered only where it fixes the thing.
func TestFixOfGrace(t *testing.T) {
	for object, want := range map[string]string{
		"statefulset/db": `kubectl -n shop patch statefulset db -p '{"spec":{"template":{"spec":{"terminationGracePeriodSeconds":100}}}}'`,
		"job/once":       `in the template of job/once for its pods: {"spec":{"terminationGracePeriodSeconds":100}}`,
		"pod/bare":       `in the manifest of pod/bare: {"spec":{"terminationGracePeriodSeconds":100}}`,
	} {
		if got := (Owned{"shop", object}).setGrace(100 * time.Second); got != want {
			t.Errorf("%s: %s, want %s", object, got, want)
		}
	}
}

// fixes are those of the findings with the ID, by object.
func fixes(s Snapshot, id string) map[string]string {
	s.Grace = 100 * time.Second
	found := map[string]string{}
	for _, f := range Of(s) {
		if f.ID == id {
			found[f.Object] = f.Fix
		}
	}
	return found
}

// A budget goes on to select by all that is no hash. One that would select nothing else is deleted:
// it would cover the whole namespace.
func TestFixOfSpread(t *testing.T) {
	s := Snapshot{
		Nodes: nodesWith(2, nil), Replicas: map[Owned]int{{"shop", "deployment/web"}: 2}, Grace: 100 * time.Second,
		Pods: of("deployment/web", 2, func(p *Pod) {
			p.Surges = false
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				TopologyKey: corev1.LabelHostname, MaxSkew: 1, WhenUnsatisfiable: corev1.DoNotSchedule,
				LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
			}}
		}),
	}
	want := `kubectl -n shop patch deployment web -p '{"spec":{"template":{"spec":{"topologySpreadConstraints":[{"topologyKey":"kubernetes.io/hostname","nodeTaintsPolicy":"Honor"}]}}}}'`
	if got := fixes(s, "SH111")["deployment/web"]; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// If pods keep off each other's nodes, the fix names as many as still get a node each when one is lost, but at least
// one.
func TestFixOfPodsApart(t *testing.T) {
	for nodes, want := range map[int]string{1: "--replicas=1", 2: "--replicas=1", 3: "--replicas=2"} {
		s := Snapshot{
			Nodes: nodesWith(nodes, nil), Replicas: map[Owned]int{{"shop", "deployment/web"}: 3},
			Pods: of("deployment/web", 3, func(p *Pod) {
				p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
						TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
					}},
				}}
			}),
		}
		if want, got := "kubectl -n shop scale deployment web "+want, fixes(s, "SH111")["deployment/web"]; got != want {
			t.Errorf("%d nodes: %s, want %s", nodes, got, want)
		}
	}
}

// If there is a template to change, the fix removes the toleration of every taint by its index, and only if it is still
// there.
func TestFixOfTolerations(t *testing.T) {
	tolerant := func(p *Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "a"}, {Operator: corev1.TolerationOpExists}}
	}
	for object, want := range map[string]string{
		"deployment/web": `kubectl -n shop patch deployment web --type=json -p '[{"op":"test","path":"/spec/template/spec/tolerations/1/operator","value":"Exists"},{"op":"remove","path":"/spec/template/spec/tolerations/1"}]'`,
		"job/once":       "in the manifest of job/once: no toleration with operator Exists and without a key",
	} {
		if got := fixes(Snapshot{Pods: of(object, 2, tolerant)}, "SH109")[object]; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestFixOfBudgetByHash(t *testing.T) {
	hashed := func(p *Pod) { p.Labels[hashLabel], p.Labels[plan.SurgedLabel] = "5d9f", "x" }
	expression := func(key, value string) metav1.LabelSelectorRequirement {
		return metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{value}}
	}
	const patch = `kubectl -n shop patch poddisruptionbudget web --type=json -p '[{"op":"replace","path":"/spec/selector","value":%s}]'`
	for name, tt := range map[string]struct {
		labels      map[string]string
		expressions []metav1.LabelSelectorRequirement
		want        string
	}{
		"a label is left": {
			labels: map[string]string{"app": "web", hashLabel: "5d9f"},
			want:   fmt.Sprintf(patch, `{"matchLabels":{"app":"web"}}`),
		},
		"an expression is left": {
			labels:      map[string]string{hashLabel: "5d9f"},
			expressions: []metav1.LabelSelectorRequirement{expression("app", "web"), expression(hashLabel, "5d9f")},
			want:        fmt.Sprintf(patch, `{"matchExpressions":[{"key":"app","operator":"In","values":["web"]}]}`),
		},
		"both are left": {
			labels:      map[string]string{"app": "web"},
			expressions: []metav1.LabelSelectorRequirement{expression("app", "web"), expression(hashLabel, "5d9f")},
			want:        fmt.Sprintf(patch, `{"matchLabels":{"app":"web"},"matchExpressions":[{"key":"app","operator":"In","values":["web"]}]}`),
		},
		"nothing is left": {
			labels:      map[string]string{hashLabel: "5d9f"},
			expressions: []metav1.LabelSelectorRequirement{expression(hashLabel, "5d9f")},
			want:        `kubectl -n shop delete poddisruptionbudget web`,
		},
	} {
		b := pdb("web", "web", 2, 1)
		b.Spec.Selector = &metav1.LabelSelector{MatchLabels: tt.labels, MatchExpressions: tt.expressions}
		got := fixes(Snapshot{Pods: of("deployment/web", 2, hashed), Budgets: []*policyv1.PodDisruptionBudget{b}}, "SH106")
		if diff := cmp.Diff(map[string]string{"poddisruptionbudget/web": tt.want}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A preStop hook that sleeps leaves the process 30 s of the grace period, if that much can be had.
func TestFixOfSleep(t *testing.T) {
	for sleep, want := range map[int64]string{
		70:  `kubectl -n shop patch statefulset db -p '{"spec":{"template":{"spec":{"terminationGracePeriodSeconds":100}}}}'`,
		71:  "in the manifest of statefulset/db: a preStop sleep of 70 s at most",
		300: "in the manifest of statefulset/db: a preStop sleep of 70 s at most",
	} {
		got := fixes(Snapshot{Pods: of("statefulset/db", 2, sleeping(sleep))}, "SH108")
		if diff := cmp.Diff(map[string]string{"statefulset/db": want}, got); diff != "" {
			t.Errorf("%d s (-want +got):\n%s", sleep, diff)
		}
	}
}
