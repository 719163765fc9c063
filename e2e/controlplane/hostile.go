package controlplane

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Hostile describes what a tenant with the role edit in one namespace writes to harm those who
// read it: objects about as large as the API server takes, of every kind that the daemon reads.
type Hostile struct {
	Namespace string
	Count     int      // of each kind
	Bytes     int      // of each object, as JSON; 1.3 MB by default
	Kinds     []string // as HostileKinds names them; all by default

	// Nodes are those on which the pods are, by turns. Without any there are neither pods nor Deployments.
	Nodes []*corev1.Node

	// Client is the tenant's; an administrator's by default.
	Client kubernetes.Interface
}

// bulk is what makes an object large. Each tries another place: fields that nobody reads, as many
// small values or as one long one, and fields that have to be read.
type bulk struct {
	labels      map[string]string
	container   corev1.Container
	tolerations []corev1.Toleration
	in          []string // of a selector
}

func newBulk(i, bytes int) bulk {
	b := bulk{labels: map[string]string{"app": fmt.Sprint("hostile-", i)}, container: corev1.Container{Name: "app", Image: "fake"}}
	// What the API server validates one by one are as few as possible: it takes seconds for each object
	// as it is.
	switch {
	case i == 0: // the worst for whoever decodes it into maps
		b.container.Env = slices.Repeat([]corev1.EnvVar{{Name: "e"}}, bytes/4/len(`{"name":"e"},`))
	case i%4 == 0:
		b.container.Args = slices.Repeat([]string{"a"}, bytes/len(`"a",`))
	case i%4 == 1:
		b.container.Env = []corev1.EnvVar{{Name: "e", Value: strings.Repeat("<\"\\", bytes/8)}}
	case i%4 == 2:
		for j := range bytes / 400 { // with what the API server notes of each as managed
			b.labels[fmt.Sprintf("l%062d", j)] = fmt.Sprintf("v%062d", j)
		}
	default:
		for j := range bytes / 66 {
			b.in = append(b.in, fmt.Sprintf("v%062d", j))
		}
		b.tolerations = slices.Repeat([]corev1.Toleration{{Key: strings.Repeat("k", 63), Operator: corev1.TolerationOpExists}}, bytes/2/96)
	}
	return b
}

func (b bulk) selector() *metav1.LabelSelector {
	s := &metav1.LabelSelector{MatchLabels: map[string]string{"app": b.labels["app"]}}
	if len(b.in) > 0 {
		s.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "other", Operator: metav1.LabelSelectorOpNotIn, Values: b.in}}
	}
	return s
}

func (b bulk) pod() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: b.labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{b.container}, Tolerations: b.tolerations},
	}
}

