package audit

import (
	"regexp"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/drain/plan"
)

func TestOwnersOfPods(t *testing.T) {
	owned := func(kind, name string, labels map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pod-1", Labels: labels, OwnerReferences: []metav1.OwnerReference{{Kind: kind, Name: name, Controller: new(true)}}}}
	}
	for want, pod := range map[string]*corev1.Pod{
		"pod/pod-1":      {ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pod-1"}},
		"statefulset/db": owned("StatefulSet", "db", nil),
		"replicaset/web": owned("ReplicaSet", "web", nil),
		"deployment/web": owned("ReplicaSet", "web-abc", map[string]string{"pod-template-hash": "abc"}),
	} {
		if got := ownerOf(pod); got.Object != want {
			t.Errorf("%s, want %s", got.Object, want)
		}
	}
}

func isApart(p Pod) bool {
	_, apart := p.apart()
	return apart
}

// What the checks read of a pod.
func TestPods(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	preStop := func(h corev1.LifecycleHandler) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &h} }
	}
	command := func(words ...string) func(*corev1.Pod) {
		return preStop(corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: words}})
	}
	annotated := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Annotations = map[string]string{key: value}
			p.Status.StartTime = new(metav1.NewTime(now))
		}
	}
	tolerates := func(list ...corev1.Toleration) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Tolerations = list }
	}
	everything := corev1.Toleration{Operator: corev1.TolerationOpExists}
	own := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	apart := func(key string, selector *metav1.LabelSelector) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: key, LabelSelector: selector}},
			}}
		}
	}
	spread := func(change func(*corev1.TopologySpreadConstraint)) func(*corev1.Pod) {
		c := corev1.TopologySpreadConstraint{TopologyKey: corev1.LabelHostname, MaxSkew: 2, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: own}
		change(&c)
		return func(p *corev1.Pod) { p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{c} }
	}
	for name, tt := range map[string]struct {
		change func(*corev1.Pod)
		ok     func(Pod) bool
	}{
		"as it is": {func(*corev1.Pod) {}, func(p Pod) bool {
			return !p.Surges && p.noSurge(now) == "why" && p.stays(now) == "" && p.blanket() == -1 && !p.probed() && !isApart(p) && p.sleep() == 0 && p.grace() == 30*time.Second
		}},
		"not Ready":                {func(p *corev1.Pod) { p.Status.Conditions = nil }, func(p Pod) bool { return p.Surges && p.noSurge(now) == "" }},
		"sleep":                    {preStop(corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 7}}), func(p Pod) bool { return p.sleep() == 7*time.Second }},
		"sleep command":            {command("sleep", "8"), func(p Pod) bool { return p.sleep() == 8*time.Second }},
		"sleep in a shell":         {command("/bin/sh", "-c", "sleep 9; nginx -s quit"), func(p Pod) bool { return p.sleep() == 9*time.Second }},
		"sleep with a unit":        {command("sleep", "9s"), func(p Pod) bool { return p.sleep() == 9*time.Second }},
		"no sleep":                 {command("/bin/oversleep", "9"), func(p Pod) bool { return p.sleep() == 0 }},
		"for good":                 {annotated(plan.DoNotDisrupt, "true"), func(p Pod) bool { return p.stays(now) == plan.DoNotDisrupt && p.noSurge(now) == "" }},
		"for a while":              {annotated(plan.DoNotDisrupt, "4h"), func(p Pod) bool { return p.stays(now) == "" && p.noSurge(now) == "" }},
		"not for the autoscaler":   {annotated(plan.SafeToEvict, "false"), func(p Pod) bool { return p.stays(now) == plan.SafeToEvict }},
		"everything":               {tolerates(corev1.Toleration{Key: "a"}, everything), func(p Pod) bool { return p.blanket() == 1 && p.noSurge(now) == "" }},
		"everything but NoExecute": {tolerates(corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}), func(p Pod) bool { return p.blanket() == 0 }},
		"all that evicts":          {tolerates(corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}), func(p Pod) bool { return p.blanket() == -1 }},
		"a readiness probe":        {func(p *corev1.Pod) { p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{} }, func(p Pod) bool { return p.probed() }},
		"a startup probe":          {func(p *corev1.Pod) { p.Spec.Containers[0].StartupProbe = &corev1.Probe{} }, func(p Pod) bool { return p.probed() }},
		"a readiness gate":         {func(p *corev1.Pod) { p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "lb"}} }, func(p Pod) bool { return p.probed() }},
		"a probe of a sidecar": {func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{RestartPolicy: new(corev1.ContainerRestartPolicyAlways), ReadinessProbe: &corev1.Probe{}}}
		}, func(p Pod) bool { return p.probed() }},
		"apart":                 {apart(corev1.LabelHostname, own), func(p Pod) bool { return isApart(p) }},
		"apart by zone":         {apart(corev1.LabelTopologyZone, own), func(p Pod) bool { return !isApart(p) }},
		"apart from others":     {apart(corev1.LabelHostname, &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}), func(p Pod) bool { return !isApart(p) }},
		"spread":                {spread(func(*corev1.TopologySpreadConstraint) {}), func(p Pod) bool { skew, apart := p.apart(); return apart && skew == 2 }},
		"spread where possible": {spread(func(c *corev1.TopologySpreadConstraint) { c.WhenUnsatisfiable = corev1.ScheduleAnyway }), func(p Pod) bool { return !isApart(p) }},
		"spread that honours taints": {spread(func(c *corev1.TopologySpreadConstraint) {
			c.NodeTaintsPolicy = new(corev1.NodeInclusionPolicyHonor)
		}), func(p Pod) bool { return !isApart(p) }},
	} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{Containers: make([]corev1.Container, 1)},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		}
		tt.change(pod)
		_, ready := plan.Ready(pod)
		if got := (Pod{Pod: pod, Owner: ownerOf(pod), Surges: !ready, NoSurge: "why"}); !tt.ok(got) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// Surged pods have another hash than their replacement pods, so what distinguishes pods by it keeps
