package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
)

// jobDelay is how long a Job waits before it replaces a pod that has failed. One that is evicted has
// failed at once. The delay doubles with each that fails, up to longestJobDelay.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/controller/job/backoff_utils.go
const (
	jobDelay        = 10 * time.Second
	longestJobDelay = 10 * time.Minute
)

// controller is what makes pods: a ReplicaSet, a StatefulSet, a Job, or one of another kind, which is
// taken for one that replaces its pods at once.
type controller struct {
	uid      types.UID
	kind     string
	name     string
	desired  int
	inOrder  bool
	workload *workload
	template *corev1.Pod
	awaited  bool // it is about to reconcile
	making   int  // pods that it is about to make

	// Of a Job: its delay, until when it makes no pod, and when it is to be reconciled then.
	delay         time.Duration
	delayed, wake time.Time
}

// podFailed has a Job wait before it replaces a pod.
func (c *controller) podFailed(now time.Time) {
	if c != nil && c.kind == "Job" {
		c.delay = min(max(jobDelay, 2*c.delay), longestJobDelay)
		c.delayed = now.Add(c.delay)
	}
}

// makerOf finds, or makes, what has made the pod. Pods of DaemonSets and kubelets come and go with
// their nodes, and a surged pod has no controller.
func (w *world) makerOf(p *pod) (*controller, *workload) {
	name := WorkloadOf(p.Pod)
	owner := metav1.GetControllerOf(p.Pod)
	if name == "" || owner != nil && (owner.Kind == "DaemonSet" || owner.Kind == "Node") {
		return nil, nil
	}
	key := p.Namespace + "/" + name
	of := w.workloads[key]
	if of == nil {
		of = &workload{
			namespace: p.Namespace,
			name:      name,
			pods:      map[types.UID]*pod{},
			users:     map[*lostNode]bool{},
			of:        plan.DeploymentOf(p.Pod),
		}
		of.deployment = w.in.Deployments[of.of]
		if of.of.Name != "" {
			w.deployments[of.of] = of
		}
		w.workloads[key] = of
	}
	if owner == nil {
		return nil, of
	}
	c := w.controllers[owner.UID]
	if c == nil {
		c = &controller{
			uid:      owner.UID,
			kind:     owner.Kind,
			name:     owner.Name,
			workload: of,
			template: p.Pod,
			inOrder:  w.in.Owners[owner.UID].InOrder,
		}
		w.controllers[owner.UID], of.controllers = c, append(of.controllers, c)
	}
	return c, of
}

// countReplicas works out how many pods each controller asks for. A Deployment that is being
// rolled out has several ReplicaSets; those, and Jobs, are taken to keep as many as they have.
func (w *world) countReplicas() {
	for _, p := range w.pods {
		if p.controller != nil && p.DeletionTimestamp == nil {
			p.controller.desired++
		}
	}
	for _, wl := range w.workloads {
		for _, c := range wl.controllers {
			owner, known := w.in.Owners[c.uid]
			switch {
			case wl.deployment != nil && len(wl.controllers) == 1:
				c.desired = wl.deployment.Replicas()
			case known:
				c.desired = owner.Replicas
			}
			wl.replicas += c.desired
		}
		if wl.deployment != nil {
			wl.replicas = wl.deployment.Replicas()
		}
	}
}

// control has the controller reconcile its pods.
func (w *world) control(c *controller) {
	if c.awaited {
		return
	}
	c.awaited = true
	w.at(w.now.Add(react), thenControllers, func() {
		c.awaited = false
		w.reconcile(c)
	})
}