// hostileKinds make one object each. Those that make pods make none, but for the Deployments.
var hostileKinds = map[string]func(ctx context.Context, h Hostile, i int, meta metav1.ObjectMeta, b bulk) error{
	"resourcequotas": func(ctx context.Context, h Hostile, _ int, meta metav1.ObjectMeta, _ bulk) error {
		quota := &corev1.ResourceQuota{ObjectMeta: meta, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/secrets": resource.MustParse("100000")}}}
		_, err := h.Client.CoreV1().ResourceQuotas(h.Namespace).Create(ctx, quota, metav1.CreateOptions{})
		return err
	},
	"persistentvolumeclaims": func(ctx context.Context, h Hostile, _ int, meta metav1.ObjectMeta, _ bulk) error {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: meta, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		}}
		_, err := h.Client.CoreV1().PersistentVolumeClaims(h.Namespace).Create(ctx, claim, metav1.CreateOptions{})
		return err
	},
	"poddisruptionbudgets": func(ctx context.Context, h Hostile, _ int, meta metav1.ObjectMeta, b bulk) error {
		none := intstr.FromInt32(0)
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: meta, Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &none, Selector: b.selector()}}
		_, err := h.Client.PolicyV1().PodDisruptionBudgets(h.Namespace).Create(ctx, budget, metav1.CreateOptions{})
		return err
	},
	"replicasets": func(ctx context.Context, h Hostile, _ int, meta metav1.ObjectMeta, b bulk) error {
		set := &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Replicas: new(int32), Selector: b.selector(), Template: b.pod()}}
		_, err := h.Client.AppsV1().ReplicaSets(h.Namespace).Create(ctx, set, metav1.CreateOptions{})
		return err
	},
	"daemonsets": func(ctx context.Context, h Hostile, _ int, meta metav1.ObjectMeta, b bulk) error {
		set := &appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: b.selector(), Template: b.pod()}}
		set.Spec.Template.Spec.NodeSelector = map[string]string{"no": "node"}
		_, err := h.Client.AppsV1().DaemonSets(h.Namespace).Create(ctx, set, metav1.CreateOptions{})
		return err
	},
	"deployments": func(ctx context.Context, h Hostile, i int, meta metav1.ObjectMeta, b bulk) error {
		one, template := int32(1), b.pod()
		template.Spec.NodeName = h.Nodes[i%len(h.Nodes)].Name
		deployment := &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: &one, Selector: b.selector(), Template: template}}
		_, err := h.Client.AppsV1().Deployments(h.Namespace).Create(ctx, deployment, metav1.CreateOptions{})
		return err
	},
	"pods": func(ctx context.Context, h Hostile, i int, meta metav1.ObjectMeta, b bulk) error {
		pod := &corev1.Pod{ObjectMeta: meta, Spec: b.pod().Spec}
		pod.Spec.NodeName = h.Nodes[i%len(h.Nodes)].Name
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: meta.Name},
		}}}
		_, err := h.Client.CoreV1().Pods(h.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	},
}

// HostileKinds are the kinds of objects of Hostile.
var HostileKinds = []string{"resourcequotas", "persistentvolumeclaims", "poddisruptionbudgets", "replicasets", "daemonsets", "deployments", "pods"}

// CreateHostile writes the objects. Whatever is larger than the API server takes is written
// smaller.
func (c *Cluster) CreateHostile(ctx context.Context, h Hostile) error {
	if h.Client == nil {
		quiet := c.RESTConfig()
		quiet.WarningHandler = rest.NoWarnings{} // a hundred thousand for some of the objects
		var err error
		if h.Client, err = kubernetes.NewForConfig(quiet); err != nil {
			return fmt.Errorf("connect the hostile tenant: %w", err)
		}
	}
	if len(h.Kinds) == 0 {
		h.Kinds = HostileKinds
	}
	if err := c.CreateNamespace(ctx, h.Namespace); err != nil {
		return err
	}
	for _, kind := range h.Kinds {
		if len(h.Nodes) == 0 && (kind == "pods" || kind == "deployments") {
			continue
		}
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(4) // the API server has several copies of each
		for i := range h.Count {
			g.Go(func() error { return h.create(ctx, kind, i) })
		}
		if err := g.Wait(); err != nil {
			return err
		}
	}
	return nil
}

func (h Hostile) create(ctx context.Context, kind string, i int) error {
	for bytes := cmp.Or(h.Bytes, 1_300_000); ; bytes = bytes * 8 / 10 {
		b := newBulk(i, bytes)
		if kind == "persistentvolumeclaims" || kind == "resourcequotas" { // nothing else of them has no bound
			b = newBulk(2, bytes)
		}
		meta := metav1.ObjectMeta{Name: fmt.Sprint("hostile-", i), Labels: b.labels}
		if err := hostileKinds[kind](ctx, h, i, meta, b); err == nil || apierrors.IsAlreadyExists(err) {
			return nil
		} else if bytes < 1000 || !apierrors.IsRequestEntityTooLargeError(err) && !strings.Contains(err.Error(), "too large") {
			return fmt.Errorf("create %s %d of %d bytes: %w", kind, i, bytes, err)
		}
	}
}
