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

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"spot-handler/e2e/controlplane"
)

// Tenant has the built-in role edit in one namespace, and writes what the API server takes: the
// largest and oddest objects of every kind that the daemon or a command reads. Its fields are set
// before it writes; its methods are safe for concurrent use.
type Tenant struct {
	Namespace string
	Nodes     []string     // that are interrupted; its pods are on them
	Canary    string       // the file that a hostile name has made where a shell has run it
	Hanging   string       // port of receivers that never answer
	Victims   []corev1.Pod // of others, about which it writes Events

	// Plain has large objects be one long text of escape characters, beside as much in small pieces
	// as is kept of an object, and pods stay as long as they can. The API server takes a second for each
	// of the others, and much memory.
	Plain bool

	client   kubernetes.Interface // with the tenant's permissions
	operator kubernetes.Interface // for what the role does not let it write
	seed     uint64

	mu      sync.Mutex
	written map[string]int
	refused map[string]string
}

// NewTenant gives the namespace, which it creates, to a tenant.
func NewTenant(ctx context.Context, cluster *controlplane.Cluster, namespace string, seed uint64) (*Tenant, error) {
	if err := cluster.CreateNamespace(ctx, namespace); err != nil {
		return nil, err
	}
	_, err := cluster.Client.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "tenant"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "default", Namespace: namespace}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("make somebody a tenant: %w", err)
	}
	config, err := cluster.ServiceAccountConfig(ctx, namespace, "default", "")
	if err != nil {
		return nil, err
	}
	config.WarningHandler = rest.NoWarnings{} // a hundred thousand for some of the objects
	config.ContentType, config.QPS = "application/vnd.kubernetes.protobuf", -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Tenant{Namespace: namespace, client: client, operator: cluster.Client, seed: seed, written: map[string]int{}, refused: map[string]string{}}, nil
}

// writer writes one object with the name.
type writer func(t *Tenant, ctx context.Context, d dice, name string) error

