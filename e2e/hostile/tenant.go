package hostile

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"spot-handler/e2e/controlplane"
)

// tenantNamespace is where the tenant has the built-in role edit.
const tenantNamespace = "tenant"

// tenant writes what the API server takes. Its methods are safe for concurrent use.
type tenant struct {
	client   kubernetes.Interface // with the rights of the tenant
	operator kubernetes.Interface // for what the role does not let it write
	seed     uint64
	canary   string
	hanging  string   // port of receivers that never answer
	nodes    []string // that are interrupted
	victims  []corev1.Pod

	mu      sync.Mutex
	written map[string]int
	refused map[string]string
}

func newTenant(ctx context.Context, cluster *controlplane.Cluster, seed uint64) (*tenant, error) {
	if err := cluster.CreateNamespace(ctx, tenantNamespace); err != nil {
		return nil, err
	}
	_, err := cluster.Client.RbacV1().RoleBindings(tenantNamespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "tenant"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "default", Namespace: tenantNamespace}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("make somebody a tenant: %w", err)
	}
	config, err := cluster.ServiceAccountConfig(ctx, tenantNamespace, "default", "")
	if err != nil {
		return nil, err
	}
	config.WarningHandler = rest.NoWarnings{}
	config.ContentType, config.QPS = "application/vnd.kubernetes.protobuf", -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &tenant{client: client, operator: cluster.Client, seed: seed, written: map[string]int{}, refused: map[string]string{}}, nil
}

