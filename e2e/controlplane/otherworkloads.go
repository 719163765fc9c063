package controlplane

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RunStatefulSet creates a StatefulSet. Its pods and budget are described like a
// Deployment's; it ignores what only Deployments have (MaxSurge, MaxUnavailable, Change).
// Its pods are made and replaced without waiting for each other.
func (c *Cluster) RunStatefulSet(ctx context.Context, spec DeploymentSpec) (*appsv1.StatefulSet, error) {
	template, err := c.prepare(ctx, spec)
	if err != nil {
		return nil, err
	}
	replicas := int32(spec.Replicas)
	set := &appsv1.StatefulSet{
		ObjectMeta: spec.meta(),
		Spec: appsv1.StatefulSetSpec{
			Replicas:            &replicas,
			ServiceName:         spec.Name,
			MinReadySeconds:     spec.MinReadySeconds,
			PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector:            &metav1.LabelSelector{MatchLabels: app(spec.Name)},
			Template:            template,
		},
	}
	return set, Create(ctx, c.Client, set)
}

// RunReplicaSet creates a ReplicaSet that no Deployment owns, see RunStatefulSet.
func (c *Cluster) RunReplicaSet(ctx context.Context, spec DeploymentSpec) (*appsv1.ReplicaSet, error) {
	template, err := c.prepare(ctx, spec)
	if err != nil {
		return nil, err
	}
	replicas := int32(spec.Replicas)
	set := &appsv1.ReplicaSet{
		ObjectMeta: spec.meta(),
		Spec: appsv1.ReplicaSetSpec{
			Replicas:        &replicas,
			MinReadySeconds: spec.MinReadySeconds,
			Selector:        &metav1.LabelSelector{MatchLabels: app(spec.Name)},
			Template:        template,
		},
	}
	return set, Create(ctx, c.Client, set)
}

// RunJob creates a Job that runs as many pods at once as the spec has replicas, see
// RunStatefulSet. Change is for what else a Job has. Its pods are not restarted.
func (c *Cluster) RunJob(ctx context.Context, spec DeploymentSpec, change func(job *batchv1.Job)) (*batchv1.Job, error) {
	template, err := c.prepare(ctx, spec)
	if err != nil {
		return nil, err
	}
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	replicas := int32(spec.Replicas)
	job := &batchv1.Job{
		ObjectMeta: spec.meta(),
		Spec:       batchv1.JobSpec{Parallelism: &replicas, Completions: &replicas, Template: template},
	}
	if change != nil {
		change(job)
	}
	return job, Create(ctx, c.Client, job)
}

// prepare makes the namespace and the budget of a workload, and its pod template.
func (c *Cluster) prepare(ctx context.Context, spec DeploymentSpec) (corev1.PodTemplateSpec, error) {
	if err := c.CreateNamespace(ctx, spec.meta().Namespace); err != nil {
		return corev1.PodTemplateSpec{}, err
	}
	if err := c.createBudget(ctx, spec); err != nil {
		return corev1.PodTemplateSpec{}, err
	}
	return podTemplate(spec)
}

// Announce makes an installation of spot-handler as commands find it, with the arguments of its
// program: a Deployment, whose pod fits on no node, and the ClusterRoleBinding that names its account.
// It returns once the scheduler has had a look.
func (c *Cluster) Announce(ctx context.Context, namespace, account string, args ...string) error {
	if err := c.CreateNamespace(ctx, namespace); err != nil {
		return err
	}
	labels := map[string]string{"app.kubernetes.io/name": "spot-handler", "app.kubernetes.io/component": "queue"}
	err := Create(ctx, c.Client, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}})
	if err != nil && !apierrors.IsAlreadyExists(err) { // without it there is no pod
		return err
	}
	err = Create(ctx, c.Client, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "announced-" + namespace, Labels: labels},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "none"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}},
	})
	if err != nil {
		return err
	}
	daemon := Daemon(account, labels, args...)
	daemon.Namespace = namespace
	if err := Create(ctx, c.Client, daemon); err != nil {
		return err
	}
	_, err = c.WaitPods(ctx, namespace, "app.kubernetes.io/name=spot-handler", func(pods []*corev1.Pod) bool {
		return len(pods) == 1 && len(pods[0].Status.Conditions) > 0
	})
	return err
}

// Daemon is the Deployment that Announce makes.
func Daemon(account string, labels map[string]string, args ...string) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "spot-handler", Labels: labels}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	d.Spec.Template.Labels = labels
	d.Spec.Template.Spec = corev1.PodSpec{
		ServiceAccountName: account, NodeSelector: map[string]string{"no": "where"},
		Containers: []corev1.Container{{Name: "spot-handler", Image: "none", Args: args}},
	}
	return d
}
