package stories

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
	"spot-handler/e2e/controlplane"
)

// seed is a workload that lacks one thing.
type seed struct {
	finding string // the check's id and its object
	service string // whose pods are watched while a node is drained
	// hurts says whether it went badly. Without, the drain's own account says so.
	hurts func(seen) bool
}

// seen is what is seen of a service while a node is drained.
type seen struct {
	first, fewest int  // how many pods were ready
	serving       int  // the fewest that had been ready for long enough to serve
	killed        bool // a pod was, when its grace period was over
	back          bool // a new pod came to the node
}

func dips(v seen) bool { return v.fewest < v.first }

// plant runs one workload for each check, and one that lacks nothing.
func (s *story) plant(node string) []seed {
	s.Helper()
	// Nothing else is wrong with any of them.
	probed := func(p *corev1.PodSpec) {
		p.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
	}
	run := func(name string, replicas int, change func(*controlplane.DeploymentSpec), template func(*corev1.PodSpec)) []*corev1.Pod {
		return s.service(name, replicas, func(d *controlplane.DeploymentSpec) {
			quick(d)
			d.CPU = "100m"
			d.Change = func(d *appsv1.Deployment) {
				probed(&d.Spec.Template.Spec)
				template(&d.Spec.Template.Spec)
			}
			change(d)
		})
	}
	set := func(name string, replicas int, change func(*controlplane.DeploymentSpec)) {
		spec := controlplane.DeploymentSpec{Name: name, Replicas: replicas}
		quick(&spec)
		change(&spec)
		_, err := s.cluster.RunStatefulSet(s.ctx, spec)
		s.must(err)
		_, err = s.cluster.WaitReady(s.ctx, "default", name, replicas)
		s.must(err)
	}
	limit := func(name string, selector map[string]string) {
		_, err := s.cluster.Client.PolicyV1().PodDisruptionBudgets("default").Create(s.ctx, &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: budget(1), Selector: &metav1.LabelSelector{MatchLabels: selector}},
		}, metav1.CreateOptions{})
		s.must(err)
	}
	asIs, bare := func(*controlplane.DeploymentSpec) {}, func(*corev1.PodSpec) {}
	inPair := func(d *controlplane.DeploymentSpec) {
		d.NodeSelector = pair
		d.Tolerations = []corev1.Toleration{{Key: "for", Value: "pair"}}
	}

	set("never", 2, func(d *controlplane.DeploymentSpec) { d.BudgetMinAvailable = budget(2) })
	run("twice", 1, func(d *controlplane.DeploymentSpec) { d.BudgetMaxUnavailable = budget(1) }, bare)
	limit("twice-too", map[string]string{"app": "twice"})
	run("slow", 1, func(d *controlplane.DeploymentSpec) { d.Grace = 5 * time.Minute }, bare)
	run("dips", 4, func(d *controlplane.DeploymentSpec) {
		d.Change = func(d *appsv1.Deployment) {
			d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
			probed(&d.Spec.Template.Spec)
		}
	}, bare)
	set("missed", 2, asIs)
	limit("missed", map[string]string{"app": "misssed"})
	hash := run("hashed", 2, asIs, bare)[0].Labels["pod-template-hash"]
	limit("hashed", map[string]string{"app": "hashed", "pod-template-hash": hash})
	set("alone", 1, func(d *controlplane.DeploymentSpec) {
		d.Tolerations = []corev1.Toleration{{Key: "for", Value: "safe"}} // it can, and does not have to
	})
	stop := 6 * time.Second // of which it sleeps four
	run("sleeps", 1, func(d *controlplane.DeploymentSpec) { d.Grace, d.StopAfter = 4*time.Second, &stop }, func(p *corev1.PodSpec) {
		p.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 4}}}
	})
	run("tolerant", 1, asIs, func(p *corev1.PodSpec) {
		p.Tolerations = []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}, {Operator: corev1.TolerationOpExists}}
		// The first node is where it likes to be, as where its peers are.
		p.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
			Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
			}}},
		}}}}
	})
	run("trusting", 1, asIs, func(p *corev1.PodSpec) { p.Containers[0].ReadinessProbe = nil })
	run("apart", 2, inPair, func(p *corev1.PodSpec) {
		p.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "apart"}},
		}}}}
	})
	run("spread", 4, func(d *controlplane.DeploymentSpec) { inPair(d); d.Spread = corev1.LabelHostname }, bare)
	run("kept", 2, func(d *controlplane.DeploymentSpec) {
		d.Annotations = map[string]string{"karpenter.sh/do-not-disrupt": "true"}
	}, bare)
	run("well", 2, func(d *controlplane.DeploymentSpec) { d.BudgetMaxUnavailable = budget(1) }, bare)

	return []seed{
		{"SH101 poddisruptionbudget/never", "never", nil},
		{"SH102 poddisruptionbudget/twice-too", "twice", nil},
		{"SH103 deployment/slow", "slow", nil},
		{"SH104 deployment/dips", "dips", dips},
		{"SH105 poddisruptionbudget/missed", "missed", func(v seen) bool { return v.fewest == 0 }},
		{"SH106 poddisruptionbudget/hashed", "hashed", dips},
		{"SH107 statefulset/alone", "alone", dips},
		{"SH108 deployment/sleeps", "sleeps", func(v seen) bool { return v.killed }},
		{"SH109 deployment/tolerant", "tolerant", func(v seen) bool { return v.back }},
		{"SH110 deployment/trusting", "trusting", func(v seen) bool { return v.serving == 0 }},
		{"SH111 deployment/apart", "apart", dips},
		{"SH111 deployment/spread", "spread", dips},
		{"SH112 deployment/kept", "kept", dips},
	}
}

