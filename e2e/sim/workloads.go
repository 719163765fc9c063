package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/e2e/sim/memapi"
)

type attachment = *storagev1.VolumeAttachment

const (
	appLabel  = "app"
	hashLabel = "pod-template-hash"
)

func milli(text string) int64 {
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0
	}
	return q.MilliValue()
}

func cpuOf(pod *corev1.Pod) (sum int64) {
	for i := range pod.Spec.Containers {
		sum += pod.Spec.Containers[i].Resources.Requests.Cpu().MilliValue()
	}
	return sum
}

func isDaemon(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "DaemonSet"
}

// podsOn are the pods of a node, by key.
func (w *World) podsOn(node string) []*corev1.Pod { return memapi.PodsOn(w.Server, node) }

// workloadOf is the workload that a pod is of.
func (w *World) workloadOf(pod *corev1.Pod) *Workload { return w.workloads[pod.Labels[appLabel]] }

func hashOf(w *Workload) string { return "5d9f7" + w.Name[len(w.Name)-1:] }

func (w *Workload) labels() map[string]string {
	set := map[string]string{appLabel: w.Name}
	if w.Kind == "Deployment" {
		set[hashLabel] = hashOf(w)
	}
	return set
}

// podOf is a new pod of the workload, which has no node yet.
func podOf(w *Workload, name string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: w.labels(), Annotations: maps.Clone(w.Annotations)},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &w.Grace, SchedulerName: "default-scheduler",
			Containers: []corev1.Container{{
				Name:      "main",
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: quantity(w.CPU)}},
			}},
			Tolerations: []corev1.Toleration{
				{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
				{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
			},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	if w.Gang {
		pod.Labels["spot-handler/gang"] = w.Name
	}
	if w.Kind == "DaemonSet" || w.Tolerates {
		pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
	if w.Zone != "" {
		pod.Spec.NodeSelector = map[string]string{w.ZoneBy: w.Zone}
	}
	if w.Volume {
		claim := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-" + name}
		pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: claim}}}
	}
	return pod
}

func owned(pod *corev1.Pod, kind string, owner memapi.Object) *corev1.Pod {
	group := "apps/v1"
	if kind == "Job" {
		group = "batch/v1"
	}
	yes := true
	pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: group, Kind: kind, Name: owner.GetName(), UID: owner.GetUID(), Controller: &yes, BlockOwnerDeletion: &yes,
	}}
	return pod
}

// buildWorkload makes a workload with pods that have been running for long.
func (w *World) buildWorkload(of *Workload) {
	w.workloads[of.Name] = of
	replicas := int32(of.Replicas)
	selector := &metav1.LabelSelector{MatchLabels: of.labels()}
	app := &metav1.LabelSelector{MatchLabels: map[string]string{appLabel: of.Name}}
	meta := metav1.ObjectMeta{Namespace: namespace, Name: of.Name, Labels: of.labels(), Generation: 1}
	tmpl := podOf(of, "").Spec
	podTemplate := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: of.labels(), Annotations: of.Annotations}, Spec: tmpl}
	var owner memapi.Object
	kind := of.Kind
	switch of.Kind {
	case "Deployment":
		surge := intstr.Parse(of.MaxSurge)
		zero := intstr.FromInt32(0)
		if of.MaxSurge == "0" {
			zero = intstr.FromInt32(1)
		}
		d := w.Put(memapi.Deployments, &appsv1.Deployment{
			ObjectMeta: meta,
			Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: app, Template: podTemplate, Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &zero},
			}},
			Status: appsv1.DeploymentStatus{
				ObservedGeneration: 1, Replicas: replicas, UpdatedReplicas: replicas, ReadyReplicas: replicas, AvailableReplicas: replicas,
				Conditions: []appsv1.DeploymentCondition{
					{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue, Reason: "MinimumReplicasAvailable"},
					{
						Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable",
						Message: fmt.Sprintf("ReplicaSet %q has successfully progressed.", of.Name+"-"+hashOf(of)),
					},
				},
			},
		}, byController)
		yes := true
		meta.Name = of.Name + "-" + hashOf(of)
		meta.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: "Deployment", Name: of.Name, UID: d.GetUID(), Controller: &yes,
		}}
		kind = "ReplicaSet"
		spec := appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: selector, Template: podTemplate}
		owner = w.Put(memapi.ReplicaSets, &appsv1.ReplicaSet{ObjectMeta: meta, Spec: spec}, byController)
	case "ReplicaSet":
		spec := appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: selector, Template: podTemplate}
		owner = w.Put(memapi.ReplicaSets, &appsv1.ReplicaSet{ObjectMeta: meta, Spec: spec}, byController)
	case "StatefulSet":
		spec := appsv1.StatefulSetSpec{Replicas: &replicas, Selector: selector, Template: podTemplate}
		owner = w.Put(memapi.Stateful, &appsv1.StatefulSet{ObjectMeta: meta, Spec: spec}, byController)
	case "Job":
		spec := batchv1.JobSpec{Parallelism: &replicas, Selector: selector, Template: podTemplate}
		owner = w.Put(memapi.Jobs, &batchv1.Job{ObjectMeta: meta, Spec: spec}, byController)
	case "DaemonSet":
		spec := appsv1.DaemonSetSpec{Selector: selector, Template: podTemplate}
		status := appsv1.DaemonSetStatus{NumberReady: 1}
		owner = w.Put(memapi.Daemons, &appsv1.DaemonSet{ObjectMeta: meta, Spec: spec, Status: status}, byController)
		w.lookAtDaemons()
		for _, n := range w.Scene.Nodes {
			w.settled(owned(podOf(of, of.Name+"-"+n.Name), kind, owner), of, n.Name, 0)
		}
		return
	}
	standing := w.Scene.standing(of.Name)
	n := of.Replicas
	if len(w.Scene.Pods) > 0 {
		n = len(standing)
	}
	for i := range n {
		name := w.name(meta.Name)
		if of.Kind == "StatefulSet" {
			name = fmt.Sprintf("%s-%d", of.Name, i)
		}
		if len(standing) > 0 {
			name = standing[i].Name
		}
		pod := podOf(of, name)
		if owner != nil {
			owned(pod, kind, owner)
		}
		if of.Volume {
			w.Put(memapi.Claims, &corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "data-" + name},
				Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					VolumeName:  "pv-" + name,
				},
			}, byController)
		}
		if len(standing) > 0 {
			w.stand(pod, standing[i])
			w.Put(memapi.Pods, pod, byKubelet)
			continue
		}
		w.settled(pod, of, w.roomAtFirst(pod, name), i)
	}
	if of.Budget != "" {
		what, value, _ := strings.Cut(of.Budget, "=")
		amount := intstr.Parse(value)
		budget := &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: of.Name, Generation: 1},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: app},
		}
		if what == "maxUnavailable" {
			budget.Spec.MaxUnavailable = &amount
		} else {
			budget.Spec.MinAvailable = &amount
		}
		w.Put(memapi.Budgets, budget, byOperator)
	}
}

