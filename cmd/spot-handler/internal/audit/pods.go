package audit

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"spot-handler/drain"
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
	kind, name := drain.WorkloadOf(pod)
	kind = strings.ToLower(kind)
	if len(validation.IsDNS1035Label(kind)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		kind, name = "pod", pod.Name
	}
	return Owned{pod.Namespace, kind + "/" + name}
}

// grace is how long it asks to have to end: a day stands for longer.
func (p *Pod) grace() time.Duration { return min(drain.Grace(p.Pod), 24*time.Hour) }

// blanket is the place of the toleration of everything in its list of tolerations; none is -1.
func (p *Pod) blanket() int {
	return slices.IndexFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool {
		return t.Key == "" && (t.Effect == "" || t.Effect == corev1.TaintEffectNoSchedule)
	})
}

// stays is the annotation by which it asks for good not to be disrupted, or empty.
func (p *Pod) stays(now time.Time) string {
	until, stays := drain.DoNotDisruptActive(p.Pod, now)
	switch {
	case p.Owner.isJob(): // it ends by itself
		return ""
	case stays && until.IsZero():
		return drain.DoNotDisrupt
	case p.Annotations[drain.SafeToEvict] == "false":
		return drain.SafeToEvict
	}
	return ""
}

// noSurge is why its replacement pod is not made before it leaves, where no other check says it.
func (p *Pod) noSurge(now time.Time) string {
	_, stays := drain.DoNotDisruptActive(p.Pod, now)
	asksFor := p.Annotations[drain.WhenAnnotation] != "" // its owner knows what that costs
	if stays || asksFor || p.Surges || p.Owner.isJob() || p.blanket() >= 0 || p.stays(now) != "" {
		return ""
	}
	return p.NoSurge
}

// probed: it does not count as ready as soon as its containers run.
func (p *Pod) probed() bool {
	return len(p.Spec.ReadinessGates) > 0 || slices.ContainsFunc(p.running(), func(c corev1.Container) bool { return c.ReadinessProbe != nil || c.StartupProbe != nil })
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
		byHash := slices.Contains(keys, hashLabel) || slices.ContainsFunc(requirements, func(r labels.Requirement) bool { return isHash(r.Key()) })
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
		if c.TopologyKey == corev1.LabelHostname && c.WhenUnsatisfiable == corev1.DoNotSchedule && !honours && itself(c.LabelSelector, c.MatchLabelKeys) {
			return int(c.MaxSkew), true
		}
	}
	return 0, false
}
