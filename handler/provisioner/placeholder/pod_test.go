package placeholder

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func list(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

// texts makes quantities comparable.
func texts(l corev1.ResourceList) map[string]string {
	m := map[string]string{}
	for name, q := range l {
		m[string(name)] = q.String()
	}
	return m
}

func TestPlaceholderRequestsWhatItsPodDoes(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	container := func(l corev1.ResourceList) corev1.Container {
		return corev1.Container{Name: "c", Resources: corev1.ResourceRequirements{Requests: l}}
	}
	for _, tt := range []struct {
		name             string
		spec             corev1.PodSpec
		requests, limits map[string]string
	}{
		{
			name:     "containers are added up",
			spec:     corev1.PodSpec{Containers: []corev1.Container{container(list("cpu", "500m", "memory", "1Gi")), container(list("cpu", "1"))}},
			requests: map[string]string{"cpu": "1500m", "memory": "1Gi"},
		},
		{
			name: "init container, sidecar and overhead, as the scheduler counts them",
			spec: corev1.PodSpec{
				InitContainers: []corev1.Container{
					{Name: "s", RestartPolicy: &always, Resources: corev1.ResourceRequirements{Requests: list("cpu", "100m")}},
					container(list("cpu", "2")),
				},
				Containers: []corev1.Container{container(list("cpu", "1"))},
				Overhead:   list("cpu", "250m", "memory", "120Mi"),
			},
			requests: map[string]string{"cpu": "2350m", "memory": "120Mi"},
		},
		{
			name: "extended resources and huge pages need limits",
			spec: corev1.PodSpec{Containers: []corev1.Container{
				container(list("cpu", "1", "nvidia.com/gpu", "2", "hugepages-2Mi", "64Mi", "ephemeral-storage", "1Gi")),
			}},
			requests: map[string]string{"cpu": "1", "memory": "0", "nvidia.com/gpu": "2", "hugepages-2Mi": "64Mi", "ephemeral-storage": "1Gi"},
			limits:   map[string]string{"nvidia.com/gpu": "2", "hugepages-2Mi": "64Mi"},
		},
		{
			name: "requests of nothing are left out, except for CPU and memory, on which there may be a quota",
			spec: corev1.PodSpec{Containers: []corev1.Container{
				container(list("cpu", "1", "memory", "1Gi", "ephemeral-storage", "0", "example.com/a", "0", "example.com/b", "0", "example.com/c", "0", "example.com/d", "0", "example.com/e", "0")),
			}},
			requests: map[string]string{"cpu": "1", "memory": "1Gi"},
		},
		{
			name: "nothing", spec: corev1.PodSpec{Containers: []corev1.Container{container(nil)}},
			requests: map[string]string{"cpu": "0", "memory": "0"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := New(Options{Image: "pause"})
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "uid-a"}, Spec: tt.spec}
			o := order{node: testNode("node-1"), instance: instance, expires: time.Now().Add(time.Minute)}
			got := b.placeholder(o, &corev1.PodTemplate{}, pod).Spec.Containers[0].Resources
			if tt.limits == nil {
				tt.limits = map[string]string{}
			}
			if diff := cmp.Diff(tt.requests, texts(got.Requests)); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.limits, texts(got.Limits)); diff != "" {
				t.Errorf("limits (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNamesAreTheSameForTheSame(t *testing.T) {
	if a, b := podName(instance, "uid-a"), podName(instance, "uid-a"); a != b {
		t.Errorf("%s and %s for the same", a, b)
	}
	names := map[string]bool{}
	for _, i := range []string{instance, "i-other", "I am no name/" + instance, "a-much-too-long-name-of-an-instance-as-nobody-has-ever-seen-one"} {
		for _, uid := range []types.UID{"uid-a", "uid-b"} {
			name := podName(i, uid)
			if len(name) > 63 || names[name] {
				t.Errorf("name %s is too long, or used twice", name)
			}
			names[name] = true
		}
	}
}

// A placeholder is what the page says: of the lowest priority, bound to the fallback nodes, kept by
// autoscalers, allowed by the Pod Security Standard "restricted", and gone by itself.
func TestPlaceholder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		selector, err := ParseSelector("life=od")
		if err != nil {
			t.Fatal(err)
		}
		b := New(Options{Selector: selector, Image: "registry.k8s.io/pause:3.10"})
		pod := owned("a", "ReplicaSet")
		pod.Spec.NodeSelector = map[string]string{"arch": "arm"}
		pod.Spec.Tolerations = []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}}
		rec := spot(2 * time.Minute)
		o, _ := b.choose(testNode("node-1"), rec, need(pod))
		template := b.template(*o)
		template.UID = "uid-of-the-template"
		labels := map[string]string{
			"app.kubernetes.io/name": "spot-handler-placeholder", "app.kubernetes.io/managed-by": "spot-handler",
			"spot-handler/placeholder": "i-0123456789abcdef0", "spot-handler/placeholder-node": "node-1",
		}
		spec := corev1.PodSpec{
			PriorityClassName:             "spot-handler-placeholder",
			TerminationGracePeriodSeconds: new(int64(0)),
			ActiveDeadlineSeconds:         new(int64(120)),
			RestartPolicy:                 corev1.RestartPolicyNever,
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: new(int64(65535)), RunAsGroup: new(int64(65535)),
				SeccompProfile: &corev1.SeccompProfile{Type: "RuntimeDefault"},
			},
			Containers: []corev1.Container{{
				Name: "placeholder", Image: "registry.k8s.io/pause:3.10", ImagePullPolicy: corev1.PullIfNotPresent,
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		}
		want := &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{
			Name: "placeholder-i-0123456789abcdef0", UID: "uid-of-the-template", Labels: labels,
			Annotations:     map[string]string{"spot-handler/interrupted-node": "node-1", "spot-handler/expires": "2000-01-01T00:02:00Z"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node-1", UID: "uid-of-node-1"}},
		}}
		want.Template.Labels, want.Template.Spec = labels, spec
		if diff := cmp.Diff(want, template); diff != "" {
			t.Errorf("template (-want +got):\n%s", diff)
		}

		spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list("cpu", "500m", "memory", "0"), Limits: corev1.ResourceList{}}
		spec.NodeSelector, spec.Tolerations = pod.Spec.NodeSelector, pod.Spec.Tolerations
		spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "life", Operator: corev1.NodeSelectorOpIn, Values: []string{"od"}}}}},
		}}}
		held := &corev1.Pod{Spec: spec, ObjectMeta: metav1.ObjectMeta{
			Name: podName(instance, pod.UID), Labels: labels,
			Annotations: map[string]string{
				"spot-handler/interrupted-node": "node-1", "spot-handler/expires": "2000-01-01T00:02:00Z",
				"spot-handler/holds-for": "default/a", "spot-handler/holds-for-uid": "uid-of-a",
				"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true",
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "PodTemplate", Name: "placeholder-i-0123456789abcdef0", UID: "uid-of-the-template"}},
		}}
		if diff := cmp.Diff(held, b.placeholder(*o, template, pod)); diff != "" {
			t.Errorf("placeholder (-want +got):\n%s", diff)
		}
	})
}
