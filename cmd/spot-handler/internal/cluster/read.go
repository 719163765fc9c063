// Package cluster reads a cluster for the commands that judge it as a whole: once, with the
// permissions of the caller, and within bounds, as anybody might have written the objects.
//
// Of each object it keeps what a drain decides by, and what the checks of audit read besides. What
// could not be read is missing, and [Cluster.Unread] says what and why.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
)

// Cluster is what was read. Nothing of it is changed.
type Cluster struct {
	At    time.Time // when it was read
	Nodes []*corev1.Node
	// Pods are those that have not finished; nil if they could not be read.
	Pods    []*corev1.Pod
	Budgets []*policyv1.PodDisruptionBudget
	// Deployments, by name; one that is missing does not exist. They are nil if they could not be read.
	Deployments map[types.NamespacedName]*plan.Deployment
	// Owners are the controllers of pods other than a Deployment's ReplicaSets, by UID.
	Owners map[types.UID]Owner
	// Constraints are those of each namespace.
	Constraints map[string]plan.NamespaceConstraints
	// Shared are the PersistentVolumeClaims that several nodes can use at the same time.
	Shared map[types.NamespacedName]bool
	// Zones are those of the volumes of claims that are bound to one.
	Zones map[types.NamespacedName]string
	// Attached is how many volumes each node has to let go of.
	Attached map[string]int
	// Namespaces are what namespaces ask for their pods.
	Namespaces map[string]plan.Preferences
	// Unread is what could not be read.
	Unread []string
	// Idle are the labels that pods of Deployments and StatefulSets without any would have, by
	// namespace.
	Idle map[string][]labels.Set
}

// Owner is a controller of pods that says itself how many it wants.
type Owner struct {
	Replicas int
	// InOrder: of a StatefulSet that makes one pod after the other.
	InOrder bool
}

// In returns the cluster with the pods of one namespace only; of all if it is empty.
func (c Cluster) In(namespace string) Cluster {
	if namespace != "" {
		c.Pods = slices.DeleteFunc(slices.Clone(c.Pods), func(p *corev1.Pod) bool { return p.Namespace != namespace })
		c.Budgets = slices.DeleteFunc(slices.Clone(c.Budgets), func(b *policyv1.PodDisruptionBudget) bool { return b.Namespace != namespace })
	}
	return c
}

// ZoneOf is the zone that the pod's volumes are bound to, or empty.
func (c Cluster) ZoneOf(pod *corev1.Pod) string {
	for _, claim := range plan.ClaimsOf(pod) {
		if zone := c.Zones[claim]; zone != "" {
			return zone
		}
	}
	return ""
}

// Read reads a cluster, or the nodes and one namespace of it, without what only a forecast needs: not
// everybody may list that.
func Read(ctx context.Context, l Lister) Cluster {
	r := newReader(l)
	volumes := []step{r.claims}
	if l.Namespace == "" {
		volumes = append(volumes, r.volumes)
	}
	return r.read(ctx,
		[]step{r.pods},
		[]step{r.nodes, r.budgets},
		[]step{r.deployments, r.statefulSets, r.adopters, r.quotas},
		volumes,
	)
}

// ReadForForecast reads all that a forecast needs of a cluster, or of the nodes and one namespace of it.
func ReadForForecast(ctx context.Context, l Lister) Cluster {
	r := newReader(l)
	return r.read(ctx,
		[]step{r.pods},
		[]step{r.nodes, r.budgets, r.namespaces},
		[]step{r.deployments, r.statefulSets, r.adopters, r.quotas},
		[]step{r.claims, r.volumes, r.attachments},
	)
}

// step is one list.
type step = func(context.Context) error

func newReader(l Lister) *reader {
	return &reader{
		Lister: l,
		all:    Lister{Client: l.Client},
		c: Cluster{
			At:          time.Now(),
			Owners:      map[types.UID]Owner{},
			Constraints: map[string]plan.NamespaceConstraints{},
			Shared:      map[types.NamespacedName]bool{},
			Zones:       map[types.NamespacedName]string{},
			Attached:    map[string]int{},
			Namespaces:  map[string]plan.Preferences{},
			Idle:        map[string][]labels.Set{},
		},
	}
}

// read takes the parts beside each other, as each writes to fields of its own, and the steps of a part
// one after the other.
func (r *reader) read(ctx context.Context, parts ...[]step) Cluster {
	var mu sync.Mutex
	var lists errgroup.Group
	for _, part := range parts {
		lists.Go(func() error {
			for _, read := range part {
				if err := read(ctx); err != nil {
					mu.Lock()
					r.c.Unread = append(r.c.Unread, strings.Split(err.Error(), "\n")...)
					mu.Unlock()
				}
			}
			return nil
		})
	}
	_ = lists.Wait() // what failed is in Unread
	slices.Sort(r.c.Unread)
	return r.c
}

type reader struct {
	Lister        // of what has a namespace
	all    Lister // of what has none
	c      Cluster
}

// Resource is a resource of an API group in its version v1; the group of core is empty.
func Resource(group, name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: "v1", Resource: name}
}

func (r *reader) nodes(ctx context.Context) error {
	return EachOf(ctx, r.all, Resource("", "nodes"), "", leanNode, func(n *corev1.Node) { r.c.Nodes = append(r.c.Nodes, n) })
}

func (r *reader) pods(ctx context.Context) error {
	pods, others := []*corev1.Pod{}, alike{}
	err := EachOf(ctx, r.Lister, Resource("", "pods"), "", lean, func(p *corev1.Pod) { pods = append(pods, others.share(p)) })
	if err == nil || errors.Is(err, errLeftOut) {
		r.c.Pods = pods
	}
	return err
}