// reconcile makes the pods that are missing, and drops those that are too many.
func (w *world) reconcile(c *controller) {
	if c.kind == "StatefulSet" {
		w.reconcileSet(c)
		return
	}
	var active []*pod
	for _, p := range c.workload.pods {
		if p.controller == c && p.DeletionTimestamp == nil {
			active = append(active, p)
		}
	}
	if w.now.Before(c.delayed) {
		if !c.wake.Equal(c.delayed) {
			c.wake = c.delayed
			w.at(c.delayed, thenControllers, func() { w.reconcile(c) })
		}
		return
	}
	w.makeMissing(c, c.desired-len(active)-c.making)
	slices.SortFunc(active, leastWorth)
	for _, p := range active[:max(0, len(active)-c.desired)] {
		w.delete(p, nil)
	}
}

// makeMissing makes pods as a ReplicaSet or a Job does: one, then two at a time, then four. So several that lack
// pods at the same time take turns, which decides whose find room.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/controller/replicaset/replica_set.go
func (w *world) makeMissing(c *controller, missing int) {
	at := w.now
	for batch := 1; missing > 0; batch *= 2 {
		n := min(batch, missing)
		c.making += n
		w.exactly(at, thenControllers, func() {
			for range n {
				c.making--
				w.make(c, "")
			}
		})
		missing -= n
		at = at.Add(answered)
	}
}

// leastWorth has first what a ReplicaSet drops first: what has no node, then what is not Ready, then
// what is new.
// https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#scaling-a-replicaset
func leastWorth(a, b *pod) int {
	worth := func(p *pod) int {
		switch {
		case p.Spec.NodeName == "":
			return 0
		case !Serves(p.Pod):
			return 1
		}
		return 2
	}
	return cmp.Or(cmp.Compare(worth(a), worth(b)), b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// reconcileSet makes a pod of a StatefulSet again, by its name and so only once the old one is gone.
func (w *world) reconcileSet(c *controller) {
	there := map[string]*pod{}
	for _, p := range c.workload.pods {
		there[p.Name] = p
	}
	for i := range c.desired {
		name := fmt.Sprintf("%s-%d", c.name, i)
		p := there[name]
		if p == nil {
			w.make(c, name)
		}
		if c.inOrder && (p == nil || p.DeletionTimestamp != nil || !Serves(p.Pod)) {
			return
		}
	}
}

// make makes a pod again, as its controller would. No quota refuses it: the drain surges no pod where one
// would.
func (w *world) make(c *controller, name string) {
	w.made++
	of := c.template
	if name == "" {
		name = fmt.Sprintf("%s-forecast-%d", of.GenerateName, w.made)
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace:         of.Namespace,
		Name:              name,
		GenerateName:      of.GenerateName,
		UID:               types.UID(fmt.Sprintf("forecast-%d", w.made)),
		Labels:            maps.Clone(of.Labels),
		Annotations:       of.Annotations,
		OwnerReferences:   of.OwnerReferences,
		CreationTimestamp: metav1.NewTime(w.now),
	}}
	if of.Labels["statefulset.kubernetes.io/pod-name"] != "" {
		p.Labels["statefulset.kubernetes.io/pod-name"] = name
	}
	p.Spec = of.Spec
	p.Spec.NodeName = ""
	p.Status.Phase = corev1.PodPending
	added := w.add(p)
	added.fresh = true
	w.changed(added)
	w.schedule()
}

// delete has a pod end, with that many seconds if they are set and its own grace period otherwise.
func (w *world) delete(p *pod, seconds *int64) {
	if p.DeletionTimestamp != nil {
		return
	}
	if p.Spec.NodeName == "" {
		w.gone(p)
		return
	}
	p.controller.podFailed(w.now)
	grace := plan.Grace(p.Pod)
	if seconds != nil {
		grace = time.Duration(*seconds) * time.Second
	}
	c := *p.Pod
	c.DeletionTimestamp, c.DeletionGracePeriodSeconds = new(metav1.NewTime(w.now.Add(grace))), new(int64(grace/time.Second))
	w.at(w.now.Add(min(grace, w.in.Assumptions.Stop.Duration())), podsFirst, func() { w.gone(p) })
	w.show(p, &c)
}