// toServe is how long pods take to serve that are ready at once.
const toServe = 5 * time.Second

func serves(p *corev1.Pod) bool {
	since, ready := plan.Ready(p)
	return ready && p.DeletionTimestamp == nil && time.Since(since) > toServe
}

// watch follows the services while the nodes are drained. It begins when all can serve.
func (s *story) watch(nodes ...string) func(service string) seen {
	s.Helper()
	var mu sync.Mutex
	all, old, ending := map[string]seen{}, map[types.UID]bool{}, map[types.UID]*corev1.Pod{}
	began := make(chan struct{})
	look := func(pods []*corev1.Pod) bool {
		mu.Lock()
		defer mu.Unlock()
		now, gone := map[string]seen{}, maps.Clone(ending)
		for _, p := range pods {
			v := now[p.Labels["app"]]
			delete(gone, p.UID)
			if p.DeletionTimestamp != nil && ending[p.UID] == nil { // the end of its grace period
				ending[p.UID] = p
			}
			if controlplane.Ready(p) {
				v.fewest++
			}
			if serves(p) && p.DeletionTimestamp == nil {
				v.serving++
			}
			v.back = v.back || !old[p.UID] && slices.Contains(nodes, p.Spec.NodeName)
			now[p.Labels["app"]] = v
		}
		for uid, p := range gone {
			v := now[p.Labels["app"]]
			v.killed = v.killed || !time.Now().Before(p.DeletionTimestamp.Time)
			now[p.Labels["app"]] = v
			delete(ending, uid)
		}
		if len(old) == 0 {
			for _, p := range pods {
				old[p.UID] = true
			}
			for service, v := range now {
				v.first, v.back = v.fewest, false
				all[service] = v
			}
			close(began)
			return false
		}
		for service, v := range all {
			is := now[service]
			all[service] = seen{v.first, min(v.fewest, is.fewest), min(v.serving, is.serving), v.killed || is.killed, v.back || is.back}
		}
		return false
	}
	s.eventually("pods that serve", func() bool {
		pods, err := s.cluster.Client.CoreV1().Pods("default").List(s.ctx, metav1.ListOptions{})
		s.must(err)
		return !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return !serves(&p) })
	})
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Minute)
	s.Cleanup(cancel)
	go func() { _, _ = s.cluster.WaitPods(ctx, "default", "", look) }()
	<-began
	return func(service string) seen {
		mu.Lock()
		defer mu.Unlock()
		return all[service]
	}
}
