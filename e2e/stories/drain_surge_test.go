package stories

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
	"spot-handler/e2e/controlplane"
)

// worstSeen is what a service looked like at its worst while its pods were surged.
type worstSeen struct {
	mu     sync.Mutex
	surged int // at most at any moment, not terminating
	ready  int // at least at any moment
}

// watchSurge follows a service until the story ends.
func (s *story) watchSurge(namespace, service string) *worstSeen {
	s.Helper()
	w := &worstSeen{ready: -1}
	first := make(chan struct{})
	s.background(func(ctx context.Context) {
		var once sync.Once
		seen := func() { once.Do(func() { close(first) }) }
		defer seen()
		ctx, cancel := context.WithTimeout(ctx, 10*time.Minute) // more than the default of WaitPods
		defer cancel()
		_, _ = s.cluster.WaitPods(ctx, namespace, controlplane.Selector(service), func(pods []*corev1.Pod) bool {
			w.see(pods)
			seen()
			return false
		})
	})
	<-first
	return w
}

func (w *worstSeen) see(pods []*corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	surged, ready := 0, 0
	for _, p := range pods {
		if isSurged(p) && p.DeletionTimestamp == nil {
			surged++
		}
		if controlplane.Ready(p) {
			ready++
		}
	}
	w.surged = max(w.surged, surged)
	if w.ready < 0 || ready < w.ready {
		w.ready = ready
	}
}

// worst is the most pods that were surged, and the fewest that were ready.
func (w *worstSeen) worst() (surged, ready int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.surged, w.ready
}

func isSurged(pod *corev1.Pod) bool {
	return pod.Labels[plan.SurgedLabel] != "" || pod.Annotations[plan.SurgedAnnotation] != ""
}

// surgedPods lists those of all namespaces.
func (s *story) surgedPods() []corev1.Pod {
	s.Helper()
	list, err := s.cluster.Client.CoreV1().Pods("").List(s.ctx, metav1.ListOptions{LabelSelector: plan.SurgedLabel})
	s.must(err)
	return list.Items
}

// waitSurged waits until so many pods are surged.
func (s *story) waitSurged(n int) {
	s.Helper()
	s.eventually(fmt.Sprint(n, " surged pods"), func() bool { return len(s.surgedPods()) == n })
}

// wantNoneSurged checks that nobody has been forgotten who is not about to go.
func (s *story) wantNoneSurged() {
	s.Helper()
	for _, p := range s.surgedPods() {
		if p.DeletionTimestamp != nil {
			continue
		}
		s.Errorf("pod %s/%s is surged still, and on node %s", p.Namespace, p.Name, p.Spec.NodeName)
	}
}

// wantPods waits until the service has so many ready pods, and checks that those are
// all that it has and that each has an owner.
func (s *story) wantPods(namespace, service string, n int) {
	s.Helper()
	pods, err := s.cluster.WaitPods(s.ctx, namespace, controlplane.Selector(service), func(pods []*corev1.Pod) bool {
		ready := 0
		for _, p := range pods {
			if controlplane.Ready(p) {
				ready++
			}
		}
		return ready == n && len(pods) == n
	})
	s.must(err)
	for _, p := range pods {
		if metav1.GetControllerOf(p) == nil {
			s.Errorf("pod %s has no owner", p.Name)
		}
	}
}

// surge is a Deployment that allows so many.
func surge(maxSurge int, more func(*controlplane.DeploymentSpec)) func(*controlplane.DeploymentSpec) {
	return func(d *controlplane.DeploymentSpec) {
		quick(d)
		d.MaxSurge, d.MaxUnavailable = budget(maxSurge), never
		if more != nil {
			more(d)
		}
	}
}

