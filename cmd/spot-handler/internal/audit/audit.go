// Package audit finds, before an interruption does, what will make one end badly.
//
// A check is a pure function over a [Snapshot]. It stands in the ordered list of checks, its id
// never changes its meaning, and a page of the manual explains it. A check belongs here only once
// an end-to-end test has shown that the drain goes as badly as the finding says, and well after
// its fix.
package audit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/handler/nodes"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner/karpenter"
)

// Severity says how bad it will be.
type Severity string

// The severities, the worst first.
const (
	Critical Severity = "critical" // pods end with their node, unasked, or have no place to go
	Warning  Severity = "warning"  // pods lose some of their grace, or a service some of its pods
)

// Severities lists every severity, the worst first.
func Severities() []string { return []string{string(Critical), string(Warning)} }

func (s Severity) rank() int { return slices.Index(Severities(), string(s)) }

// Finding is one thing that will hurt.
type Finding struct {
	ID       string   `json:"id"`
	Severity Severity `json:"severity"`
	// Object is what to change, as kubectl names it, such as deployment/web.
	Object    string `json:"object"`
	Namespace string `json:"namespace"` // empty if it has none
	Pods      int    `json:"pods"`      // concerned
	What      string `json:"what"`
	Why       string `json:"why"`
	// Fix is a command, to be read before it is run.
	Fix  string `json:"fix"`
	Page string `json:"page"`
}

// Key identifies a finding from run to run.
func (f Finding) Key() string { return f.ID + " " + f.Namespace + " " + f.Object }

// checks lists every check, in the order of their ids.
var checks = []struct {
	id       string
	severity Severity
	run      func(Snapshot) []Finding
}{
	{"SH101", Critical, each(budgets, budgetsThatNeverAllow)},
	{"SH102", Critical, podsWithTwoBudgets},
	{"SH103", Warning, each(workloads, gracesThatDoNotFit)},
	{"SH104", Warning, each(workloads, deploymentsWithoutSurge)},
	{"SH105", Warning, each(budgets, budgetsThatSelectNothing)},
	{"SH106", Warning, each(budgets, budgetsThatSelectByHash)},
	{"SH107", Warning, each(workloads, podsThatCannotBeSurged)},
	{"SH108", Warning, each(workloads, sleepsAsLongAsTheGrace)},
	{"SH109", Warning, each(workloads, blanketTolerations)},
	{"SH110", Warning, each(workloads, replacementsTrustedAtOnce)},
	{"SH111", Warning, each(workloads, replacementsWithoutPlace)},
	{"SH112", Warning, each(workloads, podsNeverToBeDisrupted)},
	{"SH113", Critical, each(workloads, volumesElsewhere)},

	{"SH201", Critical, each(pools, poolsWithoutFallback)},
	{"SH202", Critical, each(pools, fallbacksOfNoUse)},
	{"SH203", Warning, each(pools, fallbacksOnSpot)},
	{"SH204", Warning, each(pools, fallbacksElsewhere)},
	{"SH205", Critical, each(pools, fallbacksTooSmall)},
	{"SH206", Warning, each(workloads, workloadsInOneOffering)},
	{"SH207", Warning, each(workloads, workloadsAllOnSpot)},
	{"SH208", Critical, daemonOnSpot},
	{"SH209", Warning, each(pools, poolsThatLoseNodes)},

	{"SH301", Critical, nodesThatNobodyWatches},
	{"SH302", Warning, each(others, karpentersOwnQueue)},
	{"SH303", Critical, each(others, anotherHandler)},
	{"SH304", Critical, each(Snapshot.accounts, permissionsToStart)},
	{"SH305", Warning, each(Snapshot.accounts, permissionsToAct)},
	{"SH306", Warning, each(Snapshot.accounts, withoutFlowSchemas)},
	{"SH307", Warning, each(Snapshot.accounts, withoutPolicies)},
	{"SH308", Warning, each(targets, targetsThatDrainTooLong)},
	{"SH309", Warning, each(others, karpenterPollsStatus)},
}

// What is checked one after the other.
var (
	workloads = func(s Snapshot) []workload { return s.workloads }
	budgets   = func(s Snapshot) []budget { return s.budgets }
	targets   = func(s Snapshot) []Balanced { return s.Balanced }
	pools     = func(s Snapshot) (list []pool) {
		for _, o := range s.Outlooks {
			list = append(list, pool{o})
		}
		return list
	}
	others = func(s Snapshot) []Other {
		if len(s.Daemons) == 0 {
			return nil
		}
		return s.Others
	}
)

// each is a check of one thing after the other. What it finds is about the thing.
func each[T interface{ object() Owned }](things func(Snapshot) []T, check func(Snapshot, T) []Finding) func(Snapshot) []Finding {
	return func(s Snapshot) (found []Finding) {
		for _, thing := range things(s) {
			for _, f := range check(s, thing) {
				f.Namespace, f.Object = thing.object().Namespace, thing.object().Object
				found = append(found, f)
			}
		}
		return found
	}
}

// Of runs every check. The worst come first, then those that concern the most pods.
func Of(s Snapshot) []Finding {
	s.index()
	found := []Finding{}
	for _, c := range checks {
		for _, f := range c.run(s) {
			f.ID, f.Severity, f.Page = c.id, c.severity, page(c.id)
			found = append(found, f)
		}
	}
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Severity.rank(), b.Severity.rank()), cmp.Compare(b.Pods, a.Pods), cmp.Compare(a.Key(), b.Key()))
	})
	return found
}

