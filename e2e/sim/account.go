package sim

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/sim/memapi"
	"spot-handler/handler/interruption"
)

// Account records what becomes of the nodes of a scene, and of the pods that it lists. Changes seen in a [World] or
// in a real cluster are passed to it, so both are judged alike. Times are from the scene's beginning.
type Account struct {
	until time.Duration
	taken map[string]time.Duration
	seen  map[types.UID]bool
	uids  map[string]types.UID // of the pods of the beginning, by name
	pods  map[string]*PodFate
	nodes map[string]*NodeFate
}

// Ends of pods.
const (
	EndNone    = "stays"     // nobody has asked it to end
	EndWhole   = "evicted"   // with its whole grace period
	EndCut     = "cut short" // evicted with less
	EndDeleted = "deleted"   // past its budget
	EndOwner   = "ended by its owner"
	EndLost    = "lost" // with its node, and nobody had asked it to end
)

// PodFate is what becomes of a pod of the beginning.
type PodFate struct {
	Workload, Node, Pod string

	End   string
	Grace int64         // the shortest that it was given, in seconds
	Asked time.Duration // when it was asked to end; 0: it was not
	Gone  time.Duration // when its Pod was removed, or its machine taken; 0: neither was
}

// NodeFate is what becomes of a node.
type NodeFate struct {
	Node string

	Recorded, Cordoned, Over time.Duration // 0: it never was
	Phase                    interruption.Phase
	Pods                     interruption.Pods
}

// NewAccount returns one of a scene, until a time.
func NewAccount(s Scene, until time.Duration) *Account {
	a := &Account{
		until: until, taken: map[string]time.Duration{}, seen: map[types.UID]bool{}, uids: map[string]types.UID{},
		pods: map[string]*PodFate{}, nodes: map[string]*NodeFate{},
	}
	for _, l := range s.Losses {
		if at := l.At + l.Lead - l.Early; l.Takes && at < until {
			a.taken[l.Node] = at
		}
	}
	for _, p := range s.Pods {
		a.pods[p.Name] = &PodFate{Workload: p.Workload, Node: p.Node, Pod: p.Name, End: EndNone}
	}
	for _, n := range s.Nodes {
		a.nodes[n.Name] = &NodeFate{Node: n.Name}
	}
	return a
}

// SeePod records a change of a pod, or a pod that exists when the account begins. removed: it has been deleted.
func (a *Account) SeePod(at time.Duration, pod *corev1.Pod, removed bool) {
	fate := a.pods[pod.Name]
	if fate == nil || at > a.until {
		return
	}
	if a.uids[pod.Name] == "" {
		a.uids[pod.Name] = pod.UID
	}
	if a.uids[pod.Name] != pod.UID { // the next one of its name
		return
	}
	if fate.Asked == 0 && (removed || pod.DeletionTimestamp != nil) {
		fate.Asked, fate.End, fate.Grace = at, endOf(pod), memapi.GraceOf(pod)
	}
	if grace := pod.DeletionGracePeriodSeconds; grace != nil && *grace > 0 { // 0 is a kubelet's last word
		fate.Grace = min(fate.Grace, *grace)
		if fate.End == EndWhole && fate.Grace < memapi.GraceOf(pod) {
			fate.End = EndCut
		}
	}
	if removed {
		fate.Gone = at
	}
}

// endOf is how a pod ends that was asked to.
func endOf(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type != corev1.DisruptionTarget || c.Status != corev1.ConditionTrue {
			continue
		}
		switch c.Reason {
		case "EvictionByEvictionAPI":
			return EndWhole
		case "DeletionBySpotHandler":
			return EndDeleted
		}
	}
	return EndOwner
}

// SeeNode records a change of a node.
func (a *Account) SeeNode(at time.Duration, node *corev1.Node) {
	fate := a.nodes[node.Name]
	if fate == nil || at > a.until {
		return
	}
	rec, has := recordOf(node)
	if !has {
		fate.Phase = ""
		return
	}
	if fate.Recorded == 0 {
		fate.Recorded = at
	}
	if fate.Cordoned == 0 && slices.Contains(rec.Ours, interruption.OursTaint) {
		fate.Cordoned = at
	}
	if fate.Over == 0 && rec.Phase.Over() {
		fate.Over = at
	}
	fate.Phase = rec.Phase
	if rec.Pods != nil {
		fate.Pods = *rec.Pods
		fate.Pods.Refusal = ""
	}
}

// Fates is an account that has ended.
type Fates struct {
	Pods  []PodFate
	Nodes []NodeFate
}

// Fates are those of all pods of the beginning and of all nodes, by name.
func (a *Account) Fates() (f Fates) {
	for _, p := range a.pods {
		fate := *p
		if at, taken := a.taken[fate.Node]; taken && (fate.Gone == 0 || fate.Gone > at) {
			fate.Gone = at
			if fate.Asked == 0 || fate.Asked > at {
				fate.End, fate.Asked, fate.Grace = EndLost, 0, 0
			}
		}
		f.Pods = append(f.Pods, fate)
	}
	for _, n := range a.nodes {
		f.Nodes = append(f.Nodes, *n)
	}
	slices.SortFunc(f.Pods, func(x, y PodFate) int { return strings.Compare(x.Pod, y.Pod) })
	slices.SortFunc(f.Nodes, func(x, y NodeFate) int { return strings.Compare(x.Node, y.Node) })
	return f
}

// Follow passes all pods that exist to the account, and from then on every change of a pod or node.
func (w *World) Follow(a *Account) {
	w.Do(func() {
		w.account = a
		for _, pod := range memapi.List[*corev1.Pod](w.Server, memapi.Pods) {
			a.SeePod(w.since(), pod, false)
		}
	})
}

func (w *World) tellAccount(c memapi.Change) {
	if w.account == nil {
		return
	}
	switch c.Kind {
	case memapi.Pods:
		if after, _ := c.After.(*corev1.Pod); after != nil {
			w.account.SeePod(w.since(), after, false)
		} else if before, _ := c.Before.(*corev1.Pod); before != nil {
			w.account.SeePod(w.since(), before, true)
		}
	case memapi.Nodes:
		if node, _ := c.After.(*corev1.Node); node != nil {
			w.account.SeeNode(w.since(), node)
		}
	}
}
