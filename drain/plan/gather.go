package plan

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
)

// gather returns what the node is planned with, and asks for what is missing to be watched and looked up.
func (f *Fleet) gather(n *node, state NodeState) Situation {
	sit := Situation{
		Policy:      f.policy,
		Pods:        n.list(),
		Deployments: map[types.NamespacedName]DeploymentState{},
		AllReady:    map[types.NamespacedName]time.Time{},
		Shared:      map[types.NamespacedName]bool{},
		Constraints: map[string]NamespaceConstraints{},
		Namespaces:  map[string]Preferences{},
	}
	f.renew(n, &sit, state)
	read := map[string]bool{} // the budgets of which namespaces
	for _, pod := range sit.Pods {
		namespace := types.NamespacedName{Namespace: pod.Namespace}
		stays := sit.notOurs(pod) != ""
		if !stays || pod.Annotations[NoticeAnnotation] != "" {
			lookUpOnce(f, n, sit.Namespaces, pod.Namespace, Subject{PreferencesOfNamespace, namespace})
		}
		if stays {
			continue
		}
		if !read[pod.Namespace] {
			read[pod.Namespace] = true
			f.uses(n, ofNamespace(Budgets, pod.Namespace))
			sit.Budgets = append(sit.Budgets, f.budgetsIn(pod.Namespace).list...)
		}
		name := DeploymentOf(pod)
		if name.Name == "" || !IsSurged(pod) && (f.policy.Strategy != StrategySurge || noSurgeByItself(pod, f.now) != "") {
			continue
		}
		if _, known := sit.Deployments[name]; !known {
			if of, ok := f.deploymentFor(n, name); ok {
				sit.Deployments[name] = of
			}
		}
		if _, known := sit.Deployments[name]; known && IsSurged(pod) && keepsOthersAway(pod) {
			sit.AllReady[name] = f.allReady(name)
		}
		lookUpOnce(f, n, sit.Constraints, pod.Namespace, Subject{ConstraintsOfNamespace, namespace})
		for _, name := range ClaimsOf(pod) {
			if c, ok := lookUp[Claim](f, n, Subject{ClaimOfPod, name}); ok {
				sit.Shared[name] = c.Shared
			}
		}
	}
	return sit
}

// lookUpOnce adds the answer to what is known, unless it is there or is still being looked up.
func lookUpOnce[T any](f *Fleet, n *node, known map[string]T, namespace string, s Subject) {
	if _, ok := known[namespace]; ok {
		return
	}
	if value, ok := lookUp[T](f, n, s); ok {
		known[namespace] = value
	}
}

// renew updates the part of a situation that is known without looking at its pods.
func (f *Fleet) renew(n *node, sit *Situation, state NodeState) {
	sit.NodeState, sit.Waves = state, f.waves
	sit.Refused, sit.Fixed, sit.Came, sit.Answers = n.refused, n.fixed, n.came, n.answers
	sit.First, sit.Ready, sit.Left = n.known, n.ready, nil
	if n.known.IsZero() {
		sit.First = f.now
	}
	for _, t := range n.tracked {
		if t.gone && f.now.Sub(t.goneAt) < leftFor {
			sit.Left = append(sit.Left, Leaving{Pod: t.pod, Gone: t.goneAt})
		}
	}
}

// allReady is since when the replacements of all nodes with pods of the Deployment are Ready;
// zero if some are not.
func (f *Fleet) allReady(name types.NamespacedName) (since time.Time) {
	for n := range f.users[Subject{DeploymentOfPod, name}] {
		if n.ready.IsZero() {
			return time.Time{}
		}
		since = interruption.Later(since, n.ready)
	}
	return since
}
