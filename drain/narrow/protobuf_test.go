package narrow

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand"
	goruntime "runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8sschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	restwatch "k8s.io/client-go/rest/watch"
)

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, k8sschema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, policyv1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
}()

// serializerOf is client-go's for the content type.
func serializerOf(contentType string) runtime.SerializerInfo {
	types := serializer.NewCodecFactory(scheme).WithoutConversion().SupportedMediaTypes()
	info, _ := runtime.SerializerInfoForMediaType(types, contentType)
	return info
}

// inProtobuf is the object as the API server answers with it.
func inProtobuf(t testing.TB, object runtime.Object) []byte {
	t.Helper()
	kinds, _, err := scheme.ObjectKinds(object)
	if err != nil {
		t.Fatal(err)
	}
	object.GetObjectKind().SetGroupVersionKind(kinds[0])
	out, err := runtime.Encode(serializerOf(runtime.ContentTypeProtobuf).Serializer, object)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// eventInProtobuf is an event of a watch.
func eventInProtobuf(t testing.TB, kind apiwatch.EventType, object runtime.Object) []byte {
	t.Helper()
	out, err := (&metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: inProtobuf(t, object)}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(out))), out...)
}

func protobufReaderOf(in io.Reader, of kind, resource string, watch bool) *protobufReader {
	return newProtobufReader(newSource(io.NopCloser(in)), of, schemas()[resource], watch)
}

// narrowedProtobuf is what is left of the answer, read in pieces of every size.
func narrowedProtobuf(t testing.TB, of kind, resource string, watch bool, answer []byte) []byte {
	t.Helper()
	var first []byte
	for i, split := range []func(io.Reader) io.Reader{
		func(r io.Reader) io.Reader { return r }, iotest.OneByteReader, iotest.HalfReader, iotest.DataErrReader,
	} {
		out, err := io.ReadAll(split(protobufReaderOf(split(bytes.NewReader(answer)), of, resource, watch)))
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 && !bytes.Equal(out, first) {
			t.Fatalf("read in other pieces it is\n%q\ninstead of\n%q", out, first)
		}
		first = out
	}
	if len(first) > len(answer) {
		t.Errorf("%d bytes became %d", len(answer), len(first))
	}
	return first
}

func decodeProtobuf(t testing.TB, in []byte) runtime.Object {
	t.Helper()
	object, err := runtime.Decode(serializerOf(runtime.ContentTypeProtobuf).Serializer, in)
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// events are those of a watch as client-go reads them.
func events(t testing.TB, in []byte, contentType string) (all []apiwatch.Event) {
	t.Helper()
	info := serializerOf(contentType)
	frames := info.StreamSerializer.Framer.NewFrameReader(io.NopCloser(bytes.NewReader(in)))
	decoder := restwatch.NewDecoder(streaming.NewDecoder(frames, info.StreamSerializer.Serializer), info.Serializer)
	for {
		kind, object, err := decoder.Decode()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, apiwatch.Event{Type: kind, Object: object})
	}
}

// roomy is a kind with room for all that is kept.
func roomy(resource string) kind { return kind{kinds[resource].root, passes, passes} }