// Two nodes go at once and a service has half of its pods on each. It allows a surge
// of two, asks that pods be ready for some seconds before they count, and has a budget
// that lets none go. At most two are surged over both nodes, none is evicted before
// its replacement pod is available, and no eviction is ever refused.
func TestSurgeKeepsToMaxSurgeOverAllNodes(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	const replicas, allowed, minReady = 6, 2, 3
	nodes := s.bare("node", 2, 2) // room for four each
	pods := s.service("web", replicas, surge(allowed, func(d *controlplane.DeploymentSpec) {
		d.MinReadySeconds = minReady
		d.BudgetMinAvailable = budget(replicas)
	}))
	on := map[string]int{}
	for _, p := range pods {
		on[p.Spec.NodeName]++
	}
	s.bare("spare", 2, 4)
	d, queue := s.drill()
	seen := s.watchSurge("default", "web")

	want := map[string]result{}
	for _, n := range nodes {
		interrupt(queue, n.Name, 110*time.Second)
		want[n.Name] = result{graceful: on[n.Name]}
	}
	s.wantResults(d, want)
	s.wantEachOnce(uids(pods))
	s.wantNoneSurged()
	s.wantPods("default", "web", replicas)

	surged, ready := seen.worst()
	if surged > allowed || surged == 0 {
		t.Errorf("%d pods were surged at once, want up to %d", surged, allowed)
	}
	if ready < replicas {
		t.Errorf("only %d pods were ready at some moment, want never less than %d", ready, replicas)
	}
	if n := s.metric(d, `spot_handler_evictions_total{code="429"}`); n != 0 {
		t.Errorf("%v evictions refused, want none", n)
	}
	// The k-th pod goes when the k-th replacement pod has been available for a moment. Since when
	// a pod is ready is kept in whole seconds, rounded down.
	var available []time.Time
	after, err := s.cluster.WaitReady(s.ctx, "default", "web", replicas)
	s.must(err)
	for _, p := range after {
		since, _ := plan.Ready(p)
		available = append(available, since.Add(minReady*time.Second))
	}
	slices.SortFunc(available, time.Time.Compare)
	for i, at := range available {
		if early := at.Sub(s.evicted()[i].RequestReceivedTimestamp); early > 0 {
			t.Errorf("eviction %d came %s before so many replacement pods were available", i+1, early)
		}
	}
}

// The plan says which pods are not surged, and why.
func TestPlanSaysWhoIsNotSurged(t *testing.T) {
	s := newStory(t, controlplane.Options{})
	node := s.bare("node", 1, 32)[0]
	want := map[string]string{ // by the pod's label app: part of the reason; "" is surged
		"web":     "",
		"fixed":   "maxSurge 0",
		"late":    "paused",
		"once":    "strategy Recreate",
		"db":      "StatefulSet",
		"set":     "no Deployment",
		"task":    "Job",
		"alone":   "no controller",
		"disk":    "cannot be shared",
		"shared":  "",
		"careful": "safe-to-evict",
		"broken":  "not Ready",
		"shares":  "ReplicaSet shares would adopt it",
	}
	s.unsurgeable()
	d, queue := s.drill("--dry-run")

	interrupt(queue, node.Name, 110*time.Second)
	pods, err := s.cluster.Client.CoreV1().Pods("default").List(s.ctx, metav1.ListOptions{})
	s.must(err)
	plan := map[string]string{}
	s.eventually("plan for each pod", func() bool {
		for _, line := range d.Lines("dry run: pod") {
			name, _ := line["pod"].(string)
			reason, _ := line["no_surge"].(string)
			plan[name] = reason
		}
		return len(plan) == len(pods.Items)
	})
	found := map[string]bool{}
	for _, p := range pods.Items {
		app := p.Labels["app"]
		reason := plan["default/"+p.Name]
		found[app] = true
		if !strings.Contains(reason, want[app]) || (want[app] == "") != (reason == "") {
			t.Errorf("pod %s is not surged because %q, want %q", p.Name, reason, want[app])
		}
	}
	if len(found) != len(want) {
		t.Errorf("pods of %v are on the node, want of all of %v", found, want)
	}
}

// unsurgeable runs one workload for every reason not to be surged, and two to be.
func (s *story) unsurgeable() {
	s.Helper()
	s.service("web", 1, surge(1, nil))
	s.service("fixed", 1, func(d *controlplane.DeploymentSpec) { quick(d); d.MaxSurge = never })
	s.service("once", 1, func(d *controlplane.DeploymentSpec) { quick(d); d.Change = recreate })
	s.service("careful", 1, surge(1, func(d *controlplane.DeploymentSpec) {
		d.Annotations = map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
	}))
	s.service("late", 1, surge(1, nil))
	_, err := s.cluster.Client.AppsV1().Deployments("default").Patch(s.ctx, "late", types.MergePatchType, []byte(`{"spec":{"paused":true}}`), metav1.PatchOptions{})
	s.must(err)
	s.job("task", quick)
	for name, mode := range map[string]corev1.PersistentVolumeAccessMode{"disk": corev1.ReadWriteOnce, "shared": corev1.ReadWriteMany} {
		s.must(s.cluster.CreateClaim(s.ctx, "", name, mode))
		s.service(name, 1, surge(1, func(d *controlplane.DeploymentSpec) { d.Change = mounts(name) }))
	}
	spec := controlplane.DeploymentSpec{Name: "db", Replicas: 1}
	quick(&spec)
	_, err = s.cluster.RunStatefulSet(s.ctx, spec)
	s.must(err)
	spec.Name = "set"
	_, err = s.cluster.RunReplicaSet(s.ctx, spec)
	s.must(err)
	s.service("shares", 1, surge(1, nil))
	spec.Name, spec.Replicas = "shares", 0
	_, err = s.cluster.RunReplicaSet(s.ctx, spec)
	s.must(err)
	spec.Name, spec.Replicas, spec.NeverReady = "broken", 1, true
	_, err = s.cluster.RunDeployment(s.ctx, spec)
	s.must(err)
	_, err = s.cluster.Client.CoreV1().Pods("default").Create(s.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "alone", Labels: map[string]string{"app": "alone"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "fake"}}},
	}, metav1.CreateOptions{})
	s.must(err)
	for _, name := range []string{"db", "set", "alone"} {
		_, err := s.cluster.WaitReady(s.ctx, "default", name, 1)
		s.must(err)
	}
	_, err = s.cluster.WaitPods(s.ctx, "default", controlplane.Selector("broken"), func(pods []*corev1.Pod) bool {
		return len(pods) == 1 && pods[0].Status.Phase == corev1.PodRunning
	})
	s.must(err)
}

