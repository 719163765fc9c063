package plan

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
)

// What is watched of the cluster besides the nodes' own pods.

// budgets are the disruption budgets of a namespace.
type budgets struct {
	listed bool
	list   []*policyv1.PodDisruptionBudget // by name
	index  *budgetIndex                    // of the list; nil if that has changed
}

// BudgetsListed is that all disruption budgets of a namespace have been seen.
type BudgetsListed struct{ Namespace string }

func (e BudgetsListed) apply(f *Fleet) {
	f.budgetsIn(e.Namespace).listed = true
	f.wavesStale()
	f.replanUsers(ofNamespace(Budgets, e.Namespace))
}

// BudgetSeen is that a disruption budget is there, has changed or is gone.
type BudgetSeen struct{ Before, After *policyv1.PodDisruptionBudget }

func (e BudgetSeen) apply(f *Fleet) {
	one := cmp.Or(e.After, e.Before)
	of := f.budgetsIn(one.Namespace)
	at, known := slices.BinarySearchFunc(of.list, one, func(a, b *policyv1.PodDisruptionBudget) int { return cmp.Compare(a.Name, b.Name) })
	list := slices.Clone(of.list) // a situation might have the other
	var was *policyv1.PodDisruptionBudget
	if known {
		was = list[at]
	}
	switch {
	case e.After == nil && known:
		list = slices.Delete(list, at, at+1)
	case e.After == nil:
	case known:
		list[at] = e.After
	default:
		list = slices.Insert(list, at, e.After)
	}
	of.list, of.index = list, nil
	switch {
	case !of.listed, !known && e.After == nil:
	case !known, e.After == nil, coversOthers(was, e.After), (waveSize(was) > 0) != (waveSize(e.After) > 0):
		f.replanUsers(ofNamespace(Budgets, one.Namespace)) // pods might have another budget now, or one that lets them go
		f.wavesOld = true
	case waveSize(was) != waveSize(e.After), sparedBy(was, 0) != sparedBy(e.After, 0):
		f.wavesOld = true
	}
	if e.After != nil {
		f.wakeRefused(e.After)
	}
}

// coversOthers reports whether the budget selects different pods than before.
func coversOthers(was, is *policyv1.PodDisruptionBudget) bool {
	return metav1.FormatLabelSelector(was.Spec.Selector) != metav1.FormatLabelSelector(is.Spec.Selector)
}

func (f *Fleet) budgetsIn(namespace string) *budgets {
	of := f.budgets[namespace]
	if of == nil {
		of = &budgets{}
		f.budgets[namespace] = of
	}
	return of
}

// budgetsOf are those that cover the pod, as far as they are known.
func (f *Fleet) budgetsOf(pod *corev1.Pod) []*policyv1.PodDisruptionBudget {
	of := f.budgets[pod.Namespace]
	if of == nil {
		return nil
	}
	if of.index == nil {
		of.index = new(indexBudgets(of.list))
	}
	return of.index.covering(pod)
}

// misledPause is how long a pod ignores changes of its budget that has been refused in spite of one: with a lagging
// watch, each of many changes may be out of date.
const misledPause = 250 * time.Millisecond

// wakeRefused lets refused pods try again, as many as the API server says the budget allows: the most urgent ones, if
// only a moment later, as no other must take their place.
func (f *Fleet) wakeRefused(budget *policyv1.PodDisruptionBudget) {
	n := int(budget.Status.DisruptionsAllowed)
	if n <= 0 {
		return
	}
	var waiting []*tracked
	for t := range f.waiting[budget.Namespace] {
		if t.stays() && !t.node.canceled && covers(budget, t.pod.Labels) {
			waiting = append(waiting, t)
		}
	}
	slices.SortFunc(waiting, func(a, b *tracked) int { return precedes(a.due, a.pod, b.due, b.pod) })
	for _, t := range waiting[:min(n, len(waiting))] {
		t.woken = true
		if again := t.misledAt.Add(misledPause); f.now.Before(again) {
			f.wait(t, interruption.Earlier(t.retryAt, again))
			continue
		}
		f.wake(t)
	}
}

// recountIn is how long a Deployment's changes are collected before its pods are counted again: while
// they roll, they change many times a second.
const recountIn = 20 * time.Millisecond

// deployment is a Deployment whose pods are on draining nodes, with all that it selects.
type deployment struct {
	Subject
	ledger     *replicaLedger
	listed     bool   // it is known whether there is a Deployment, and if so, which pods it has
	unreadable string // why it cannot be read
	object     *Deployment
	replicas   map[types.UID]*Replica
	state      DeploymentState // as it was last counted
	counted    bool            // whether that has happened
	told       DeploymentState // as it was when its pods' nodes were last told
	knows      bool            // whether they ever were told
}

// DeploymentSeen is how a Deployment is; nil if there is none, or no more.
type DeploymentSeen struct {
	Name       types.NamespacedName
	Deployment *Deployment
}