func page(id string) string { return "deploy/docs/findings.md#" + strings.ToLower(id) }

// asJSON is a part of a patch, of strings: that does not fail.
func asJSON(value any) string {
	text, _ := json.Marshal(value)
	return string(text)
}

// Snapshot is what the checks read.
type Snapshot struct {
	At time.Time
	// Nodes are all nodes.
	Nodes []*corev1.Node
	// Pods are those that an interruption would have to move.
	Pods []Pod
	// Replicas are how many pods each workload has, on any node and on none.
	Replicas map[Owned]int
	// Budgets are all disruption budgets.
	Budgets []*policyv1.PodDisruptionBudget
	// Deployments are those of the pods.
	Deployments map[Owned]*Deployment
	// Idle are the labels that pods of workloads without any would have, by namespace.
	Idle map[string][]labels.Set
	// OnDemand is the label, with its value, of nodes that get no spot notice.
	OnDemand nodes.Label
	// Grace is the longest grace period that a spot notice leaves.
	Grace time.Duration

	// Outlooks are those of Karpenter's pools; none without it, or where it is not asked.
	Outlooks []karpenter.Outlook
	// MaxShare is how many percent of a workload may be on one offering.
	MaxShare int
	// TooMany are the pools that have lost too many nodes of late.
	TooMany map[string]offerings.Losses

	// Daemons are the pods of spot-handler; nil if they could not be read.
	Daemons []Daemon
	// Others are other programs that act on the same notices, or on other announcements.
	Others []Other
	// Balanced are the targets of AWS's load balancers.
	Balanced []Balanced

	node      map[string]*corev1.Node // by name; index fills it, and those below
	in        map[string][]*Pod       // the pods of each namespace
	workloads []workload              // each pod without one stands for itself
	budgets   []budget
}

// Owned is a workload, or another object of a namespace, as kubectl names it.
type Owned struct{ Namespace, Object string }

func (of Owned) object() Owned { return of }

// kind is what kind of object it is, such as deployment.
func (of Owned) kind() string {
	kind, _, _ := strings.Cut(of.Object, "/")
	return kind
}

// kubectl is a command about the object.
func (of Owned) kubectl(verb string, words ...string) string {
	kind, name, _ := strings.Cut(of.Object, "/")
	command := []string{"kubectl"}
	if of.Namespace != "" {
		command = append(command, "-n", of.Namespace)
	}
	return console.Command(slices.Concat(command, []string{verb, kind, name}, words)...)
}

// patchPods is how the pods of a workload get another template.
func (of Owned) patchPods(patch string) string {
	switch {
	case of.rolls():
		return of.kubectl("patch", "-p", `{"spec":{"template":`+patch+"}}")
	case of.kind() == "pod":
		return fmt.Sprintf("in the manifest of %s: %s", of.Object, patch)
	}
	return fmt.Sprintf("in the template of %s for its pods: %s", of.Object, patch)
}

// rolls reports whether the workload makes its pods again when their template changes.
func (of Owned) rolls() bool { return of.kind() == "deployment" || of.kind() == "statefulset" }

func (of Owned) setGrace(grace time.Duration) string {
	return of.patchPods(fmt.Sprintf(`{"spec":{"terminationGracePeriodSeconds":%.0f}}`, grace.Seconds()))
}

// Deployment is what the checks read of a Deployment.
type Deployment struct {
	Replicas int
	MinReady int // seconds
	Refuses  string
}

// workload is one whose pods an interruption would have to move.
type workload struct {
	Owned
	pods     []*Pod
	replicas int // on any node and on none
	// deployment is nil if it is none, or could not be read.
	deployment *Deployment
}

func (s *Snapshot) index() {
	s.node, s.in = map[string]*corev1.Node{}, map[string][]*Pod{}
	for _, n := range s.Nodes {
		s.node[n.Name] = n
	}
	theirs := map[Owned][]*Pod{}
	for i := range s.Pods {
		p := &s.Pods[i]
		s.in[p.Namespace], theirs[p.Owner] = append(s.in[p.Namespace], p), append(theirs[p.Owner], p)
	}
	for of, pods := range theirs {
		s.workloads = append(s.workloads, workload{of, pods, s.Replicas[of], s.Deployments[of]})
	}
	for _, b := range s.Budgets {
		if selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector); err == nil {
			covers := slices.DeleteFunc(slices.Clone(s.in[b.Namespace]), func(p *Pod) bool { return !selector.Matches(labels.Set(p.Labels)) })
			s.budgets = append(s.budgets, budget{b, selector, covers})
		}
	}
}

// count says how many of the pods an interruption would have to move are such.
func (s Snapshot) count(such func(*Pod) bool) (n int) {
	for i := range s.Pods {
		if such(&s.Pods[i]) {
			n++
		}
	}
	return n
}

// nodeLabel is the value of the label on the pod's node.
func (s Snapshot) nodeLabel(p *Pod, key string) string {
	if n := s.node[p.Spec.NodeName]; n != nil {
		return n.Labels[key]
	}
	return ""
}
