package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"spot-handler/drain/narrow"
	"spot-handler/drain/plan"
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
	type mayBeCut struct {
		corev1.Pod
		Cut bool `json:"spotHandlerCut"` // see narrow.CutKey
	}
	cut := 0
	for range 200 {
		pod := &corev1.Pod{}
		fill.Fill(pod)
		for i := range pod.Status.Conditions {
			pod.Status.Conditions[i].Type = kinds[rand.Intn(len(kinds))]
		}
		for i := range pod.Spec.Volumes {
			pod.Spec.Volumes[i].VolumeSource = volumes[rand.Intn(len(volumes))]
		}
		for _, key := range []string{plan.DoNotDisrupt, plan.SafeToEvict, plan.BlockedAnnotation, plan.WhenAnnotation, plan.SurgedAnnotation, plan.NoticeAnnotation, corev1.MirrorPodAnnotationKey} {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, key, "x")
		}
		read := narrowed(t, "/api/v1/pods", mayBeCut{Pod: *pod})
		if read.Cut { // one of its fields is longer than what is read of a field
			cut++
			continue
		}
		got := &read.Pod
		if diff := cmp.Diff(plan.Lean(pod), plan.Lean(got), cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
		if diff := cmp.Diff(plan.ReplicaOf(pod), plan.ReplicaOf(got), cmp.AllowUnexported(plan.Replica{}), cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	}
	if cut > 20 {
		t.Errorf("%d of 200 pods are cut: this shows little", cut)
	}
}

// hostilePods are pods of 1.3 MB in a list, as the API server writes one. In each another field is
// long: one that nobody reads, or one that has to be read.
func hostilePods(w io.Writer, count int) {
	const size = 1_300_000
	var texts []string
	for i := range 5 {
		yes := true
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name:            "NAME",
			Namespace:       "shop",
			UID:             "uid-NAME",
			Labels:          map[string]string{"app": "web", plan.HashLabel: "abc12"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web-abc12", UID: "set", Controller: &yes}},
		}}
		p.Spec.Containers = []corev1.Container{{Name: "a"}}
		switch i {
		case 0:
			p.Spec.Containers[0].Env = slices.Repeat([]corev1.EnvVar{{Name: "e"}}, size/len(`{"name":"e"},`))
		case 1:
			for j := range size / len(`"l12345":"",`) {
				p.Labels[fmt.Sprint("l", j)] = ""
			}
		case 2:
			p.Spec.Tolerations = slices.Repeat([]corev1.Toleration{{Key: "k"}}, size/len(`{"key":"k"},`))
		case 3:
			p.Spec.Containers = slices.Repeat(p.Spec.Containers, size/len(`{"name":"a","resources":{}},`))
		case 4:
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: slices.Repeat([]corev1.PodAffinityTerm{{TopologyKey: "a"}}, size/len(`{"topologyKey":"a"},`)),
			}}
		}
		text, _ := json.Marshal(p)
		texts = append(texts, string(text))
	}
	fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[`)
	for i := range count {
		for j, part := range strings.Split(texts[i%len(texts)], "NAME") { // not the whole, which would count
			if j > 0 {
				fmt.Fprint(w, "hostile-", i)
			}
			_, _ = io.WriteString(w, part)
		}
		_, _ = io.WriteString(w, ",")
	}
	fmt.Fprint(w, `{"metadata":{"name":"last"}}]}`)
}

// Two hundred of them on one node cost little memory. Read whole they take 2.6 GiB.
func TestHostilePods(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Has("watch") {
			<-r.Context().Done()
			return
		}
		hostilePods(w, 200)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	group := corev1.SchemeGroupVersion
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, group)
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	conf := &rest.Config{Host: server.URL, APIPath: "/api", TLSClientConfig: rest.TLSClientConfig{Insecure: true}, ContentConfig: rest.ContentConfig{
		GroupVersion: &group, NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion(), ContentType: runtime.ContentTypeJSON,
	}}
	conf.Wrap(narrow.Transport)
	client, err := rest.RESTClientFor(conf)
	if err != nil {
		t.Fatal(err)
	}
	goruntime.GC()
	var now goruntime.MemStats
	goruntime.ReadMemStats(&now)
	before, peak := now.HeapInuse, uint64(0)
	known := make(chan struct{})
	w := New(Options{Clients: Clients{Pods: client}, Logger: zerolog.Nop()}).newPodWatch("node-a", func(_, _ *corev1.Pod) {}, func() { close(known) })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // the server waits for its watch
	go w.Run(ctx)
	for waiting := true; waiting; {
		select {
		case <-known:
			waiting = false
		case <-time.After(5 * time.Millisecond):
		}
		goruntime.ReadMemStats(&now)
		peak = max(peak, now.HeapInuse)
	}
	took := (float64(peak) - float64(before)) / (1 << 20)
	t.Logf("%.0f MiB at the peak", took)
	if pods := len(w.All()); pods != 201 || took > 64 {
		t.Errorf("%d pods, %.0f MiB at the peak", pods, took)
	}
}
