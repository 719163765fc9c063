package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// Whatever the API server writes is read as client-go reads it, whether it begins as usual or not.
func TestCodecReadsAsClientGo(t *testing.T) {
	pod := `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","uid":"1"},"spec":{"nodeName":"a"}}`
	texts := map[string]string{
		"a pod":                  pod,
		"a list":                 `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[{"metadata":{"name":"web"}}]}`,
		"of a group":             `{"kind":"PodDisruptionBudget","apiVersion":"policy/v1","metadata":{"name":"web"}}`,
		"a status":               `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`,
		"in another order":       `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"}}`,
		"with spaces":            `{ "kind": "Pod", "apiVersion": "v1", "metadata": {"name": "web"} }`,
		"escaped":                `{"kind":"\u0050od","apiVersion":"v1","metadata":{"name":"web"}}`,
		"something in between":   `{"kind":"Pod","metadata":{"name":"web"},"apiVersion":"v1"}`,
		"a quote in its kind":    `{"kind":"Pod\",\"apiVersion\":\"v1","apiVersion":"v1"}`,
		"of no kind":             `{"metadata":{"name":"web"}}`,
		"of an unknown kind":     `{"kind":"Spaceship","apiVersion":"v1"}`,
		"of a strange version":   `{"kind":"Pod","apiVersion":"a/b/c"}`,
		"cut short":              `{"kind":"Pod","apiVersion":"v1","metadata":{"na`,
		"of an endless kind":     `{"kind":"` + strings.Repeat("P", 2*longestName) + `","apiVersion":"v1"}`,
		"an event":               `{"type":"ADDED","object":` + pod + `}`,
		"a bookmark":             `{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"uid":"8"}}}`,
		"an event, with spaces":  `{"type": "ADDED", "object": ` + pod + ` }`,
		"an event, turned round": `{"object":` + pod + `,"type":"ADDED"}`,
		"an event about nothing": `{"type":"ADDED","object":null}`,
		"an event without one":   `{"type":"ADDED"}`,
	}
	ours, theirs := jsonOf(newCodec(scheme)), jsonOf(serializer.NewCodecFactory(scheme).WithoutConversion())
	for name, text := range texts {
		got, errGot := runtime.Decode(ours.Serializer, []byte(text))
		want, errWant := runtime.Decode(theirs.Serializer, []byte(text))
		if diff := cmp.Diff(want, got); diff != "" || (errGot == nil) != (errWant == nil) {
			t.Errorf("%s: %v, want %v (-want +got):\n%s", name, errGot, errWant, diff)
		}
		var event, wanted metav1.WatchEvent
		_, _, errGot = ours.StreamSerializer.Serializer.Decode([]byte(text), nil, &event)
		_, _, errWant = theirs.StreamSerializer.Serializer.Decode([]byte(text), nil, &wanted)
		if diff := cmp.Diff(wanted, event); diff != "" || (errGot == nil) != (errWant == nil) {
			t.Errorf("%s, as an event: %v, want %v (-want +got):\n%s", name, errGot, errWant, diff)
		}
	}
}

// What a watch shows most is read in the short way.
func TestCodecReadsTheBeginning(t *testing.T) {
	kind, object, ok := eventIn([]byte(`{"type":"MODIFIED","object":{"kind":"Pod","apiVersion":"v1","metadata":{}}}`))
	if !ok || kind != "MODIFIED" {
		t.Fatalf("kind %q, read: %t", kind, ok)
	}
	kind, version, ok := whatBegins(object)
	if !ok || kind != "Pod" || version != corev1.SchemeGroupVersion.String() {
		t.Errorf("kind %q of version %q, read: %t", kind, version, ok)
	}
}

func jsonOf(s runtime.NegotiatedSerializer) runtime.SerializerInfo {
	info, _ := runtime.SerializerInfoForMediaType(s.SupportedMediaTypes(), runtime.ContentTypeJSON)
	return info
}
