package plan

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// changed shows a pod as it is now.
func (s *scene) changed(was *corev1.Pod, p *livePod, gone bool) {
	var is *corev1.Pod
	var replica *Replica
	if !gone {
		is, replica = p.Pod, ReplicaOf(p.Pod)
	}
	s.show(podsOf(was.Spec.NodeName), PodSeen{Node: was.Spec.NodeName, Before: was, After: is})
	name := types.NamespacedName{Namespace: "shop", Name: p.app}
	if s.webs[name] != nil {
		s.show(Subject{DeploymentOfPod, name}, ReplicaSeen{name, ReplicaOf(was), replica})
	}
	s.recount(p.app)
}

// change makes another version of the pod.
func (s *scene) change(p *livePod, change func(*corev1.Pod)) {
	was := p.Pod
	p.Pod = was.DeepCopy()
	change(p.Pod)
	s.changed(was, p, false)
}

// evictions are the requests for evictions so far.
func (s *scene) evictions() (list []string) {
	for _, r := range s.requests {
		if strings.Contains(r, " evict ") {
			list = append(list, r)
		}
	}
	return list
}

// recount is the disruption controller.
func (s *scene) recount(app string) {
	b := s.budgets[app]
	if b == nil {
		return
	}
	b = b.DeepCopy()
	b.Status.CurrentHealthy = 0
	for _, p := range s.pods {
		if p.app == app && p.healthy && p.DeletionTimestamp == nil {
			b.Status.CurrentHealthy++
		}
	}
	b.Status.DisruptionsAllowed = max(0, b.Status.CurrentHealthy-b.Status.DesiredHealthy)
	was := s.budgets[app]
	s.budgets[app] = b
	s.show(ofNamespace(Budgets, "shop"), BudgetSeen{was, b})
}

// add puts a pod on a node.
func (s *scene) add(p *corev1.Pod, app, on string, ends time.Duration) *livePod {
	p.Spec.NodeName = on
	live := &livePod{Pod: p, app: app, healthy: true, ends: ends}
	s.pods[p.UID] = live
	return live
}

// replace is the ReplicaSet controller: it makes as many pods as are missing.
func (s *scene) replace(app string) {
	name := types.NamespacedName{Namespace: "shop", Name: app}
	d := s.webs[name]
	if d == nil {
		return
	}
	owned := 0
	for _, p := range s.pods {
		if p.app == app && metav1.GetControllerOf(p.Pod) != nil && p.DeletionTimestamp == nil {
			owned++
		}
	}
	for ; owned < d.Replicas(); owned++ {
		s.made++
		p := s.add(pod(fmt.Sprint(app, "-new-", s.made), of(app), createdAt(s.now)), app, "new", 0)
		p.healthy = false
		s.changed(p.Pod, p, false)
		wait := max(0, s.ready.Sub(s.now)) + s.startup
		s.in(wait, func() {
			p.healthy = true
			s.change(p, func(pod *corev1.Pod) {
				pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(s.now)}}
			})
		})
	}
}

// end has a pod stop.
func (s *scene) end(p *livePod, grace *int64) {
	has := Grace(p.Pod)
	if grace != nil {
		has = time.Duration(*grace) * time.Second
	}
	s.change(p, func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: s.now.Add(has)} })
	s.replace(p.app)
	s.in(min(p.ends, has), func() {
		delete(s.pods, p.UID)
		s.changed(p.Pod, p, true)
	})
}

// web adds a Deployment.
func (s *scene) web(app string, replicas, maxSurge int) {
	s.webs[types.NamespacedName{Namespace: "shop", Name: app}] = deploymentOf(int32(replicas), func(d *Deployment) {
		*d.Spec.Strategy.RollingUpdate.MaxSurge = intstr.FromInt(maxSurge)
		d.Spec.Selector.MatchLabels["app"] = app
	})
}
