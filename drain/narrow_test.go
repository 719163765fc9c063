package drain

import (
	"encoding/json"
	"io"
	"math/rand"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"spot-handler/drain/donotdisrupt"
	"spot-handler/drain/narrow"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// narrowed is the object as the API server's answer to the path brings it to us.
func narrowed[T any](t *testing.T, path string, object T) (got T) {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://cluster"+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := narrow.Transport(roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(string(text)))}, nil
	})).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	return got
}

// What is dropped before pods are decoded is nothing that a plan reads.
func TestPodsAreReadAsTheyAre(t *testing.T) {
	fill := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(time.Now().UnixNano()), serializer.NewCodecFactory(runtime.NewScheme())).
		NilChance(.2).NumElements(1, 2).MaxDepth(12)
	kinds := []corev1.PodConditionType{corev1.PodReady, corev1.PodScheduled, corev1.PodInitialized}
	volumes := []corev1.VolumeSource{
		{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}, {Ephemeral: &corev1.EphemeralVolumeSource{}}, {AzureDisk: &corev1.AzureDiskVolumeSource{}},
		{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}},
	}
	for range 200 {
		pod := &corev1.Pod{}
		fill.Fill(pod)
		for i := range pod.Status.Conditions {
			pod.Status.Conditions[i].Type = kinds[rand.Intn(len(kinds))]
		}
		for i := range pod.Spec.Volumes {
			pod.Spec.Volumes[i].VolumeSource = volumes[rand.Intn(len(volumes))]
		}
		for _, key := range []string{donotdisrupt.Annotation, SafeToEvict, BlockedAnnotation, WhenAnnotation, SurgedAnnotation, NoticeAnnotation, corev1.MirrorPodAnnotationKey} {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, key, "x")
		}
		got := narrowed(t, "/api/v1/pods", pod)
		if diff := cmp.Diff(Lean(pod), Lean(got), cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
		if diff := cmp.Diff(memberOf(pod), memberOf(got), cmp.AllowUnexported(member{}), cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	}
}