// What is left of an object is the same in protobuf as in JSON: alone, in a list, and in a watch.
func TestProtobufIsReadAsJSON(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	fill := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(seed), serializer.NewCodecFactory(scheme)).
		NilChance(.2).NumElements(1, 2).MaxDepth(12)
	same := func(of string, fromJSON, fromProtobuf any) {
		t.Helper()
		if diff := cmp.Diff(fromJSON, fromProtobuf, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%s (-json +protobuf):\n%s", of, diff)
		}
	}
	for resource, newObject := range map[string]func() runtime.Object{
		"pods":                        func() runtime.Object { return &corev1.Pod{} },
		"nodes":                       func() runtime.Object { return &corev1.Node{} },
		"namespaces":                  func() runtime.Object { return &corev1.Namespace{} },
		"persistentvolumeclaims":      func() runtime.Object { return &corev1.PersistentVolumeClaim{} },
		"resourcequotas":              func() runtime.Object { return &corev1.ResourceQuota{} },
		"policy/poddisruptionbudgets": func() runtime.Object { return &policyv1.PodDisruptionBudget{} },
	} {
		for range 30 {
			object := newObject()
			fill.Fill(object)
			metav1.SetMetaDataAnnotation(object.(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta), "spot-handler/when", "now")
			binary := inProtobuf(t, object)
			text, err := runtime.Encode(serializerOf(runtime.ContentTypeJSON).Serializer, object)
			if err != nil {
				t.Fatal(err)
			}
			want := newObject()
			if err := json.Unmarshal(readJSON(t, resource, string(text)), want); err != nil {
				t.Fatal(err)
			}
			same(resource, want, decodeProtobuf(t, narrowedProtobuf(t, roomy(resource), resource, false, binary)))

			got := events(t, narrowedProtobuf(t, roomy(resource), resource, true, eventInProtobuf(t, apiwatch.Added, object)), runtime.ContentTypeProtobuf)
			same("an event of "+resource, []apiwatch.Event{{Type: apiwatch.Added, Object: want}}, got)
		}
	}
}

// readJSON is what is left of the text.
func readJSON(t testing.TB, resource, text string) []byte {
	t.Helper()
	out, err := io.ReadAll(newReader(newSource(io.NopCloser(strings.NewReader(text))), roomy(resource)))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestListInProtobuf(t *testing.T) {
	large := corev1.Container{Name: "c", Env: []corev1.EnvVar{{Name: "e", Value: strings.Repeat("x", 3*chunkSize)}}}
	one := int64(1)
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "c", RemainingItemCount: &one}}
	want := list.DeepCopy()
	for i := range 300 {
		meta := metav1.ObjectMeta{Name: fmt.Sprint("pod-", i), Labels: map[string]string{"a": "b", "": ""}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}}
		meta.Annotations = map[string]string{"spot-handler/when": "now", "other/one": "dropped", "kubernetes.io/config.mirror": ""}
		spec := corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{large, {Name: "d"}}, Volumes: []corev1.Volume{
			{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{}}}},
			{Name: "w", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}},
		}}
		list.Items = append(list.Items, corev1.Pod{ObjectMeta: meta, Spec: spec})
		meta.ManagedFields = nil
		meta.Annotations = map[string]string{"spot-handler/when": "now", "kubernetes.io/config.mirror": ""}
		spec = corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c"}, {Name: "d"}}, Volumes: []corev1.Volume{
			{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}, {Name: "w"},
		}}
		want.Items = append(want.Items, corev1.Pod{ObjectMeta: meta, Spec: spec})
	}
	answer := inProtobuf(t, list)
	got := decodeProtobuf(t, narrowedProtobuf(t, kinds["pods"], "pods", false, answer)).(*corev1.PodList)
	got.TypeMeta = want.TypeMeta
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if left := narrowedProtobuf(t, kinds["pods"], "pods", false, nil); len(left) > 0 {
		t.Errorf("of nothing there is %q left", left)
	}
	empty := decodeProtobuf(t, narrowedProtobuf(t, kinds["pods"], "pods", false, inProtobuf(t, &corev1.PodList{}))).(*corev1.PodList)
	if len(empty.Items) > 0 {
		t.Errorf("of no pods there are %d left", len(empty.Items))
	}
}

