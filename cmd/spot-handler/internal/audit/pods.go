package audit

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/drain/plan"
)

// Pod is one that an interruption would have to move.
type Pod struct {
	*corev1.Pod
	// Owner is what has made it; the Deployment of a pod that has one.
	Owner Owned
	// Surges: its replacement pod is made before it leaves, as far as the cluster shows.
	Surges bool
	// NoSurge is why not, as the drain says it.
	NoSurge string
	// Zone is the zone that it cannot leave, as a volume of it is there; empty if there is none.
	Zone string
}

// ownerOf names what has made the pod, as kubectl does. Owner references and annotations hold any
// text: where that can be the name of no object, the pod counts as one that nobody has made.
func ownerOf(pod *corev1.Pod) Owned {
	kind, name := plan.WorkloadOf(pod)
	kind = strings.ToLower(kind)
	if len(validation.IsDNS1035Label(kind)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		kind, name = "pod", pod.Name
	}
	return Owned{pod.Namespace, kind + "/" + name}
}

// grace is how long it asks to have to end: a day stands for longer.
func (p *Pod) grace() time.Duration { return min(plan.Grace(p.Pod), 24*time.Hour) }

// blanket is the place of the toleration of everything in its list of tolerations; none is -1.
func (p *Pod) blanket() int {
	return slices.IndexFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool {
		return t.Key == "" && (t.Effect == "" || t.Effect == corev1.TaintEffectNoSchedule)
	})
}

// stays is the annotation by which it asks for good not to be disrupted, or empty.
func (p *Pod) stays(now time.Time) string {
	until, stays := plan.DoNotDisruptActive(p.Pod, now)
	switch {
	case p.Owner.isJob(): // it ends by itself
		return ""
	case stays && until.IsZero():
		return plan.DoNotDisrupt
	case p.Annotations[plan.SafeToEvict] == "false":
		return plan.SafeToEvict
	}
	return ""
}

// noSurge is why its replacement pod is not made before it leaves, where no other check says it.
func (p *Pod) noSurge(now time.Time) string {
	_, stays := plan.DoNotDisruptActive(p.Pod, now)
	asksFor := p.Annotations[plan.WhenAnnotation] != "" // its owner knows what that costs
	if stays || asksFor || p.Surges || p.Owner.isJob() || p.blanket() >= 0 || p.stays(now) != "" {
		return ""
	}
	return p.NoSurge
}

// probed: it does not count as ready as soon as its containers run.
func (p *Pod) probed() bool {
	probed := func(c corev1.Container) bool { return c.ReadinessProbe != nil || c.StartupProbe != nil }
	return len(p.Spec.ReadinessGates) > 0 || slices.ContainsFunc(p.running(), probed)
}

// running are the containers that run as long as the pod does.
func (p *Pod) running() []corev1.Container {
	return append(slices.DeleteFunc(slices.Clone(p.Spec.InitContainers), func(c corev1.Container) bool {
		return c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways
	}), p.Spec.Containers...)
}

// sleep is the longest sleep of its preStop hooks.
func (p *Pod) sleep() (longest time.Duration) {
	for _, c := range p.running() {
		if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
			longest = max(longest, sleepOf(c.Lifecycle.PreStop))
		}
	}
	return longest
}

var sleeps = regexp.MustCompile(`\bsleep\s+(\d{1,5})s?(?:\s|;|&|$)`)

// sleepOf is how long a preStop hook sleeps, by itself or by a command.
func sleepOf(hook *corev1.LifecycleHandler) time.Duration {
	if hook.Sleep != nil {
		return time.Duration(hook.Sleep.Seconds) * time.Second
	}
	if hook.Exec == nil {
		return 0
	}
	m := sleeps.FindStringSubmatch(strings.Join(hook.Exec.Command, " "))
	if m == nil {
		return 0
	}
	seconds, _ := strconv.Atoi(m[1]) // digits
	return time.Duration(seconds) * time.Second
}