// Replacement pods that never become ready. The pods that they replace stay for as long as they can, are
// evicted at their latest safe start, and no pod is left surged.
func TestSurgeWithoutReplacementPodsEndsAtTheLatestSafeStart(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	node := s.bare("node", 1, 8)[0]
	stuck := s.service("stuck", 2, surge(2, nil))
	_, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 1, Prefix: "dead", Unmanaged: true}) // nothing ever starts there
	s.must(err)
	d, queue := s.drill()

	deadline := interrupt(queue, node.Name, 40*time.Second)
	s.waitSurged(2)
	s.wantResults(d, map[string]result{node.Name: {graceful: 2}})
	s.wantEachOnce(uids(stuck))
	s.wantNoneSurged()
	latest := deadline.Add(-10*time.Second - 5*time.Second)
	for _, r := range s.evicted() {
		if early := latest.Sub(r.RequestReceivedTimestamp); early > 0 {
			t.Errorf("pod %s was evicted %s before its latest safe start, and had no replacement pod", r.ObjectRef.Name, early)
		}
	}
}

// Somebody rolls a Deployment out, scales others down and up, as an autoscaler does,
// and deletes one, all while their pods are surged. Each comes to what was asked for
// last, and no pod is forgotten.
func TestDeploymentsChangeWhileTheirPodsAreSurged(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	node := s.bare("node", 1, 16)[0]
	var pods []*corev1.Pod
	for name, replicas := range map[string]int{"rolls": 3, "shrinks": 4, "grows": 2, "ends": 2} {
		pods = append(pods, s.service(name, replicas, surge(4, nil))...)
	}
	d, queue := s.drill()
	rolls, grows := s.watchSurge("default", "rolls"), s.watchSurge("default", "grows")

	interrupt(queue, node.Name, 100*time.Second)
	s.waitSurged(len(pods)) // there is no room for replacement pods yet

	deployments := s.cluster.Client.AppsV1().Deployments("default")
	_, err := deployments.Patch(s.ctx, "rolls", types.MergePatchType, []byte(`{"spec":{"template":{"metadata":{"annotations":{"version":"2"}}}}}`), metav1.PatchOptions{})
	s.must(err)
	for name, replicas := range map[string]int{"shrinks": 1, "grows": 5} {
		_, err = deployments.Patch(s.ctx, name, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas), metav1.PatchOptions{}, "scale")
		s.must(err)
	}
	background := metav1.DeletePropagationBackground
	s.must(deployments.Delete(s.ctx, "ends", metav1.DeleteOptions{PropagationPolicy: &background}))
	s.bare("spare", 1, 16)

	line := s.wantResults(d, map[string]result{node.Name: {graceful: len(pods)}})[node.Name]
	if slack, _ := line["slack_seconds"].(float64); slack < 45 {
		t.Errorf("drained %v s before the deadline: something waited for its latest safe start", slack)
	}
	s.wantNoneSurged()
	for name, replicas := range map[string]int{"rolls": 3, "shrinks": 1, "grows": 5, "ends": 0} {
		s.wantPods("default", name, replicas)
	}
	for name, w := range map[string]*worstSeen{"rolls": rolls, "grows": grows} {
		before := map[string]int{"rolls": 3, "grows": 2}[name]
		if _, ready := w.worst(); ready < before {
			t.Errorf("%s had only %d ready pods at some moment, want never less than %d", name, ready, before)
		}
	}
	for uid, n := range s.evictions() {
		if n != 1 {
			t.Errorf("pod %s evicted %d times", uid, n)
		}
	}
}

// recreate has a Deployment's pods all go before the next come.
func recreate(d *appsv1.Deployment) {
	d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
}

func mounts(claim string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { controlplane.Mount(&d.Spec.Template.Spec, claim) }
}
