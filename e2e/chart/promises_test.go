package chart

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// drainers are the components that drain, by mode.
var drainers = map[string]string{"imds": "drain", "queue": "queue", "both": "queue"}

// extras are the names of the matrix's extraObjects.
var extras = []string{"extra", "spot-handler-text"}

// promises are what holds whatever the values.
func promises(t *testing.T, mode string, objects []unstructured.Unstructured) {
	t.Helper()
	seen := map[string]bool{}
	for _, o := range objects {
		if seen[id(o)] {
			t.Errorf("%s is there twice", id(o))
		}
		seen[id(o)] = true
		if slices.Contains(extras, o.GetName()) {
			continue
		}
		if o.GetLabels()["app.kubernetes.io/name"] != "spot-handler" || o.GetLabels()["app.kubernetes.io/managed-by"] != "Helm" {
			t.Errorf("%s has the labels %v", id(o), o.GetLabels())
		}
		if len(o.GetName()) > 63 {
			t.Errorf("%s: the name is too long", id(o))
		}
	}
	kinds := map[string]int{}
	for _, o := range objects {
		kinds[o.GetKind()]++
	}
	daemonSets := map[string]int{"imds": 1, "queue": 0, "both": 1}[mode]
	for kind, want := range map[string]int{"DaemonSet": daemonSets, "Deployment": 1, "PodDisruptionBudget": 1, "Secret": 0} {
		if kinds[kind] != want {
			t.Errorf("mode %s has %d objects of kind %s, want %d", mode, kinds[kind], kind, want)
		}
	}
	if daemonSets == 1 {
		pod := workload(t, objects, "imds")
		restricted(t, pod)
		daemonSet(t, pod)
	}
	pod := workload(t, objects, drainers[mode])
	restricted(t, pod)
	deployment(t, pod)
}

// restricted: the pod has what the Pod Security Standard of this name asks for, and a root
// file system that is read-only.
func restricted(t *testing.T, pod corev1.PodTemplateSpec) {
	t.Helper()
	confined(t, pod.Spec)
	for _, c := range pod.Spec.Containers {
		if c.LivenessProbe == nil || c.ReadinessProbe == nil || c.LivenessProbe.HTTPGet.Path != "/healthz" || c.ReadinessProbe.HTTPGet.Path != "/readyz" {
			t.Error("no probes")
		}
		if len(c.Ports) != 1 || c.Ports[0].Name != "http" {
			t.Errorf("ports %v, want http", c.Ports)
		}
	}
	if pod.Labels["app.kubernetes.io/component"] == "" || pod.Spec.ServiceAccountName == "" {
		t.Errorf("labels %v, service account %q", pod.Labels, pod.Spec.ServiceAccountName)
	}
}

// confined: see restricted.
func confined(t *testing.T, pod corev1.PodSpec) {
	t.Helper()
	s := pod.SecurityContext
	if s == nil || !deref(s.RunAsNonRoot, false) || deref(s.RunAsUser, 0) == 0 || s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("security context of the pod: %+v", s)
	}
	for _, c := range pod.Containers {
		s := c.SecurityContext
		if s == nil || deref(s.AllowPrivilegeEscalation, true) || !deref(s.ReadOnlyRootFilesystem, false) ||
			deref(s.Privileged, false) || s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("security context of the container: %+v", s)
		}
		if c.Resources.Requests.Cpu().MilliValue() > 100 || c.Resources.Requests.Memory().Value() > 64<<20 || c.Resources.Requests.Cpu().IsZero() {
			t.Errorf("requests %v, want small ones", c.Resources.Requests)
		}
	}
}

func daemonSet(t *testing.T, pod corev1.PodTemplateSpec) {
	t.Helper()
	c := pod.Spec.Containers[0]
	if pod.Spec.PriorityClassName != "system-node-critical" || !slices.Equal(pod.Spec.Tolerations, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}) {
		t.Errorf("priority %s, tolerations %v", pod.Spec.PriorityClassName, pod.Spec.Tolerations)
	}
	if !slices.Contains(c.Args, "--drain=false") {
		t.Errorf("args %q: the DaemonSet drains", c.Args)
	}
	if (c.Ports[0].HostPort != 0) != pod.Spec.HostNetwork {
		t.Errorf("host network %t, and host port %d", pod.Spec.HostNetwork, c.Ports[0].HostPort)
	}
	for _, e := range c.Env {
		if strings.HasPrefix(e.Name, "AWS_") {
			t.Errorf("the DaemonSet has %s: it has no business with AWS", e.Name)
		}
	}
	terms := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	var keys []string
	for _, term := range terms {
		if len(term.MatchExpressions) == 0 || term.MatchExpressions[0].Operator != corev1.NodeSelectorOpIn {
			t.Errorf("node selector term %v", term)
			continue
		}
		keys = append(keys, term.MatchExpressions[0].Key)
	}
	if want := []string{"eks.amazonaws.com/capacityType", "karpenter.sh/capacity-type", "node-lifecycle"}; !slices.Equal(keys, want) {
		t.Errorf("spot nodes are recognised by %v, want %v", keys, want)
	}
}

func deployment(t *testing.T, pod corev1.PodTemplateSpec) {
	t.Helper()
	if pod.Spec.PriorityClassName != "system-cluster-critical" || pod.Spec.HostNetwork {
		t.Errorf("priority %s, host network %t", pod.Spec.PriorityClassName, pod.Spec.HostNetwork)
	}
	affinity := pod.Spec.Affinity.NodeAffinity
	terms := affinity.PreferredDuringSchedulingIgnoredDuringExecution
	if len(terms) != 1 || len(terms[0].Preference.MatchExpressions) != 3 || slices.ContainsFunc(terms[0].Preference.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
		return r.Operator != corev1.NodeSelectorOpNotIn
	}) {
		t.Errorf("off spot nodes by %v", terms)
	}
	if affinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		t.Error("the Deployment cannot run where all nodes are spot")
	}
	var spread []string
	for _, c := range pod.Spec.TopologySpreadConstraints {
		spread = append(spread, c.TopologyKey)
		if c.TopologyKey == corev1.LabelHostname && (c.MinDomains == nil || *c.MinDomains < 1) {
			t.Errorf("replicas may share a host: %+v", c)
		}
	}
	if want := []string{corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelInstanceTypeStable}; !slices.Equal(spread, want) {
		t.Errorf("spread over %v, want %v", spread, want)
	}
}

func deref[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// workload is the pod template of a component.
func workload(t *testing.T, objects []unstructured.Unstructured, component string) corev1.PodTemplateSpec {
	t.Helper()
	for _, o := range objects {
		var err error
		switch o.GetKind() + " " + component {
		case "DaemonSet imds":
			var set appsv1.DaemonSet
			if err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &set, true); err == nil {
				return set.Spec.Template
			}
		case "Deployment drain", "Deployment queue":
			var d appsv1.Deployment
			if err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &d, true); err == nil {
				return d.Spec.Template
			}
		}
		if err != nil {
			t.Fatalf("%s: %v", id(o), err)
		}
	}
	t.Fatalf("no workload of %s", component)
	return corev1.PodTemplateSpec{}
}

func containerArgs(t *testing.T, pod corev1.PodTemplateSpec) []string {
	t.Helper()
	if len(pod.Spec.Containers) != 1 {
		t.Fatalf("%d containers", len(pod.Spec.Containers))
	}
	return pod.Spec.Containers[0].Args
}