func (r *reader) budgets(ctx context.Context) error {
	return EachOf(ctx, r.Lister, Resource("policy", "poddisruptionbudgets"), "", leanBudget, func(b *policyv1.PodDisruptionBudget) {
		r.c.Budgets = append(r.c.Budgets, b)
	})
}

func (r *reader) namespaces(ctx context.Context) error {
	return Each(ctx, r.all, Resource("", "namespaces"), "", func(n *struct {
		Annotated `json:"metadata"`
	}) {
		r.c.Namespaces[n.Name] = plan.PreferencesOf(n.Annotations)
	})
}

// deployment is what is kept of a Deployment.
type deployment struct {
	*plan.Deployment
	template template
}

func (d *deployment) UnmarshalJSON(data []byte) error {
	d.Deployment = &plan.Deployment{}
	err := json.Unmarshal(data, d.Deployment)
	d.Annotations, d.ManagedFields = nil, nil
	if err == nil && d.Replicas() == 0 {
		var u struct{ Spec struct{ Template template } }
		err = json.Unmarshal(data, &u)
		d.template = u.Spec.Template
	}
	return err
}

func (r *reader) deployments(ctx context.Context) error {
	found := map[types.NamespacedName]*plan.Deployment{}
	err := Each(ctx, r.Lister, Resource("apps", "deployments"), "", func(d *deployment) {
		found[types.NamespacedName{Namespace: d.Namespace, Name: d.Name}] = d.Deployment
		r.wants(d.Namespace, d.Replicas(), d.template)
	})
	if err == nil || errors.Is(err, errLeftOut) {
		r.c.Deployments = found
	}
	return err
}

// workload is what is kept of a StatefulSet, a DaemonSet and a bare ReplicaSet.
type workload struct {
	Meta `json:"metadata"`
	Spec struct {
		Replicas            int                   `json:"replicas"` // the API server fills it in
		PodManagementPolicy string                `json:"podManagementPolicy"`
		Selector            *metav1.LabelSelector `json:"selector"`
		Template            template              `json:"template"`
	} `json:"spec"`
}

type template struct {
	Metadata struct {
		Labels labels.Set `json:"labels"`
	} `json:"metadata"`
}

// wants notes the labels of pods of which there are to be none.
func (r *reader) wants(namespace string, replicas int, t template) {
	if replicas == 0 {
		r.c.Idle[namespace] = append(r.c.Idle[namespace], t.Metadata.Labels)
	}
}

func (r *reader) statefulSets(ctx context.Context) error {
	return Each(ctx, r.Lister, Resource("apps", "statefulsets"), "", func(w *workload) {
		r.c.Owners[w.UID] = Owner{Replicas: w.Spec.Replicas, InOrder: w.Spec.PodManagementPolicy != "Parallel"}
		r.wants(w.Namespace, w.Spec.Replicas, w.Spec.Template)
	})
}

// adopters reads what might adopt surged pods. ReplicaSets of Deployments do not.
func (r *reader) adopters(ctx context.Context) error {
	adopts := func(kind string, w *workload) {
		around := r.c.Constraints[w.Namespace]
		around.AddAdopter(kind, w.Name, w.Spec.Selector, w.DeletionTimestamp != nil)
		r.c.Constraints[w.Namespace] = around
	}
	return errors.Join(
		Each(ctx, r.Lister, Resource("apps", "replicasets"), "!pod-template-hash", func(w *workload) {
			r.c.Owners[w.UID] = Owner{Replicas: w.Spec.Replicas}
			adopts("ReplicaSet", w)
		}),
		Each(ctx, r.Lister, Resource("apps", "daemonsets"), "", func(w *workload) { adopts("DaemonSet", w) }))
}

func (r *reader) quotas(ctx context.Context) error {
	return EachOf(ctx, r.Lister, Resource("", "resourcequotas"), "", func(q *corev1.ResourceQuota) *corev1.ResourceQuota {
		return &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: q.Name, Namespace: q.Namespace}, Spec: q.Spec, Status: q.Status}
	}, func(q *corev1.ResourceQuota) {
		around := r.c.Constraints[q.Namespace]
		around.AddQuota(q)
		r.c.Constraints[q.Namespace] = around
	})
}

func (r *reader) claims(ctx context.Context) error {
	return EachOf(ctx, r.Lister, Resource("", "persistentvolumeclaims"), "", leanClaim, func(c *corev1.PersistentVolumeClaim) {
		r.c.Shared[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}] = plan.Shared(c.Spec.AccessModes)
	})
}

func (r *reader) volumes(ctx context.Context) error {
	return EachOf(ctx, r.all, Resource("", "persistentvolumes"), "", leanVolume, func(v *corev1.PersistentVolume) {
		if zone := onlyZone(v); zone != "" && v.Spec.ClaimRef != nil {
			r.c.Zones[types.NamespacedName{Namespace: v.Spec.ClaimRef.Namespace, Name: v.Spec.ClaimRef.Name}] = zone
		}
	})
}

// attachments counts the volumes that each node has to let go of.
func (r *reader) attachments(ctx context.Context) error {
	return Each(ctx, r.all, Resource("storage.k8s.io", "volumeattachments"), "", func(a *struct {
		Meta `json:"metadata"`
		Spec struct {
			NodeName string `json:"nodeName"`
		} `json:"spec"`
	}) {
		r.c.Attached[a.Spec.NodeName]++
	})
}