// A watch says more than what happens to objects.
func TestWatchInProtobuf(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: strings.Repeat("x", 100_000)}}}}
	bookmark := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "8", Annotations: map[string]string{"k8s.io/initial-events-end": "true", "other": "x"}}}
	expired := &metav1.Status{Status: metav1.StatusFailure, Message: "too old", Reason: metav1.StatusReasonExpired, Code: 410, Details: &metav1.StatusDetails{RetryAfterSeconds: 1}}
	answer := join(
		eventInProtobuf(t, apiwatch.Modified, pod), eventInProtobuf(t, apiwatch.Bookmark, bookmark), eventInProtobuf(t, apiwatch.Error, expired),
	)
	got := events(t, narrowedProtobuf(t, kinds["pods"], "pods", true, answer), runtime.ContentTypeProtobuf)
	pod.Spec.Containers[0].Image = ""
	delete(bookmark.Annotations, "other")
	want := []apiwatch.Event{{Type: apiwatch.Modified, Object: pod}, {Type: apiwatch.Bookmark, Object: bookmark}, {Type: apiwatch.Error, Object: expired}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// A list of 60 MB costs next to nothing, nor does a watch that waits.
func TestMemoryInProtobuf(t *testing.T) {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Env: make([]corev1.EnvVar, 100_000)}}}}
	item, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	item = tagged(2, item)
	parts := []io.Reader{strings.NewReader(prefix), bytes.NewReader(tagged(1, tagged(1, []byte("v1")), tagged(2, []byte("PodList"))))}
	parts = append(parts, bytes.NewReader(binary.AppendUvarint([]byte{2<<3 | 2}, uint64(100*len(item)))))
	for range 100 {
		parts = append(parts, bytes.NewReader(item))
	}
	var before, now goruntime.MemStats
	schemas()
	goruntime.ReadMemStats(&before)
	body, err := io.ReadAll(protobufReaderOf(io.MultiReader(parts...), kinds["pods"], "pods", false))
	if err != nil || len(body) > 10_000 {
		t.Fatalf("%d bytes are left, %v", len(body), err)
	}
	goruntime.ReadMemStats(&now)
	if took := now.TotalAlloc - before.TotalAlloc; took > 1<<20 {
		t.Errorf("it took %d bytes", took)
	}
	if got := decodeProtobuf(t, body).(*corev1.PodList); len(got.Items) != 100 {
		t.Errorf("%d pods are left", len(got.Items))
	}

	event := eventInProtobuf(t, apiwatch.Added, &pod)
	r := protobufReaderOf(bytes.NewReader(bytes.Repeat(event, 2)), kinds["pods"], "pods", true)
	left, err := io.ReadAll(protobufReaderOf(bytes.NewReader(event), kinds["pods"], "pods", true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, len(left))); err != nil {
		t.Fatal(err)
	}
	if r.work != nil || r.in != nil || r.out.length > 0 || cap(r.out.of) > 2 || r.out.of[:1][0] != nil {
		t.Errorf("it holds %+v", r)
	}
}

// An answer in protobuf has the limits of one in JSON.
func TestLimitInProtobuf(t *testing.T) {
	const protobuf = "application/vnd.kubernetes.protobuf"
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: strings.Repeat("x", 1000)}}}}
	list := inProtobuf(t, &corev1.PodList{Items: []corev1.Pod{pod, pod, pod}})
	for _, c := range []struct {
		name, resource string
		limit          limit
		want           error
	}{
		{"within it", "pods", limit{int64(len(list)), 500}, nil},
		{"arrives", "pods", limit{int64(len(list)) - 1, 500}, ErrTooLong},
		{"kept", "pods", limit{int64(len(list)), 50}, ErrTooLong},
	} {
		body := newSource(io.NopCloser(bytes.NewReader(list)))
		body.left = c.limit
		if out, err := io.ReadAll(readerOf(body, c.resource, protobuf)); !errors.Is(err, c.want) || c.want != nil && len(out) > 0 {
			t.Errorf("%s: %d bytes, %v; want %v", c.name, len(out), err, c.want)
		}
	}
}

// The number of each field is below 64, as one word has a bit for each field that has arrived.
func TestNumbersAreSmall(t *testing.T) {
	if len(schemas()) != len(types) {
		t.Fatalf("%d of %d resources", len(schemas()), len(types))
	}
	for name, all := range schemas() {
		for _, m := range all {
			if len(m.fields) > 64 {
				t.Errorf("%s has a field %d: 64 bits record which fields have arrived", name, len(m.fields)-1)
			}
			for _, f := range m.fields {
				if f != nil && f.form == nested && len(f.of.fields) > 64 {
					t.Errorf("%s has a field with a field %d", name, len(f.of.fields)-1)
				}
			}
		}
	}
}