// neither from the other.
func TestApartByHash(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Labels: map[string]string{"app": "web", hashLabel: "abc"}}}
	pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		TopologyKey: corev1.LabelHostname, MaxSkew: 1, WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, MatchLabelKeys: []string{hashLabel},
	}}
	if got := []bool{isApart(Pod{Pod: pod, Surges: true}), isApart(Pod{Pod: pod})}; !slices.Equal(got, []bool{false, true}) {
		t.Errorf("%v, want surged pods to leave their replacement pods a place, and others not", got)
	}
}

// Anything can stand where a pod names its owner. What cannot be the name of an object is in no
// command.
func FuzzOwner(f *testing.F) {
	f.Add("StatefulSet", "db; touch /tmp/owned", "", "")
	f.Add("StatefulSet", "db", "", "")
	f.Add("Stateful/Set", "-n", "", "")
	f.Add("ReplicaSet", "web-abc", "abc", "")
	f.Add("ReplicaSet", "$(touch owned)-abc", "abc", "")
	f.Add("ReplicaSet", "web-abc", "abc", `{"replicaSet":"'; touch owned;'-abc"}`)
	f.Fuzz(func(t *testing.T, kind, name, hash, surged string) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-1", Labels: map[string]string{hashLabel: hash, plan.SurgedLabel: hash},
			Annotations:     map[string]string{plan.SurgedAnnotation: surged},
			OwnerReferences: []metav1.OwnerReference{{Kind: kind, Name: name, Controller: new(true)}},
		}}
		command := ownerOf(pod).kubectl("patch", "-p", "it")
		if !regexp.MustCompile(`^kubectl -n shop patch [a-z]([a-z0-9-]*[a-z0-9])? [a-z0-9]([a-z0-9.-]*[a-z0-9])? -p it$`).MatchString(command) {
			t.Errorf("%q", command)
		}
	})
}