func (e DeploymentSeen) apply(f *Fleet) {
	if of := f.deployments[e.Name]; of != nil {
		of.object, of.unreadable = e.Deployment, ""
		of.listed = of.listed || e.Deployment == nil
		f.recount(of)
	}
}

// DeploymentUnreadable is that a Deployment cannot be read. Then its pods are not surged.
type DeploymentUnreadable struct {
	Name   types.NamespacedName
	Reason string
}

func (e DeploymentUnreadable) apply(f *Fleet) {
	if of := f.deployments[e.Name]; of != nil {
		of.listed, of.unreadable = true, "cannot be read: "+e.Reason
		f.recount(of)
	}
}

// ReplicasListed is that all pods of a Deployment have been seen.
type ReplicasListed struct{ Name types.NamespacedName }

func (e ReplicasListed) apply(f *Fleet) {
	if of := f.deployments[e.Name]; of != nil {
		of.listed = true
		f.recount(of)
	}
}

// ReplicaSeen is that a pod that a Deployment selects is there, has changed or is gone.
type ReplicaSeen struct {
	Name          types.NamespacedName
	Before, After *Replica
}

func (e ReplicaSeen) apply(f *Fleet) {
	of := f.deployments[e.Name]
	if of == nil {
		return
	}
	if e.Before != nil {
		delete(of.replicas, e.Before.UID)
	}
	if e.After != nil {
		of.replicas[e.After.UID] = e.After
		if e.After.surged { // it may be put back before the next count
			delete(of.ledger.surging, e.After.UID)
		}
	}
	f.recount(of)
}

// deploymentFor is what is known of a Deployment on behalf of the node; false until something is.
func (f *Fleet) deploymentFor(n *node, name types.NamespacedName) (DeploymentState, bool) {
	of := f.deployments[name]
	if of == nil {
		of = &deployment{
			Subject:  Subject{DeploymentOfPod, name},
			ledger:   newReplicaLedger(),
			replicas: map[types.UID]*Replica{},
		}
		f.deployments[name] = of
	}
	f.uses(n, of.Subject)
	budgets := f.budgets[name.Namespace]
	// A budget that is not known yet might select by what a surge changes.
	return of.state, of.counted && budgets != nil && budgets.listed
}

// recount has a Deployment's pods counted in a moment.
func (f *Fleet) recount(of *deployment) { f.recounts.sooner(of.Name, f.now.Add(recountIn)) }

// count counts a Deployment's pods, and lets those try that can go on.
func (f *Fleet) count(of *deployment) {
	if !of.listed {
		return
	}
	f.update(of)
	was, is := of.told, of.state // it may have been updated since for a request, without telling anyone
	news := (is.Selector == nil) != (was.Selector == nil) || is.Refuses != was.Refuses || is.Excess > was.Excess ||
		is.Lacking > was.Lacking || is.Unplaced > was.Unplaced
	if !of.knows || news {
		f.replanUsers(of.Subject)
	}
	of.told, of.knows = is, true
	f.reopen(of.Name)
}

// update counts at once.
func (f *Fleet) update(of *deployment) {
	of.counted = true
	if of.unreadable != "" {
		of.state = DeploymentState{Selector: labels.Everything(), Refuses: of.unreadable}
		return
	}
	var next time.Time
	of.state, next = of.ledger.State(f.now, of.object, of.list())
	if !next.IsZero() {
		f.recounts.sooner(of.Name, interruption.Later(next, f.now.Add(time.Millisecond)))
	}
}

func (of *deployment) list() []*Replica {
	list := make([]*Replica, 0, len(of.replicas))
	for _, r := range of.replicas {
		list = append(list, r)
	}
	return list
}

// reserve notes what is about to be requested, and reports whether the decision can have what it takes
// of its Deployment.
func (f *Fleet) reserve(d Decision) bool {
	of := f.deployments[d.Deployment]
	if of == nil || !of.listed || of.unreadable != "" {
		return !d.Takes
	}
	ahead := 0
	if !d.Takes {
		ahead = -1
	}
	ok := of.ledger.reserve(f.now, of.object, of.list(), d.Pod, d.Action, ahead)
	f.update(of)
	return ok || !d.Takes
}

// release gives back what was reserved.
func (f *Fleet) release(d Decision) {
	if of := f.deployments[d.Deployment]; of != nil {
		of.ledger.release(d.Pod.UID, d.Action)
		f.recount(of)
	}
}

// giveUp has no more pods of the Deployment surged, for as long as it is watched.
func (f *Fleet) giveUp(d Decision) {
	if of := f.deployments[d.Deployment]; of != nil && of.ledger.giveUpSurges(d.Reason) {
		f.report(Report{Kind: SurgesGivenUp, Deployment: d.Deployment, Reason: d.Reason})
		f.recount(of)
	}
}