// roomAtFirst is a node for a pod that runs since long; spot ones are preferred.
func (w *World) roomAtFirst(pod *corev1.Pod, name string) string {
	var fit []string
	for _, pool := range []string{PoolSpot, PoolFallback} {
		for _, n := range w.Scene.Nodes {
			node := memapi.Get[*corev1.Node](w.Server, memapi.Nodes, n.Name)
			if n.Pool == pool && !n.Cordoned && affine(pod, node) && w.freeOn(n.Name) >= cpuOf(pod) {
				fit = append(fit, n.Name)
			}
		}
		if len(fit) > 0 {
			return Pick(w.draw(), fit, name, "first node")
		}
	}
	return ""
}

func (w *World) freeOn(name string) int64 {
	node := memapi.Get[*corev1.Node](w.Server, memapi.Nodes, name)
	if node == nil {
		return 0
	}
	free := node.Status.Allocatable.Cpu().MilliValue()
	for _, pod := range w.podsOn(name) {
		if !memapi.Finished(pod) {
			free -= cpuOf(pod)
		}
	}
	return free
}

// settled makes a pod that has been running on the node for long; some of a workload can be broken.
func (w *World) settled(pod *corev1.Pod, of *Workload, node string, nth int) {
	pod.Spec.NodeName = node
	pod.CreationTimestamp = metav1.NewTime(w.began.Add(-50 * time.Minute))
	if node != "" {
		pod.Status.Phase = corev1.PodRunning
		at, from := metav1.NewTime(w.began.Add(-50*time.Minute)), w.draw().Int(max(1, of.Replicas), of.Name, "which are broken")
		pod.Status.StartTime = &at
		pod.Status.Conditions = conditionsOf(at, metav1.NewTime(at.Add(of.Start).Truncate(time.Second)), (nth+from)%max(1, of.Replicas) >= of.Broken)
		pod.Status.PodIP = "10.1.0.1"
	}
	w.Put(memapi.Pods, pod, byKubelet)
	if of.Volume && node != "" {
		w.attach(pod)
	}
}

func conditionsOf(scheduled, ready metav1.Time, isReady bool) []corev1.PodCondition {
	status := corev1.ConditionTrue
	if !isReady {
		status = corev1.ConditionFalse
	}
	return []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: scheduled},
		{Type: corev1.PodReady, Status: status, LastTransitionTime: ready},
	}
}

func isOf(pod *corev1.Pod, owner memapi.Object) bool {
	ref := metav1.GetControllerOf(pod)
	return ref != nil && ref.UID == owner.GetUID()
}