// large are kinds of which each object is about as large as the API server takes it.
var large = map[string]writer{
	"ReplicaSet": func(t *Tenant, ctx context.Context, d dice, name string) error {
		set := &appsv1.ReplicaSet{ObjectMeta: d.meta(name), Spec: appsv1.ReplicaSetSpec{Replicas: new(int32), Selector: ours, Template: d.template(nil)}}
		_, err := t.client.AppsV1().ReplicaSets(t.Namespace).Create(ctx, set, metav1.CreateOptions{})
		return err
	},
	"Deployment": func(t *Tenant, ctx context.Context, d dice, name string) error {
		one, meta := int32(1), d.meta(name)
		template := d.template(&meta)
		template.Labels["app"] = name
		d.unselected(&template.ObjectMeta)
		template.Spec.Affinity, template.Spec.NodeSelector = nil, map[string]string{corev1.LabelHostname: t.Nodes[d.IntN(len(t.Nodes))]}
		deployment := &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
			Replicas: &one, Paused: !d.plain && d.IntN(2) == 0, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}, Template: template,
		}}
		d.hold(&deployment.Spec.Template.ObjectMeta)
		if d.plain { // its pod is not surged either
			deployment.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
		}
		_, err := t.client.AppsV1().Deployments(t.Namespace).Create(ctx, deployment, metav1.CreateOptions{})
		return err
	},
	"StatefulSet": func(t *Tenant, ctx context.Context, d dice, name string) error {
		set := &appsv1.StatefulSet{ObjectMeta: d.meta(name), Spec: appsv1.StatefulSetSpec{Replicas: new(int32), ServiceName: "none", Selector: ours}}
		set.Spec.Template = d.template(&set.ObjectMeta)
		_, err := t.client.AppsV1().StatefulSets(t.Namespace).Create(ctx, set, metav1.CreateOptions{})
		return err
	},
	"DaemonSet": func(t *Tenant, ctx context.Context, d dice, name string) error {
		set := &appsv1.DaemonSet{ObjectMeta: d.meta(name), Spec: appsv1.DaemonSetSpec{Selector: ours}}
		set.Spec.Template = d.template(&set.ObjectMeta)
		set.Spec.Template.Spec.NodeSelector = map[string]string{"no-such-node": "x"}
		_, err := t.client.AppsV1().DaemonSets(t.Namespace).Create(ctx, set, metav1.CreateOptions{})
		return err
	},
	"Pod": func(t *Tenant, ctx context.Context, d dice, name string) error {
		return t.pod(ctx, d, name, d.size, t.Nodes...)
	},
	"PodDisruptionBudget": func(t *Tenant, ctx context.Context, d dice, name string) error {
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: d.meta(name), Spec: policyv1.PodDisruptionBudgetSpec{Selector: d.selector()}}
		if d.plain {
			d.fill(&budget.ObjectMeta, d.size)
		} else { // the API server reads it for each eviction in the namespace
			d.label(&budget.ObjectMeta, d.size/10)
		}
		_, err := t.client.PolicyV1().PodDisruptionBudgets(t.Namespace).Create(ctx, budget, metav1.CreateOptions{})
		return err
	},
	"PersistentVolumeClaim": func(t *Tenant, ctx context.Context, d dice, name string) error {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: d.meta(name)}
		d.fill(&claim.ObjectMeta, d.size)
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{pick(d, corev1.ReadWriteOnce, corev1.ReadWriteMany)}
		claim.Spec.VolumeName = pick(d, "", "no-such-volume")
		claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(pick(d, "1", "9E", "1m"))}
		_, err := t.client.CoreV1().PersistentVolumeClaims(t.Namespace).Create(ctx, claim, metav1.CreateOptions{})
		return err
	},
	"Service": func(t *Tenant, ctx context.Context, d dice, name string) error {
		class, none := "service.k8s.aws/nlb", false
		service := &corev1.Service{ObjectMeta: d.meta(name), Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, AllocateLoadBalancerNodePorts: &none, Ports: []corev1.ServicePort{{Name: "p", Port: 1}},
		}}
		service.Annotations["service.beta.kubernetes.io/aws-load-balancer-target-group-attributes"] = "deregistration_delay.timeout_seconds=" + pick(d, "3600", "-1", d.odd())
		if d.plain || d.IntN(2) == 0 {
			d.fill(&service.ObjectMeta, d.size)
		} else {
			service.Spec.Selector = ours.MatchLabels
			for i := range d.size / 90 {
				service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(2 + i)})
			}
		}
		_, err := t.client.CoreV1().Services(t.Namespace).Create(ctx, service, metav1.CreateOptions{})
		return err
	},
	"Ingress": func(t *Tenant, ctx context.Context, d dice, name string) error {
		class := "alb"
		ingress := &networkingv1.Ingress{ObjectMeta: d.meta(name), Spec: networkingv1.IngressSpec{IngressClassName: &class}}
		prefix := networkingv1.PathTypePrefix
		if d.plain {
			d.fill(&ingress.ObjectMeta, d.size*9/10)
			d.size /= 10
		}
		for i := range d.size / 190 {
			ingress.Spec.Rules = append(ingress.Spec.Rules, networkingv1.IngressRule{Host: fmt.Sprintf("h%d.example.com", i), IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
				Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: &prefix, Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
					Name: fmt.Sprint("service-", d.IntN(1000)), Port: networkingv1.ServiceBackendPort{Number: 1},
				}}}},
			}}})
		}
		_, err := t.client.NetworkingV1().Ingresses(t.Namespace).Create(ctx, ingress, metav1.CreateOptions{})
		return err
	},
	"Event": func(t *Tenant, ctx context.Context, d dice, name string) error {
		return t.event(ctx, d, name, d.size*8/10)
	},
	"ResourceQuota": func(t *Tenant, ctx context.Context, d dice, name string) error { // which edit only reads
		quota := &corev1.ResourceQuota{ObjectMeta: d.meta(name), Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{}}}
		for i := range mostSelected {
			quota.Spec.Hard[corev1.ResourceName(fmt.Sprintf("count/r%05d.hostile.example.com", i))] = resource.MustParse("1")
		}
		d.fill(&quota.ObjectMeta, d.size*8/10)
		_, err := t.operator.CoreV1().ResourceQuotas(t.Namespace).Create(ctx, quota, metav1.CreateOptions{})
		return err
	},
}

