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
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"spot-handler/drain"
	"spot-handler/drain/donotdisrupt"
)

const deploymentPrefix = "deployment/"

// ownerOf names what has made the pod, as kubectl does. Owner references and annotations hold any
// text: where that can be the name of no object, the pod counts as one that nobody has made.
func ownerOf(pod *corev1.Pod) Owned {
	kind, name := "pod", pod.Name
	if owner := metav1.GetControllerOf(pod); owner != nil {
		kind, name = strings.ToLower(owner.Kind), owner.Name
	}
	if d := drain.DeploymentOf(pod); d.Name != "" {
		kind, name = "deployment", d.Name
	}
	if len(validation.IsDNS1035Label(kind)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		kind, name = "pod", pod.Name
	}
	return Owned{pod.Namespace, kind + "/" + name}
}

// lean keeps of a pod, and of what a drain decides about it, what the checks read.
func lean(d drain.Decision, now time.Time) Pod {
	pod := d.Pod
	grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
		grace = *own
	}
	p := Pod{
		Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName, Owner: ownerOf(pod).Object, Labels: pod.Labels,
		Grace:  time.Duration(min(grace, int64(24*time.Hour/time.Second))) * time.Second,
		Surges: d.Surge || !ready(pod),
		Blanket: slices.IndexFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
			return t.Key == "" && (t.Effect == "" || t.Effect == corev1.TaintEffectNoSchedule)
		}),
		Unprobed: len(pod.Spec.ReadinessGates) == 0,
	}
	until, stays := donotdisrupt.Active(pod, now)
	kept := pod.Annotations[drain.SafeToEvict] == "false"
	switch {
	case strings.HasPrefix(p.Owner, "job/"): // it ends by itself
	case stays && until.IsZero():
		p.Stays = donotdisrupt.Annotation
	case kept:
		p.Stays = drain.SafeToEvict
	case pod.Annotations[drain.WhenAnnotation] != "": // its owner knows what that costs
	case !stays && p.Blanket < 0 && !p.Surges:
		p.NoSurge = d.NoSurge
	}
	for _, c := range running(pod) {
		if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
			p.Sleep = max(p.Sleep, sleepOf(c.Lifecycle.PreStop))
		}
		if c.ReadinessProbe != nil || c.StartupProbe != nil {
			p.Unprobed = false
		}
	}
	p.Apart = apart(pod, p.Surges)
	return p
}

func ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// running are the containers that run as long as the pod does.
func running(pod *corev1.Pod) []corev1.Container {
	return append(slices.DeleteFunc(slices.Clone(pod.Spec.InitContainers), func(c corev1.Container) bool {
		return c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways
	}), pod.Spec.Containers...)
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

// apart finds what keeps the pod off the nodes of its peers, or nil. A constraint that tells pods
// apart by their hash does not keep successors off surged pods, which have another.
func apart(pod *corev1.Pod, surges bool) *Apart {
	itself := func(selector *metav1.LabelSelector, keys []string) bool {
		matches, err := metav1.LabelSelectorAsSelector(selector)
		byHash := slices.Contains(keys, hashLabel) || selector != nil && selectsByHash(selector)
		return err == nil && matches.Matches(labels.Set(pod.Labels)) && !(surges && byHash)
	}
	found := &Apart{affinity: nodeaffinity.GetRequiredNodeAffinity(pod), tolerations: pod.Spec.Tolerations}
	if a := pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		for _, t := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			here := len(t.Namespaces) == 0 || slices.Contains(t.Namespaces, pod.Namespace)
			if here && t.TopologyKey == corev1.LabelHostname && itself(t.LabelSelector, t.MatchLabelKeys) {
				return found
			}
		}
	}
	for _, c := range pod.Spec.TopologySpreadConstraints {
		honours := c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor
		if c.TopologyKey == corev1.LabelHostname && c.WhenUnsatisfiable == corev1.DoNotSchedule && !honours && itself(c.LabelSelector, c.MatchLabelKeys) {
			found.Skew = int(c.MaxSkew)
			return found
		}
	}
	return nil
}