// lookAt has the controller of that key act in a moment.
func (w *World) lookAt(key string) {
	w.after(w.draw().Between(10*time.Millisecond, 200*time.Millisecond, key, "controller"), "sync "+key, func() {
		if set := memapi.Get[*appsv1.ReplicaSet](w.Server, memapi.ReplicaSets, key); set != nil {
			w.syncReplicaSet(set)
		}
		if set := memapi.Get[*appsv1.StatefulSet](w.Server, memapi.Stateful, key); set != nil {
			w.syncStatefulSet(set)
		}
		if job := memapi.Get[*batchv1.Job](w.Server, memapi.Jobs, key); job != nil {
			w.syncJob(job)
		}
	})
}

// syncReplicaSet is the ReplicaSet controller: it lets go of pods that it does not select, takes in those that it
// does, and makes or ends as many as are missing or too many.
func (w *World) syncReplicaSet(set *appsv1.ReplicaSet) {
	var active []*corev1.Pod
	for _, pod := range memapi.List[*corev1.Pod](w.Server, memapi.Pods) {
		if pod.Namespace != set.Namespace {
			continue
		}
		mine, chosen := isOf(pod, set), memapi.Selects(set.Spec.Selector, pod)
		switch {
		case mine && !chosen && pod.DeletionTimestamp == nil:
			free := pod.DeepCopy()
			free.OwnerReferences = nil
			w.Put(memapi.Pods, free, byController)
			continue
		case !mine && chosen && metav1.GetControllerOf(pod) == nil && pod.DeletionTimestamp == nil && !memapi.Finished(pod):
			taken := owned(pod.DeepCopy(), "ReplicaSet", set)
			w.Put(memapi.Pods, taken, byController)
			pod = taken
		case !mine:
			continue
		}
		if pod.DeletionTimestamp == nil && !memapi.Finished(pod) {
			active = append(active, pod)
		}
	}
	want := int(*set.Spec.Replicas)
	for range want - len(active) {
		of := w.workloads[set.Labels[appLabel]]
		w.Put(memapi.Pods, owned(podOf(of, w.name(set.Name)), "ReplicaSet", set), byController)
	}
	if len(active) > want {
		// Those without a node go first, then those that are not Ready, then the youngest.
		slices.SortStableFunc(active, func(a, b *corev1.Pod) int { return rank(a) - rank(b) })
		for _, pod := range active[:len(active)-want] {
			w.Delete(memapi.Pods, memapi.Key(pod), nil, byController)
		}
	}
	w.syncDeployment(set, active)
}

func rank(pod *corev1.Pod) int {
	switch {
	case pod.Spec.NodeName == "":
		return 0
	case pod.Status.Phase == corev1.PodPending:
		return 1
	case !memapi.Ready(pod):
		return 2
	}
	return 3
}

func (w *World) syncDeployment(set *appsv1.ReplicaSet, active []*corev1.Pod) {
	owner := metav1.GetControllerOf(set)
	if owner == nil {
		return
	}
	d := memapi.Get[*appsv1.Deployment](w.Server, memapi.Deployments, set.Namespace+"/"+owner.Name)
	if d == nil {
		return
	}
	ready, n := int32(0), int32(len(active))
	for _, pod := range active {
		if memapi.Ready(pod) {
			ready++
		}
	}
	status := d.Status
	status.Replicas, status.UpdatedReplicas, status.ReadyReplicas, status.AvailableReplicas = n, n, ready, ready
	status.UnavailableReplicas = max(0, *d.Spec.Replicas-ready)
	if status.Replicas != d.Status.Replicas || status.ReadyReplicas != d.Status.ReadyReplicas {
		changed := d.DeepCopy()
		changed.Status = status
		w.Put(memapi.Deployments, changed, byController)
	}
}

// syncStatefulSet makes the pods that are missing, in order: a pod is made again when the one of its name is gone, and
// when all before it are Ready.
func (w *World) syncStatefulSet(set *appsv1.StatefulSet) {
	for i := range int(*set.Spec.Replicas) {
		name := fmt.Sprintf("%s-%d", set.Name, i)
		pod := memapi.Get[*corev1.Pod](w.Server, memapi.Pods, set.Namespace+"/"+name)
		switch {
		case pod == nil:
			w.Put(memapi.Pods, owned(podOf(w.workloads[set.Name], name), "StatefulSet", set), byController)
			return
		case pod.DeletionTimestamp != nil, !memapi.Ready(pod):
			return
		}
	}
}

// lookAtDaemons has each node have its pod of each DaemonSet.
func (w *World) lookAtDaemons() {
	w.after(100*time.Millisecond, "daemons", func() {
		for _, set := range memapi.List[*appsv1.DaemonSet](w.Server, memapi.Daemons) {
			for _, node := range memapi.List[*corev1.Node](w.Server, memapi.Nodes) {
				has := slices.ContainsFunc(w.podsOn(node.Name), func(pod *corev1.Pod) bool { return isOf(pod, set) })
				if !has && node.DeletionTimestamp == nil {
					pod := owned(podOf(w.workloads[set.Name], w.name(set.Name)), "DaemonSet", set)
					pod.Spec.NodeName = node.Name
					w.Put(memapi.Pods, pod, byController)
				}
			}
		}
	})
}
