package controlplane

import (
	"cmp"
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
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
	set, err := c.Client.AppsV1().StatefulSets(cmp.Or(spec.Namespace, metav1.NamespaceDefault)).Create(ctx, &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: spec.Name},
		Spec: appsv1.StatefulSetSpec{
			Replicas:            &replicas,
			ServiceName:         spec.Name,
			MinReadySeconds:     spec.MinReadySeconds,
			PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector:            &metav1.LabelSelector{MatchLabels: app(spec.Name)},
			Template:            template,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create stateful set %q: %w", spec.Name, err)
	}
	return set, nil
}

// RunReplicaSet creates a ReplicaSet that no Deployment owns, see RunStatefulSet.
func (c *Cluster) RunReplicaSet(ctx context.Context, spec DeploymentSpec) (*appsv1.ReplicaSet, error) {
	template, err := c.prepare(ctx, spec)
	if err != nil {
		return nil, err
	}
	replicas := int32(spec.Replicas)
	set, err := c.Client.AppsV1().ReplicaSets(cmp.Or(spec.Namespace, metav1.NamespaceDefault)).Create(ctx, &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: spec.Name},
		Spec: appsv1.ReplicaSetSpec{
			Replicas:        &replicas,
			MinReadySeconds: spec.MinReadySeconds,
			Selector:        &metav1.LabelSelector{MatchLabels: app(spec.Name)},
			Template:        template,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create replica set %q: %w", spec.Name, err)
	}
	return set, nil
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
		ObjectMeta: metav1.ObjectMeta{Name: spec.Name},
		Spec:       batchv1.JobSpec{Parallelism: &replicas, Completions: &replicas, Template: template},
	}
	if change != nil {
		change(job)
	}
	job, err = c.Client.BatchV1().Jobs(cmp.Or(spec.Namespace, metav1.NamespaceDefault)).Create(ctx, job, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create job %q: %w", spec.Name, err)
	}
	return job, nil
}

// prepare makes the namespace and the budget of a workload, and its pod template.
func (c *Cluster) prepare(ctx context.Context, spec DeploymentSpec) (corev1.PodTemplateSpec, error) {
	if err := c.CreateNamespace(ctx, cmp.Or(spec.Namespace, metav1.NamespaceDefault)); err != nil {
		return corev1.PodTemplateSpec{}, err
	}
	if err := c.createBudget(ctx, spec); err != nil {
		return corev1.PodTemplateSpec{}, err
	}
	return podTemplate(spec)
}