// kinds are what the tenant writes, large or odd, each with a name of its own.
func (t *tenant) kinds() map[string]func(ctx context.Context, d dice, name string) error {
	no, never := int32(0), true
	created := metav1.CreateOptions{}
	apps, batch, core := t.client.AppsV1(), t.client.BatchV1(), t.client.CoreV1()
	labels := map[string]string{"hostile": "0"}
	template := func(d dice) corev1.PodTemplateSpec {
		p := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(labels), Annotations: d.annotations()}}
		p.Spec.Containers = []corev1.Container{{Name: "app", Image: "fake"}}
		d.swell(&p.ObjectMeta, &p.Spec, large)
		return p
	}
	meta := func(d dice, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Labels: maps.Clone(labels), Annotations: d.annotations(), OwnerReferences: d.owners(d.IntN(3))}
	}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	return map[string]func(ctx context.Context, d dice, name string) error{
		"ReplicaSet": func(ctx context.Context, d dice, name string) error {
			_, err := apps.ReplicaSets(tenantNamespace).Create(ctx, &appsv1.ReplicaSet{ObjectMeta: meta(d, name), Spec: appsv1.ReplicaSetSpec{Replicas: &no, Selector: selector, Template: template(d)}}, created)
			return err
		},
		"Deployment": func(ctx context.Context, d dice, name string) error {
			_, err := apps.Deployments(tenantNamespace).Create(ctx, &appsv1.Deployment{ObjectMeta: meta(d, name), Spec: appsv1.DeploymentSpec{Replicas: &no, Paused: d.IntN(2) == 0, Selector: selector, Template: template(d)}}, created)
			return err
		},
		"StatefulSet": func(ctx context.Context, d dice, name string) error {
			_, err := apps.StatefulSets(tenantNamespace).Create(ctx, &appsv1.StatefulSet{ObjectMeta: meta(d, name), Spec: appsv1.StatefulSetSpec{Replicas: &no, ServiceName: "none", Selector: selector, Template: template(d)}}, created)
			return err
		},
		"DaemonSet": func(ctx context.Context, d dice, name string) error {
			p := template(d)
			p.Spec.NodeSelector = map[string]string{"no-such-node": "x"}
			_, err := apps.DaemonSets(tenantNamespace).Create(ctx, &appsv1.DaemonSet{ObjectMeta: meta(d, name), Spec: appsv1.DaemonSetSpec{Selector: selector, Template: p}}, created)
			return err
		},
		"Job": func(ctx context.Context, d dice, name string) error {
			p := template(d)
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			_, err := batch.Jobs(tenantNamespace).Create(ctx, &batchv1.Job{ObjectMeta: meta(d, name), Spec: batchv1.JobSpec{Suspend: &never, Template: p}}, created)
			return err
		},
		"PodDisruptionBudget": func(ctx context.Context, d dice, name string) error {
			_, err := t.client.PolicyV1().PodDisruptionBudgets(tenantNamespace).Create(ctx, &policyv1.PodDisruptionBudget{ObjectMeta: meta(d, name), Spec: policyv1.PodDisruptionBudgetSpec{Selector: d.selector()}}, created)
			return err
		},
		"Pod": func(ctx context.Context, d dice, name string) error {
			return t.pod(ctx, d, name, large)
		},
		"small Pod": func(ctx context.Context, d dice, name string) error {
			return t.pod(ctx, d, name, 0)
		},
		"decoy": func(ctx context.Context, d dice, name string) error { return t.decoy(ctx, d, name) },
		"PersistentVolumeClaim": func(ctx context.Context, d dice, name string) error {
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: meta(d, name)}
			d.swell(&claim.ObjectMeta, &corev1.PodSpec{Containers: make([]corev1.Container, 1)}, large/4)
			claim.Annotations["large"] = strings.Repeat("x", 60_000)
			claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{pick(d, corev1.ReadWriteOnce, corev1.ReadWriteMany)}
			claim.Spec.VolumeName = pick(d, "", "no-such-volume")
			claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(pick(d, "1", "9E", "1m"))}
			_, err := core.PersistentVolumeClaims(tenantNamespace).Create(ctx, claim, created)
			return err
		},
		"ConfigMap": func(ctx context.Context, d dice, name string) error {
			_, err := core.ConfigMaps(tenantNamespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: meta(d, name), Data: map[string]string{"a": strings.Repeat(pick(d, "\x1b[31m", "x\r\n", "\x00"), 20_000), "b": strings.Repeat("x", 700_000)}}, created)
			return err
		},
		"HorizontalPodAutoscaler": func(ctx context.Context, d dice, name string) error {
			_, err := t.client.AutoscalingV2().HorizontalPodAutoscalers(tenantNamespace).Create(ctx, &autoscalingv2.HorizontalPodAutoscaler{
				ObjectMeta: meta(d, name), Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MaxReplicas: 1, ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "none"}},
			}, created)
			return err
		},
		"Event": func(ctx context.Context, d dice, name string) error {
			about := corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: tenantNamespace, Name: d.odd(), UID: types.UID(d.odd())}
			if len(t.victims) > 0 && d.IntN(2) == 0 {
				p := t.victims[d.IntN(len(t.victims))]
				about.Name, about.UID = p.Name, p.UID
			}
			now := metav1.Now()
			_, err := core.Events(tenantNamespace).Create(ctx, &corev1.Event{
				ObjectMeta: metav1.ObjectMeta{Name: name}, InvolvedObject: about, Type: "Warning", Reason: d.odd(), Message: d.odd() + strings.Repeat("x", pick(d, 1, 1000, large)),
				Source: corev1.EventSource{Component: d.odd(), Host: d.odd()}, FirstTimestamp: now, LastTimestamp: now, Count: 1 << 30,
			}, created)
			return err
		},
		"ResourceQuota": func(ctx context.Context, d dice, name string) error { // which edit only reads
			hard := corev1.ResourceList{}
			for i := range large / 400 {
				hard[corev1.ResourceName(fmt.Sprintf("count/r%05d.hostile.example.com", i))] = resource.MustParse("1")
			}
			_, err := t.operator.CoreV1().ResourceQuotas(tenantNamespace).Create(ctx, &corev1.ResourceQuota{ObjectMeta: meta(d, name), Spec: corev1.ResourceQuotaSpec{Hard: hard}}, created)
			return err
		},
	}
}