// small are kinds of which the number matters, or what is in them.
var small = map[string]writer{
	"small Pod": func(t *Tenant, ctx context.Context, d dice, name string) error {
		return t.pod(ctx, d, name, 0, t.Nodes...)
	},
	"small Event": func(t *Tenant, ctx context.Context, d dice, name string) error {
		return t.event(ctx, d, name, pick(d, 1, 1000))
	},
	"decoy": func(t *Tenant, ctx context.Context, d dice, name string) error { return t.decoy(ctx, d, name) },
	"Job": func(t *Tenant, ctx context.Context, d dice, name string) error {
		never, template := true, d.template(nil)
		template.Spec.RestartPolicy = corev1.RestartPolicyNever
		_, err := t.client.BatchV1().Jobs(t.Namespace).Create(ctx, &batchv1.Job{ObjectMeta: d.meta(name), Spec: batchv1.JobSpec{Suspend: &never, Template: template}}, metav1.CreateOptions{})
		return err
	},
	"small Deployment": func(t *Tenant, ctx context.Context, d dice, name string) error { // whose pod is surged
		d.size, d.plain = 0, true
		one, template := int32(1), d.template(nil)
		template.Annotations, template.Labels["app"] = nil, name
		template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: t.Nodes[d.IntN(len(t.Nodes))]}
		_, err := t.client.AppsV1().Deployments(t.Namespace).Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
			Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}, Template: template,
		}}, metav1.CreateOptions{})
		return err
	},
	"ConfigMap": func(t *Tenant, ctx context.Context, d dice, name string) error {
		text := map[string]string{"a": strings.Repeat(pick(d, "\x1b[31m", "x\r\n", "\x00"), 20_000), "b": strings.Repeat("x", 700_000)}
		_, err := t.client.CoreV1().ConfigMaps(t.Namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: d.meta(name), Data: text}, metav1.CreateOptions{})
		return err
	},
	"HorizontalPodAutoscaler": func(t *Tenant, ctx context.Context, d dice, name string) error {
		_, err := t.client.AutoscalingV2().HorizontalPodAutoscalers(t.Namespace).Create(ctx, &autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: d.meta(name), Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MaxReplicas: 1, ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "none"}},
		}, metav1.CreateOptions{})
		return err
	},
}

// Large are the kinds of objects that the daemon or a command reads, and that can be large.
func Large() []string { return slices.Sorted(maps.Keys(large)) }

var ours = &metav1.LabelSelector{MatchLabels: map[string]string{"hostile": "0"}}

func (d dice) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: maps.Clone(ours.MatchLabels), Annotations: d.annotations(), OwnerReferences: d.owners(d.IntN(3))}
}

// template is large. Of a plain object the metadata can be instead, as kube-controller-manager writes
// templates as JSON whenever it looks at them, as at all DaemonSets when a node changes.
func (d dice) template(instead *metav1.ObjectMeta) corev1.PodTemplateSpec {
	p := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(ours.MatchLabels), Annotations: d.annotations()}}
	p.Spec.Containers = []corev1.Container{{Name: "app", Image: "fake"}}
	if d.plain && instead != nil {
		d.fill(instead, d.size)
		d.size = 0
	}
	d.swell(&p.ObjectMeta, &p.Spec, d.size)
	return p
}

func (d dice) text(size int) string {
	if d.plain {
		return strings.Repeat("\x1b", size/sixfold)
	}
	return strings.Repeat("x", size)
}

// event is about one of the tenant's pods, or of somebody else's, and says that it is ours.
func (t *Tenant) event(ctx context.Context, d dice, name string, size int) error {
	about := corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: t.Namespace, Name: d.odd(), UID: types.UID(d.odd())}
	if len(t.Victims) > 0 && d.IntN(2) == 0 {
		p := t.Victims[d.IntN(len(t.Victims))]
		about.Name, about.UID = p.Name, p.UID
	}
	now := metav1.Now()
	_, err := t.client.CoreV1().Events(t.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: name, Annotations: map[string]string{"spot-handler/node": pick(d, t.Nodes...)}},
		InvolvedObject: about, Type: "Warning", Reason: pick(d, "EvictionBlocked", "PodLeft", d.odd()), Message: d.odd() + d.text(size),
		ReportingController: "spot-handler", ReportingInstance: "x", Source: corev1.EventSource{Component: d.odd(), Host: d.odd()},
		FirstTimestamp: now, LastTimestamp: now, Count: 1 << 30,
	}, metav1.CreateOptions{})
	return err
}

// pod is one on a node that is interrupted, or on none; with receivers that hang, and peers.
func (t *Tenant) pod(ctx context.Context, d dice, name string, size int, nodes ...string) error {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: d.gangLabels(), Annotations: d.annotations(), OwnerReferences: d.owners(d.IntN(3))}}
	p.Labels["hostile"] = fmt.Sprint(d.IntN(90))
	p.Annotations["e2e.spot-handler/ip"] = "127.0.0.1"
	p.Annotations["spot-handler/notice"] = pick(d, t.Hanging, t.Hanging+"/never", d.odd())
	p.Spec.Containers = []corev1.Container{{Name: "app", Image: "fake"}}
	p.Spec.NodeName = pick(d, nodes...)
	if size > 0 {
		d.swell(&p.ObjectMeta, &p.Spec, size/2) // kwok writes its status beside it
	}
	d.hold(&p.ObjectMeta)
	d.unselected(&p.ObjectMeta)
	_, err := t.client.CoreV1().Pods(t.Namespace).Create(ctx, p, metav1.CreateOptions{})
	return err
}

