package memapi

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Object is one of Kubernetes' objects, or one of Karpenter's as unstructured.
type Object interface {
	runtime.Object
	metav1.Object
}

// Kind is a kind of object that the server has.
type Kind struct {
	schema.GroupVersionKind
	Plural     string
	Namespaced bool

	empty  func() Object
	status bool // it has a status subresource
}

func (k *Kind) resource() schema.GroupResource {
	return schema.GroupResource{Group: k.Group, Resource: k.Plural}
}

func kindOf(group, version, name, plural string, namespaced, status bool, empty func() Object) *Kind {
	return &Kind{schema.GroupVersionKind{Group: group, Version: version, Kind: name}, plural, namespaced, empty, status}
}

// builtIn reports whether it is Kubernetes' own, and not defined by a CustomResourceDefinition.
func (k *Kind) builtIn() bool {
	_, custom := k.empty().(*unstructured.Unstructured)
	return !custom
}

// typed makes objects of a Go type.
func typed[T any, P interface {
	*T
	Object
}]() Object {
	return P(new(T))
}

// custom makes objects without a Go type.
func custom() Object { return &unstructured.Unstructured{Object: map[string]any{}} }

// The kinds that spot-handler reads or writes, its commands included, and those whose controllers it meets.
var (
	Nodes       = kindOf("", "v1", "Node", "nodes", false, true, typed[corev1.Node])
	Pods        = kindOf("", "v1", "Pod", "pods", true, true, typed[corev1.Pod])
	Namespaces  = kindOf("", "v1", "Namespace", "namespaces", false, true, typed[corev1.Namespace])
	Claims      = kindOf("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", true, true, typed[corev1.PersistentVolumeClaim])
	Volumes     = kindOf("", "v1", "PersistentVolume", "persistentvolumes", false, true, typed[corev1.PersistentVolume])
	Quotas      = kindOf("", "v1", "ResourceQuota", "resourcequotas", true, true, typed[corev1.ResourceQuota])
	Events      = kindOf("", "v1", "Event", "events", true, false, typed[corev1.Event])
	ConfigMaps  = kindOf("", "v1", "ConfigMap", "configmaps", true, false, typed[corev1.ConfigMap])
	Templates   = kindOf("", "v1", "PodTemplate", "podtemplates", true, false, typed[corev1.PodTemplate])
	Deployments = kindOf("apps", "v1", "Deployment", "deployments", true, true, typed[appsv1.Deployment])
	ReplicaSets = kindOf("apps", "v1", "ReplicaSet", "replicasets", true, true, typed[appsv1.ReplicaSet])
	Stateful    = kindOf("apps", "v1", "StatefulSet", "statefulsets", true, true, typed[appsv1.StatefulSet])
	Daemons     = kindOf("apps", "v1", "DaemonSet", "daemonsets", true, true, typed[appsv1.DaemonSet])
	Jobs        = kindOf("batch", "v1", "Job", "jobs", true, true, typed[batchv1.Job])
	Budgets     = kindOf("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", true, true, typed[policyv1.PodDisruptionBudget])
	Attachments = kindOf("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", false, true, typed[storagev1.VolumeAttachment])
	Leases      = kindOf("coordination.k8s.io", "v1", "Lease", "leases", true, false, typed[coordinationv1.Lease])
	Bindings    = kindOf("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", false, false, typed[rbacv1.ClusterRoleBinding])
	NodePools   = kindOf("karpenter.sh", "v1", "NodePool", "nodepools", false, true, custom)
	NodeClaims  = kindOf("karpenter.sh", "v1", "NodeClaim", "nodeclaims", false, true, custom)
)

var all = []*Kind{
	Nodes, Pods, Namespaces, Claims, Volumes, Quotas, Events, ConfigMaps, Templates, Deployments, ReplicaSets, Stateful, Daemons,
	Jobs, Budgets, Attachments, Leases, Bindings, NodePools, NodeClaims,
}

// fieldsOf are the fields by which objects can be selected.
func fieldsOf(obj Object) fields.Set {
	set := fields.Set{"metadata.name": obj.GetName(), "metadata.namespace": obj.GetNamespace()}
	if pod, ok := obj.(*corev1.Pod); ok {
		set["spec.nodeName"], set["status.phase"] = pod.Spec.NodeName, string(pod.Status.Phase)
	}
	return set
}
