package narrow

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	restwatch "k8s.io/client-go/rest/watch"
)

func BenchmarkNarrowProtobuf(b *testing.B) {
	env := make([]corev1.EnvVar, 100_000)
	for i := range env {
		env[i].Name = "e"
	}
	item := inProtobuf(b, &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Env: env}}}})
	b.SetBytes(int64(len(item)))
	for b.Loop() {
		if _, err := io.Copy(io.Discard, protobufReaderOf(bytes.NewReader(item), kinds["pods"], "pods", false)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEvent is what an event of a watch about a usual pod costs us, narrowed and decoded.
func BenchmarkEvent(b *testing.B) {
	pod := usualPod()
	binary := eventInProtobuf(b, apiwatch.Modified, pod)
	object, err := runtime.Encode(serializerOf(runtime.ContentTypeJSON).Serializer, pod)
	if err != nil {
		b.Fatal(err)
	}
	text := fmt.Appendf(nil, `{"type":"MODIFIED","object":%s}`+"\n", bytes.TrimSpace(object))
	for _, c := range []struct {
		contentType string
		event       []byte
	}{{runtime.ContentTypeJSON, text}, {runtime.ContentTypeProtobuf, binary}} {
		b.Run(c.contentType, func(b *testing.B) {
			info := serializerOf(c.contentType)
			b.ReportAllocs()
			b.SetBytes(int64(len(c.event)))
			body := readerOf(newSource(io.NopCloser(&endless{text: c.event})), "pods", c.contentType+";stream=watch")
			frames := info.StreamSerializer.Framer.NewFrameReader(body)
			decoder := restwatch.NewDecoder(streaming.NewDecoder(frames, info.StreamSerializer.Serializer), info.Serializer)
			for b.Loop() {
				if _, _, err := decoder.Decode(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// endless says the same text again and again.
type endless struct {
	text []byte
	at   int
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.text[e.at:])
	e.at = (e.at + n) % len(e.text)
	return n, nil
}

func usualPod() *corev1.Pod {
	yes := true
	amounts := corev1.ResourceList{"cpu": resource.MustParse("250m"), "memory": resource.MustParse("256Mi")}
	container := func(name string) corev1.Container {
		return corev1.Container{
			Name: name, Image: "registry.example.com/shop/" + name + ":1.27.3", Resources: corev1.ResourceRequirements{Requests: amounts, Limits: amounts},
			Env:          []corev1.EnvVar{{Name: "LOG_LEVEL", Value: "info"}, {Name: "DATABASE", Value: "postgres://db.shop.svc:5432/shop"}},
			VolumeMounts: []corev1.VolumeMount{{Name: "kube-api-access-x8z2k", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true}},
		}
	}
	status := func(name string) corev1.ContainerStatus {
		return corev1.ContainerStatus{
			Name: name, Ready: true, Started: &yes, Image: "registry.example.com/shop/" + name + ":1.27.3", ImageID: "sha256:0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0",
			AllocatedResources: amounts, Resources: &corev1.ResourceRequirements{Requests: amounts, Limits: amounts},
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "web-5d8f7c9b6-x8z2k", GenerateName: "web-5d8f7c9b6-", Namespace: "shop", UID: "6f1d2a90-1b2c-4d3e-8f90-a1b2c3d4e5f6", ResourceVersion: "123456789",
		CreationTimestamp: metav1.Now(), Labels: map[string]string{"app": "web", "pod-template-hash": "5d8f7c9b6", "team": "shop"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-5d8f7c9b6", UID: "7f1d2a90-1b2c-4d3e-8f90-a1b2c3d4e5f6", Controller: &yes, BlockOwnerDeletion: &yes}},
		ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "kubelet", Operation: "Update", FieldsV1: metav1.NewFieldsV1(`{"f:status":{` + strings.Repeat(`"f:conditions":{"k:{\"type\":\"Ready\"}":{}},`, 20) + `"f:a":{}}}`)}},
	}}
	pod.Spec = corev1.PodSpec{
		NodeName: "ip-10-0-1-2.eu-west-1.compute.internal", Containers: []corev1.Container{container("web"), container("proxy")},
		Volumes:     []corev1.Volume{{Name: "kube-api-access-x8z2k", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}}}}}},
		Tolerations: []corev1.Toleration{{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute"}, {Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute"}},
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.1.7", HostIP: "10.0.1.2", ContainerStatuses: []corev1.ContainerStatus{status("web"), status("proxy")}}
	for _, kind := range []corev1.PodConditionType{"PodReadyToStartContainers", corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: "True", LastTransitionTime: metav1.Now()})
	}
	return pod
}