// hold has a plain pod stay as long as it can, which is not read where annotations are longer than what is
// read of them.
func (d dice) hold(of *metav1.ObjectMeta) {
	if d.plain {
		dropLong(of)
		of.Annotations["spot-handler/when"] = "last"
	}
}

// unselected makes sure that no large object selects a plain pod. Whenever a selected pod changes,
// kube-controller-manager goes through all that select it: with 200 StatefulSets, for half a minute.
func (d dice) unselected(of *metav1.ObjectMeta) {
	if d.plain {
		delete(of.Labels, "hostile")
	}
}

// decoy is a pod that says it is spot-handler.
func (t *Tenant) decoy(ctx context.Context, d dice, name string) error {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: d.annotations(), Labels: map[string]string{
		"app.kubernetes.io/name": "spot-handler", "app.kubernetes.io/instance": "spot-handler", "app.kubernetes.io/component": pick(d, "queue", "imds", "drain"),
		"helm.sh/chart": "spot-handler-1.0.0",
	}}}
	p.Spec.Containers = []corev1.Container{{Name: "spot-handler", Image: "registry.example.com/spot-handler:1", Args: []string{
		pick(d, "queue", "drain", "imds"), "--pod-namespace=kube-system" + pick(d, "", d.odd()), "--queue-url=" + d.odd(),
		"--webhook-url=http://127.0.0.1:1/" + d.odd(), "--webhook-template=" + d.odd(), "--webhook-headers-file=" + pick(d, "/dev/zero", "/dev/stdin", d.odd()),
		"--fallback-nodepool=a=" + d.odd(), "--margin=" + pick(d, "1h", "-1s", d.odd()), "--managed-nodes=" + d.odd(),
	}}}
	p.Spec.NodeName = pick(d, "", t.Nodes[d.IntN(len(t.Nodes))])
	_, err := t.client.CoreV1().Pods(t.Namespace).Create(ctx, p, metav1.CreateOptions{})
	return err
}

// write writes one object of the kind, smaller if it is too large. What the API server refuses is
// part of what is tried.
func (t *Tenant) write(ctx context.Context, kind string, number int) {
	put := large[kind]
	if put == nil {
		put = small[kind]
	}
	name := fmt.Sprintf("%s-%d", strings.ToLower(strings.ReplaceAll(kind, " ", "-")), number)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var err error
	for size := largest; size > largest/2; size = size * 9 / 10 {
		err = put(t, ctx, dice{rand.New(rand.NewPCG(t.seed, uint64(number))), t.Canary, size, t.Plain}, name)
		if err == nil || !apierrors.IsRequestEntityTooLargeError(err) && !strings.Contains(err.Error(), "too large") {
			break
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		text := err.Error()
		t.refused[kind] = text[:min(len(text), 300)]
		return
	}
	if err == nil {
		t.written[kind]++
	}
}

// Fill writes as many of each kind, several at a time.
func (t *Tenant) Fill(ctx context.Context, each map[string]int) {
	var writes errgroup.Group
	writes.SetLimit(4)
	for i, kind := range slices.Concat(Large(), slices.Sorted(maps.Keys(small))) {
		for j := range each[kind] {
			this := 1000*i + j
			writes.Go(func() error {
				t.write(ctx, kind, this)
				return nil
			})
		}
	}
	_ = writes.Wait()
}

// GoOn writes more, of any kind, one after the other, until ctx ends.
func (t *Tenant) GoOn(ctx context.Context, every time.Duration) {
	kinds := slices.Concat(Large(), slices.Sorted(maps.Keys(small)))
	d := rand.New(rand.NewPCG(t.seed, 1<<62))
	for number := 1_000_000; ctx.Err() == nil; number++ {
		t.write(ctx, kinds[d.IntN(len(kinds))], number)
		select {
		case <-ctx.Done():
		case <-time.After(every):
		}
	}
}

// Written is how many objects of each kind the API server has taken.
func (t *Tenant) Written() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.written)
}

func (t *Tenant) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return fmt.Sprintf("the tenant wrote %v; refused, the last of each kind: %q", t.written, t.refused)
}