// apart reports whether something keeps the pod off the nodes of its peers. skew is how many more
// of them than the emptiest node each can have; zero is an anti-affinity: one is on a node, and no
// more. What distinguishes pods by their hash does not keep replacement pods off surged pods, which
// have another.
func (p *Pod) apart() (skew int, apart bool) {
	itself := func(selector *metav1.LabelSelector, keys []string) bool {
		matches, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil || !matches.Matches(labels.Set(p.Labels)) {
			return false
		}
		requirements, _ := matches.Requirements()
		byHash := slices.Contains(keys, hashLabel) ||
			slices.ContainsFunc(requirements, func(r labels.Requirement) bool { return isHash(r.Key()) })
		return !p.Surges || !byHash
	}
	if a := p.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		for _, t := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			here := len(t.Namespaces) == 0 || slices.Contains(t.Namespaces, p.Namespace)
			if here && t.TopologyKey == corev1.LabelHostname && itself(t.LabelSelector, t.MatchLabelKeys) {
				return 0, true
			}
		}
	}
	for _, c := range p.Spec.TopologySpreadConstraints {
		honours := c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor
		perNode := c.TopologyKey == corev1.LabelHostname && c.WhenUnsatisfiable == corev1.DoNotSchedule
		if perNode && !honours && itself(c.LabelSelector, c.MatchLabelKeys) {
			return int(c.MaxSkew), true
		}
	}
	return 0, false
}

// budget is a disruption budget, and those that it covers of the pods to be moved.
type budget struct {
	*policyv1.PodDisruptionBudget
	selector labels.Selector
	covers   []*Pod
}

func (b budget) object() Owned { return Owned{b.Namespace, "poddisruptionbudget/" + b.Name} }

func (b budget) patch(spec string) string {
	return b.object().kubectl("patch", "--type=merge", "-p", `{"spec":{`+spec+"}}")
}

// budgetsThatNeverAllow: as many pods as there are have to be healthy, so the API server refuses
// every eviction. Only pods whose replacement pods are made first get away.
func budgetsThatNeverAllow(_ Snapshot, b budget) []Finding {
	if b.Status.ExpectedPods == 0 || b.Status.ExpectedPods > b.Status.DesiredHealthy {
		return nil
	}
	stuck := slices.DeleteFunc(slices.Clone(b.covers), func(p *Pod) bool { return p.Surges })
	if len(stuck) == 0 {
		return nil
	}
	return []Finding{{
		Pods: len(stuck),
		What: fmt.Sprintf("never allows an eviction: %d of %d pods have to be healthy", b.Status.DesiredHealthy, b.Status.ExpectedPods),
		Why:  fmt.Sprintf("%s of %s cannot be evicted, and end with their node", console.Count(len(stuck), "pod"), owners(stuck)),
		Fix:  b.patch(`"minAvailable":null,"maxUnavailable":1`),
	}}
}

// podsWithTwoBudgets: the API server evicts no pod that two budgets cover.
func podsWithTwoBudgets(s Snapshot) (found []Finding) {
	type pair struct{ first, second Owned }
	both := map[pair][]*Pod{}
	theirs := map[*Pod]Owned{} // the first of each pod
	for _, b := range s.budgets {
		for _, p := range b.covers {
			first, taken := theirs[p]
			if !taken {
				theirs[p] = b.object()
				continue
			}
			both[pair{first, b.object()}] = append(both[pair{first, b.object()}], p)
		}
	}
	for of, covered := range both {
		_, first, _ := strings.Cut(of.first.Object, "/")
		found = append(found, Finding{
			Namespace: of.second.Namespace, Object: of.second.Object, Pods: len(covered),
			What: fmt.Sprintf("covers %s that budget %s covers too", console.Count(len(covered), "pod"), first),
			Why:  fmt.Sprintf("the API server evicts no pod with two budgets: those of %s end with their node", owners(covered)),
			Fix:  of.second.kubectl("delete"),
		})
	}
	return found
}