// pod is one on a node that is interrupted, or on none; with receivers that hang, and peers.
func (t *tenant) pod(ctx context.Context, d dice, name string, size int) error {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: d.gangLabels(), Annotations: d.annotations(), OwnerReferences: d.owners(d.IntN(3))}}
	p.Labels["hostile"] = fmt.Sprint(d.IntN(90))
	p.Annotations["e2e.spot-handler/ip"] = "127.0.0.1"
	p.Annotations["spot-handler/notice"] = pick(d, t.hanging, t.hanging+"/never", d.odd())
	p.Spec.Containers = []corev1.Container{{Name: "app", Image: "fake"}}
	p.Spec.NodeName = t.nodes[d.IntN(len(t.nodes))]
	if size > 0 {
		d.swell(&p.ObjectMeta, &p.Spec, size/2) // kwok writes its status beside it
	}
	_, err := t.client.CoreV1().Pods(tenantNamespace).Create(ctx, p, metav1.CreateOptions{})
	return err
}

// decoy is a pod that says it is spot-handler.
func (t *tenant) decoy(ctx context.Context, d dice, name string) error {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: d.annotations(), Labels: map[string]string{
		"app.kubernetes.io/name": "spot-handler", "app.kubernetes.io/instance": "spot-handler", "app.kubernetes.io/component": pick(d, "queue", "imds", "drain"),
		"helm.sh/chart": "spot-handler-1.0.0",
	}}}
	p.Spec.Containers = []corev1.Container{{Name: "spot-handler", Image: "registry.example.com/spot-handler:1", Args: []string{
		pick(d, "queue", "drain", "imds"), "--lease-namespace=kube-system" + pick(d, "", d.odd()), "--queue-url=" + d.odd(),
		"--webhook-url=http://127.0.0.1:1/" + d.odd(), "--webhook-template=" + d.odd(), "--webhook-headers-file=" + pick(d, "/dev/zero", "/dev/stdin", d.odd()),
		"--fallback-nodepool=a=" + d.odd(), "--margin=" + pick(d, "1h", "-1s", d.odd()), "--node-selector=" + d.odd(),
	}}}
	p.Spec.NodeName = pick(d, "", t.nodes[d.IntN(len(t.nodes))])
	_, err := t.client.CoreV1().Pods(tenantNamespace).Create(ctx, p, metav1.CreateOptions{})
	return err
}

// write writes one object of the kind. What the API server refuses is part of what is tried.
func (t *tenant) write(ctx context.Context, kind string, number int) {
	d := dice{rand.New(rand.NewPCG(t.seed, uint64(number))), t.canary}
	name := fmt.Sprintf("%s-%d", strings.ToLower(strings.ReplaceAll(kind, " ", "-")), number)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err := t.kinds()[kind](ctx, d, name)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		text := err.Error()
		t.refused[kind] = text[:min(len(text), 300)]
		return
	}
	t.written[kind]++
}

// fill writes as many of each kind, several at a time.
func (t *tenant) fill(ctx context.Context, each map[string]int) {
	var wg sync.WaitGroup
	slots, number := make(chan struct{}, 4), 0
	for _, kind := range slices.Sorted(maps.Keys(t.kinds())) {
		n, ok := each[kind]
		if !ok {
			n = each[""]
		}
		for range n {
			number++
			this := number
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				t.write(ctx, kind, this)
			})
		}
	}
	wg.Wait()
}

// goOn writes more, of any kind, one after the other, until ctx ends.
func (t *tenant) goOn(ctx context.Context, every time.Duration) {
	kinds := slices.Sorted(maps.Keys(t.kinds()))
	d := rand.New(rand.NewPCG(t.seed, 1<<62))
	for number := 1_000_000; ctx.Err() == nil; number++ {
		t.write(ctx, kinds[d.IntN(len(kinds))], number)
		select {
		case <-ctx.Done():
		case <-time.After(every):
		}
	}
}

func (t *tenant) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return fmt.Sprintf("the tenant wrote %v; refused, the last of each kind: %q", t.written, t.refused)
}
