package forecast

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/e2e/controlplane"
	"spot-handler/handler/interruption"
)

// random is a cluster of its own, in a namespace and on nodes that are nobody else's.
type random struct {
	*testing.T
	*rand.Rand
	cluster *controlplane.Cluster
	name    string        // of the namespace and of the nodes' label
	stop    time.Duration // how long its pods take to end
	boot    time.Duration // zero: nothing makes nodes
	zones   []string
	lost    []*corev1.Node
	made    int  // workloads
	pods    int  // that become Ready
	never   bool // some never do
}

// ownNodes is the label of the nodes of one cluster.
const ownNodes = "e2e.spot-handler/cluster"

// newRandom makes a cluster from its seed. Its pods come up while some of its nodes are there; the
// others come later, so there is room for replacement pods, or none.
//
// With a boot time Karpenter makes the nodes, and pods have somewhere to be in any case.
func newRandom(t *testing.T, cluster *controlplane.Cluster, seed uint64, with settings) *random {
	r := &random{T: t, Rand: rand.New(rand.NewPCG(seed, 13)), cluster: cluster, name: fmt.Sprintf("random-%d", seed), zones: []string{"a", "b"}, boot: with.boot}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	r.stop = time.Duration(1+r.IntN(8)) * time.Second
	r.must(cluster.CreateNamespace(ctx, r.name))
	if r.boot > 0 {
		r.pools(ctx)
	}
	r.lost = r.nodes(ctx, "lost", 1+r.IntN(2), 16)
	if r.IntN(2) == 0 {
		r.nodes(ctx, "stays", 1, 8)
	}
	for range 4 + r.IntN(5) {
		r.workload(ctx, with.graces)
	}
	comes := r.IntN(4)
	_, err := cluster.WaitPods(ctx, r.name, "never!=ready", func(all []*corev1.Pod) bool {
		ready, homeless := 0, 0
		for _, p := range all {
			switch {
			case controlplane.Ready(p):
				ready++
			case slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Reason == corev1.PodReasonUnschedulable }):
				homeless++
			}
		}
		return ready+homeless == len(all) && (len(all) >= r.pods || homeless > 0) && (homeless == 0 || r.boot == 0)
	})
	r.must(err)
	if r.never { // only what is late enough is known never to be Ready
		select {
		case <-time.After(knownNever):
		case <-ctx.Done():
			r.must(ctx.Err())
		}
	}
	if comes > 0 {
		r.nodes(ctx, "comes", 1+comes/2, 4*comes)
	}
	return r
}

// knownNever is how old a pod has to be that is not Ready, for `plan` not to wait for it: the start that is assumed, and
// half a minute more.
const knownNever = 45 * time.Second

// pools makes a pool of spot nodes, and one to fall back on.
func (r *random) pools(ctx context.Context) {
	r.Helper()
	r.zones = []string{"test-zone-a", "test-zone-b"}
	own := map[string]string{ownNodes: r.name}
	r.must(r.cluster.CreatePools(ctx,
		controlplane.PoolSpec{
			Name: r.name, Weight: 100, CPUs: 16, Boot: r.boot, Labels: own, Zones: r.zones,
			Annotations: map[string]string{"spot-handler/fallback-nodepool": r.name + "-fallback"},
		},
		controlplane.PoolSpec{
			Name: r.name + "-fallback", Weight: 10, CPUs: 16, Boot: r.boot, Labels: own, Zones: r.zones, Capacity: []string{controlplane.OnDemand},
		}))
}

func (r *random) nodes(ctx context.Context, kind string, n, cpus int) []*corev1.Node {
	r.Helper()
	if r.boot > 0 {
		all, err := r.cluster.CreateNodes(ctx, r.name, n)
		r.must(err)
		return all
	}
	var all []*corev1.Node
	for i := range n {
		zone := r.zones[i%2]
		made, err := r.cluster.CreateBareNodes(ctx, controlplane.BareNodes{
			Count: 1, Prefix: r.name + "-" + kind, CPUs: cpus, Labels: map[string]string{ownNodes: r.name, corev1.LabelTopologyZone: zone},
		})
		r.must(err)
		all = append(all, made...)
	}
	return all
}

// one picks one of these.
func one[T any](r *random, of ...T) T { return of[r.IntN(len(of))] }