// budgetsThatSelectNothing: its author believes that pods are covered, and all of them can be
// evicted at once.
func budgetsThatSelectNothing(s Snapshot, b budget) []Finding {
	counted := b.Status.ObservedGeneration >= b.Generation
	// Nobody wants its pods at the moment.
	idle := slices.ContainsFunc(s.Idle[b.Namespace], func(l labels.Set) bool { return b.selector.Matches(l) })
	if !counted || b.Status.ExpectedPods > 0 || len(s.in[b.Namespace]) == 0 || len(b.covers) > 0 || idle {
		return nil
	}
	f := Finding{
		What: "selects no pod", Why: "the pods it was meant for can all be evicted at the same moment",
		Fix: b.object().kubectl("delete"),
	}
	if labels, n := s.meant(b); n > 0 {
		f.Pods, f.Fix = n, b.patch(fmt.Sprintf(`"selector":{"matchLabels":%s}`, labels))
	}
	return []Finding{f}
}

// meant finds the workload of the budget's own name, and what the budget's labels would have to
// be for its pods, as JSON.
func (s Snapshot) meant(b budget) (text string, pods int) {
	if b.Spec.Selector == nil || len(b.Spec.Selector.MatchLabels) == 0 || len(b.Spec.Selector.MatchExpressions) > 0 {
		return "", 0
	}
	theirs := slices.DeleteFunc(slices.Clone(s.in[b.Namespace]), func(p *Pod) bool {
		_, name, _ := strings.Cut(p.Owner.Object, "/")
		return name != b.Name
	})
	if len(theirs) == 0 {
		return "", 0
	}
	wanted := map[string]string{}
	for key := range b.Spec.Selector.MatchLabels {
		value, ok := theirs[0].Labels[key]
		if !ok {
			return "", 0
		}
		wanted[key] = value
	}
	for _, p := range theirs {
		if !labels.SelectorFromSet(wanted).Matches(labels.Set(p.Labels)) {
			return "", 0
		}
	}
	return asJSON(wanted), len(theirs)
}

// hashLabel is what a surge changes of a pod.
const hashLabel = "pod-template-hash"

// budgetsThatSelectByHash: the budget would cover other pods once some are surged, so none is.
func budgetsThatSelectByHash(s Snapshot, b budget) []Finding {
	held := slices.DeleteFunc(slices.Clone(s.in[b.Namespace]), func(p *Pod) bool {
		return !p.Surges || p.Labels[hashLabel] == "" || !plan.LosesSurged(b.PodDisruptionBudget, p.Labels)
	})
	if len(held) == 0 {
		return nil
	}
	return []Finding{{
		Pods: len(held), What: "selects by " + hashLabel + ", which a surge changes",
		Why: fmt.Sprintf("the pods of %s are not surged: they leave before their replacement pods are ready", owners(held)),
		Fix: b.withoutHash(),
	}}
}

// withoutHash lets a budget select by what else it selects by. If that is nothing, it would cover
// every pod of its namespace.
func (b budget) withoutHash() string {
	rest := b.Spec.Selector.DeepCopy()
	maps.DeleteFunc(rest.MatchLabels, func(key, _ string) bool { return isHash(key) })
	rest.MatchExpressions = slices.DeleteFunc(rest.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return isHash(r.Key) })
	if len(rest.MatchLabels)+len(rest.MatchExpressions) == 0 {
		return b.object().kubectl("delete")
	}
	return b.object().kubectl("patch", "--type=json", "-p", fmt.Sprintf(`[{"op":"replace","path":"/spec/selector","value":%s}]`, asJSON(rest)))
}

func isHash(key string) bool { return key == hashLabel || key == plan.SurgedLabel }

// owners names the workloads of pods.
func owners(list []*Pod) string {
	names := map[string]bool{}
	for _, p := range list {
		names[p.Owner.Object] = true
	}
	return strings.Join(console.Some(slices.Sorted(maps.Keys(names)), 3), ", ")
}
