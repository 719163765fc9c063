package main

import (
	"bytes"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
)

// codec is client-go's, but it reads JSON fewer times. client-go reads all of an object to learn what it is, and
// again to decode it, and an event of a watch twice more around that. A pod that leaves changes about five times, and
// each change arrives as an event. The API server says at the beginning what follows, so reading that is enough.
// What begins otherwise is read as client-go does.
type codec struct {
	runtime.NegotiatedSerializer
	types []runtime.SerializerInfo
}

func newCodec(scheme *runtime.Scheme) codec {
	standard := serializer.NewCodecFactory(scheme).WithoutConversion()
	types := slices.Clone(standard.SupportedMediaTypes())
	objects := json.NewSerializerWithOptions(beginning{}, scheme, scheme, json.SerializerOptions{})
	for i := range types {
		if types[i].MediaType == runtime.ContentTypeJSON {
			stream := *types[i].StreamSerializer
			stream.Serializer = events{objects}
			types[i].Serializer, types[i].StreamSerializer = objects, &stream
		}
	}
	return codec{standard, types}
}

func (c codec) SupportedMediaTypes() []runtime.SerializerInfo { return c.types }

// beginning learns from the beginning of an object what it is.
type beginning struct{}

func (beginning) Interpret(data []byte) (*schema.GroupVersionKind, error) {
	kind, version, ok := whatBegins(data)
	if !ok {
		return json.DefaultMetaFactory.Interpret(data)
	}
	gv, err := schema.ParseGroupVersion(version)
	if err != nil {
		return nil, err
	}
	return new(gv.WithKind(kind)), nil
}

// whatBegins is what begins with, for example, {"kind":"Pod","apiVersion":"v1".
func whatBegins(object []byte) (kind, version string, ok bool) {
	kind, object, ok = between(object, `{"kind":"`, `","apiVersion":"`)
	if !ok {
		return "", "", false
	}
	version, _, ok = between(object, "", `"`)
	return kind, version, ok
}

// events reads those of a watch.
type events struct{ *json.Serializer }

func (e events) Decode(
	data []byte, defaults *schema.GroupVersionKind, into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	event, ok := into.(*metav1.WatchEvent)
	if !ok {
		return e.Serializer.Decode(data, defaults, into)
	}
	kind, object, ok := eventIn(data)
	if !ok {
		return e.Serializer.Decode(data, defaults, into)
	}
	event.Type, event.Object.Raw = kind, object
	return event, defaults, nil
}

// eventIn is the kind of an event, and its object, as in {"type":"ADDED","object":{...}}. The object is a part of data:
// client-go decodes it before it uses that again.
func eventIn(data []byte) (kind string, object []byte, ok bool) {
	kind, rest, ok := between(data, `{"type":"`, `","object":`)
	if !ok || !bytes.HasPrefix(rest, []byte("{")) || !bytes.HasSuffix(rest, []byte("}}")) {
		return "", nil, false
	}
	return kind, rest[:len(rest)-1], true
}

// longestName is more than any kind, version or type of event has.
const longestName = 300

// between is the plain text between two others at the beginning of data, and what follows.
func between(data []byte, before, after string) (text string, rest []byte, ok bool) {
	data, ok = bytes.CutPrefix(data, []byte(before))
	if !ok {
		return "", nil, false
	}
	end := bytes.Index(data[:min(len(data), longestName)], []byte(after))
	if end < 0 || bytes.ContainsAny(data[:end], `"\`) {
		return "", nil, false
	}
	return string(data[:end]), data[end+len(after):], true
}