// workload makes something random.
func (r *random) workload(ctx context.Context, graces []int64) {
	r.Helper()
	r.made++
	name := fmt.Sprintf("w%d", r.made)
	kind := one(r, "deployment", "deployment", "deployment", "deployment", "statefulset", "statefulset", "job", "bare", "replicaset")
	n := int32(1 + r.IntN(6))
	template := r.template(name, kind, graces)
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	var err error
	switch kind {
	case "deployment":
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
			Replicas: &n, Selector: selector, Template: template, MinReadySeconds: one[int32](r, 0, 0, 0, 3),
		}}
		switch r.IntN(6) {
		case 0:
			d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
		case 1:
			zero, some := intstr.FromInt32(0), intstr.FromInt32(1)
			d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &zero, MaxUnavailable: &some}}
		case 2:
			two := intstr.FromInt32(2)
			d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &two}}
		}
		_, err = r.cluster.Client.AppsV1().Deployments(r.name).Create(ctx, d, metav1.CreateOptions{})
	case "replicaset":
		_, err = r.cluster.Client.AppsV1().ReplicaSets(r.name).Create(ctx, &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.ReplicaSetSpec{
			Replicas: &n, Selector: selector, Template: template,
		}}, metav1.CreateOptions{})
	case "statefulset":
		_, err = r.cluster.Client.AppsV1().StatefulSets(r.name).Create(ctx, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.StatefulSetSpec{
			Replicas: &n, Selector: selector, Template: template, ServiceName: name,
			PodManagementPolicy: one(r, appsv1.ParallelPodManagement, appsv1.OrderedReadyPodManagement),
		}}, metav1.CreateOptions{})
	case "job":
		template.Spec.RestartPolicy = corev1.RestartPolicyNever
		_, err = r.cluster.Client.BatchV1().Jobs(r.name).Create(ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{
			Parallelism: &n, Completions: &n, Template: template,
		}}, metav1.CreateOptions{})
	case "bare":
		n = 1
		_, err = r.cluster.Client.CoreV1().Pods(r.name).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: template.Labels, Annotations: template.Annotations}, Spec: template.Spec,
		}, metav1.CreateOptions{})
	}
	r.must(err)
	if template.Labels["never"] == "" {
		r.pods += int(n)
	} else {
		r.never = true
	}
	r.budgets(ctx, name, kind, int(n))
}

// template is a random pod.
func (r *random) template(name, kind string, graces []int64) corev1.PodTemplateSpec {
	r.Helper()
	ready := time.Duration(1+r.IntN(15)) * time.Second
	behaviour := controlplane.Behaviour{ReadyAfter: &ready, StopAfter: &r.stop}
	labels := map[string]string{"app": name}
	if r.IntN(20) == 0 {
		behaviour.NeverReady, labels["never"] = true, "ready"
	}
	annotations := behaviour.Annotations()
	switch r.IntN(10) {
	case 0:
		maps.Copy(annotations, map[string]string{"karpenter.sh/do-not-disrupt": one(r, "true", "2m", "1h")})
	case 1:
		maps.Copy(annotations, map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"})
	case 2, 3:
		maps.Copy(annotations, map[string]string{"spot-handler/blocked-pods": one(r, "leave", "delete")})
	}
	grace := one(r, graces...)
	spec := corev1.PodSpec{
		TerminationGracePeriodSeconds: &grace, NodeSelector: map[string]string{ownNodes: r.name},
		Containers: []corev1.Container{{Name: "app", Image: "fake", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(one(r, "200m", "500m", "1")), corev1.ResourceMemory: resource.MustParse("64Mi"),
		}}}},
	}
	own := &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	kinds := 12
	if r.boot > 0 { // Karpenter makes nodes until nothing is spread or kept apart in vain
		kinds = 10
	}
	switch r.IntN(kinds) + 12 - kinds {
	case 0:
		spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: one(r, corev1.LabelHostname, corev1.LabelTopologyZone), WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: own,
		}}
	case 1:
		spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: one(r, corev1.LabelHostname, corev1.LabelTopologyZone), LabelSelector: own},
		}}}
	case 2:
		spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: r.zones[:1]},
			}}},
		}}}
	case 3:
		spec.Tolerations = []corev1.Toleration{{Key: interruption.TaintKey, Operator: corev1.TolerationOpExists}}
	case 4:
		spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
	case 5:
		claim := r.name + "-" + name
		r.must(r.cluster.CreateClaim(r.Context(), r.name, claim, one(r, corev1.ReadWriteOnce, corev1.ReadWriteMany)))
		controlplane.Mount(&spec, claim)
	}
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations}, Spec: spec}
}

// budgets gives a workload none, one or, rarely, two.
func (r *random) budgets(ctx context.Context, name, kind string, n int) {
	r.Helper()
	some := 0
	switch r.IntN(10) {
	case 0, 1, 2, 3, 4:
		some = 1
	case 5:
		some = 2
	}
	for i := range some {
		b := &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", name, i)},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}},
		}
		v := one(r, intstr.FromInt32(0), intstr.FromInt32(1), intstr.FromInt32(1), intstr.FromInt32(2), intstr.FromString("30%"))
		if least := r.IntN(3) == 0 || kind == "bare"; least {
			v = one(r, intstr.FromInt32(int32(n)), intstr.FromInt32(int32(max(0, n-1))), intstr.FromInt32(1))
			b.Spec.MinAvailable = &v
		} else {
			b.Spec.MaxUnavailable = &v
		}
		if r.IntN(3) == 0 {
			always := policyv1.AlwaysAllow
			b.Spec.UnhealthyPodEvictionPolicy = &always
		}
		_, err := r.cluster.Client.PolicyV1().PodDisruptionBudgets(r.name).Create(ctx, b, metav1.CreateOptions{})
		r.must(err)
	}
}

func (r *random) must(err error) {
	r.Helper()
	if err != nil {
		r.Error(err)
		runtime.Goexit() // clusters are made side by side
	}
}
