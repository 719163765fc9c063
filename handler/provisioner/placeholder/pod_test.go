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

func TestSelector(t *testing.T) {
	in := func(key string, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
	}
	notIn := func(key string, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpNotIn, Values: values}
	}
	term := func(rs ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: rs}
	}
	required := func(terms ...corev1.NodeSelectorTerm) corev1.PodSpec {
		return corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
		}}}
	}
	volume := corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}}}}
	elsewhere := volume
	elsewhere.NodeSelector = map[string]string{corev1.LabelTopologyZone: "zone-b"}
	scratch := corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}}
	fallback := in("life", "od")

	for _, tt := range []struct {
		name, selector string
		pod            corev1.PodSpec
		want           []corev1.NodeSelectorTerm
	}{
		{"any pod", "life=od", corev1.PodSpec{}, []corev1.NodeSelectorTerm{term(fallback)}},
		{
			"all operators", "a in (y,x),b notin (z),c,!d,e!=f,g>5,h<6", corev1.PodSpec{},
			[]corev1.NodeSelectorTerm{term(in("a", "x", "y"), notIn("b", "z"),
				corev1.NodeSelectorRequirement{Key: "c", Operator: corev1.NodeSelectorOpExists},
				corev1.NodeSelectorRequirement{Key: "d", Operator: corev1.NodeSelectorOpDoesNotExist},
				notIn("e", "f"),
				corev1.NodeSelectorRequirement{Key: "g", Operator: corev1.NodeSelectorOpGt, Values: []string{"5"}},
				corev1.NodeSelectorRequirement{Key: "h", Operator: corev1.NodeSelectorOpLt, Values: []string{"6"}})},
		},
		{"node selector that agrees", "life=od", corev1.PodSpec{NodeSelector: map[string]string{"life": "od", "arch": "arm"}}, []corev1.NodeSelectorTerm{term(fallback)}},
		{"node selector that excludes", "life=od", corev1.PodSpec{NodeSelector: map[string]string{"life": "spot"}}, nil},
		{"node selector for a label that must not be", "!spot", corev1.PodSpec{NodeSelector: map[string]string{"spot": "yes"}}, nil},
		{"pinned to the node", "life=od", corev1.PodSpec{NodeSelector: map[string]string{corev1.LabelHostname: "node-1"}}, nil},
		{
			"affinity: the terms that are possible", "life=od",
			required(term(in("arch", "arm")), term(in("life", "spot")), term(in("life", "spot", "od")), corev1.NodeSelectorTerm{},
				term(notIn("life", "od")), term(in(corev1.LabelHostname, "node-1")),
				corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{in("metadata.name", "node-1")}}),
			[]corev1.NodeSelectorTerm{term(in("arch", "arm"), fallback), term(in("life", "spot", "od"), fallback)},
		},
		{"affinity that excludes", "life=od", required(term(in("life", "spot"))), nil},
		{"volume claim", "life=od", volume, []corev1.NodeSelectorTerm{term(fallback, in(corev1.LabelTopologyZone, "zone-a"))}},
		{"volume claim, and another zone wanted", "life=od", elsewhere, nil},
		{"volume that goes with the pod", "life=od", scratch, []corev1.NodeSelectorTerm{term(fallback)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := ParseSelector(tt.selector)
			if err != nil {
				t.Fatal(err)
			}
			pod := &corev1.Pod{Spec: tt.pod}
			if diff := cmp.Diff(tt.want, s.terms(pod, zoneOf(testNode("node-1"), pod))); diff != "" {
				t.Errorf("terms (-want +got):\n%s", diff)
			}
		})
	}
	for _, text := range []string{"a=b=c", "a in b", "-a=b", "a=" + "not a value!"} {
		if s, err := ParseSelector(text); err == nil {
			t.Errorf("%q parsed as %v", text, s)
		}
	}
	if s, err := ParseSelector(""); err != nil || !s.Empty() {
		t.Errorf("empty text: %v, %v", s, err)
	}
}
