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
			requests: map[string]string{"cpu": "1", "nvidia.com/gpu": "2", "hugepages-2Mi": "64Mi", "ephemeral-storage": "1Gi"},
			limits:   map[string]string{"nvidia.com/gpu": "2", "hugepages-2Mi": "64Mi"},
		},
		{name: "nothing", spec: corev1.PodSpec{Containers: []corev1.Container{container(list("cpu", "0"))}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := New(Options{Image: "pause"})
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "uid-a"}, Spec: tt.spec}
			o := order{node: testNode("node-1"), instance: instance, expires: time.Now().Add(time.Minute)}
			got := b.placeholder(o, &corev1.PodTemplate{}, pod).Spec.Containers[0].Resources
			if tt.requests == nil {
				tt.requests = map[string]string{}
			}
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
