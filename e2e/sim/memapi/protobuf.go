package memapi

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// protobufPrefix precedes a protobuf object's envelope, which names the object's kind.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding
var protobufPrefix = []byte("k8s\x00")

// message is a type with a protobuf form, such as Kubernetes' own.
type message interface {
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// prefersProtobuf reports whether the first of the accepted forms is protobuf.
func prefersProtobuf(accept string) bool {
	first, _, _ := strings.Cut(accept, ",")
	return strings.TrimSpace(first) == runtime.ContentTypeProtobuf
}

// decode reads the request's body.
func (r *Request) decode(into any) error {
	if !r.inProtobuf {
		return json.Unmarshal(r.Body, into)
	}
	to, ok := into.(message)
	text, has := bytes.CutPrefix(r.Body, protobufPrefix)
	if !ok || !has {
		return errors.New("the body doesn't match its content type")
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(text); err != nil {
		return err
	}
	return to.Unmarshal(envelope.Raw)
}

// enveloped wraps a protobuf object for a request or an answer.
func enveloped(of schema.GroupVersionKind, raw []byte) []byte {
	version, kind := of.ToAPIVersionAndKind()
	envelope := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: version, Kind: kind}, Raw: raw}
	return append(bytes.Clone(protobufPrefix), mustMarshal(&envelope)...)
}

func mustMarshal(of message) []byte {
	raw, err := of.Marshal()
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", of, err))
	}
	return raw
}

// protobuf is the object in protobuf, without an envelope.
func (s *stored) protobuf() []byte {
	if s.binary == nil {
		s.binary = mustMarshal(s.obj.(message))
	}
	return s.binary
}

// text encodes the object for an answer.
func (s *stored) text(k *Kind, inProtobuf bool) []byte {
	if inProtobuf {
		return enveloped(k.GroupVersionKind, s.protobuf())
	}
	return s.json()
}

// listOf encodes a list for an answer.
func listOf(k *Kind, items []*stored, version int64, token string, inProtobuf bool) []byte {
	kind := k.GroupVersionKind
	kind.Kind += "List"
	meta := metav1.ListMeta{ResourceVersion: strconv.FormatInt(version, 10), Continue: token}
	if inProtobuf {
		out := appendField(nil, 1, mustMarshal(&meta))
		for _, item := range items {
			out = appendField(out, 2, item.protobuf())
		}
		return enveloped(kind, out)
	}
	out := fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":%q,"continue":%q},"items":[`,
		kind.Kind, kind.GroupVersion().String(), meta.ResourceVersion, meta.Continue)
	for i, item := range items {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, item.json()...)
	}
	return append(out, ']', '}')
}

// appendField appends a field whose value is a string or a message.
func appendField(to []byte, number uint64, value []byte) []byte {
	to = binary.AppendUvarint(to, number<<3|2)
	to = binary.AppendUvarint(to, uint64(len(value)))
	return append(to, value...)
}

// appendEvent appends a watch event; object is what [stored.text] returns.
func appendEvent(to []byte, what string, object []byte, inProtobuf bool) []byte {
	if inProtobuf {
		raw := mustMarshal(&metav1.WatchEvent{Type: what, Object: runtime.RawExtension{Raw: object}})
		return append(binary.BigEndian.AppendUint32(to, uint32(len(raw))), raw...)
	}
	to = append(to, `{"type":"`...)
	to = append(to, what...)
	to = append(to, `","object":`...)
	to = append(to, object...)
	return append(to, '}', '\n')
}

// bookmarkOf is the object of a bookmark.
func bookmarkOf(k *Kind, version int64, initial, inProtobuf bool) []byte {
	meta := metav1.ObjectMeta{ResourceVersion: strconv.FormatInt(version, 10)}
	if initial {
		meta.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	}
	if inProtobuf {
		return enveloped(k.GroupVersionKind, appendField(nil, 1, mustMarshal(&meta)))
	}
	text, _ := json.Marshal(meta) // texts
	return fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,"metadata":%s}`, k.Kind, k.GroupVersion().String(), text)
}
