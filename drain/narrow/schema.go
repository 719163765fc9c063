package narrow

import (
	"reflect"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// schema is what is kept of a resource's answers in protobuf, by their kind: an object's, a list's, or Status.
type schema map[string]*message

// message is what is kept of a protobuf message.
type message struct {
	fields []*field // by their numbers; nil: dropped
	outer  bool     // an object, a list, or what is around them
	prefix bool     // begins with the prefix
}

func (m *message) field(number uint64) *field {
	if number < uint64(len(m.fields)) {
		return m.fields[number]
	}
	return nil
}

// field is what is kept of one field of a message.
type field struct {
	form     form
	repeated bool
	of       *message // if it is nested
	keys     fields   // of a map
	value    *field   // of a map
}

type form int

const (
	text   form = iota // or a number
	opaque             // with a form of its own, such as a quantity's or a time's: kept whole or not at all
	nested             // a message
	entry              // of a map: a message of a key and a value
	name               // of the kind that an answer is of
	named              // a message of the kind of this name
)

// types are the resources that the program reads in protobuf, with the types of an object and of a list.
var types = map[string][]reflect.Type{
	"pods":                        typesOf[corev1.Pod, corev1.PodList](),
	"nodes":                       typesOf[corev1.Node, corev1.NodeList](),
	"namespaces":                  typesOf[corev1.Namespace, corev1.NamespaceList](),
	"persistentvolumeclaims":      typesOf[corev1.PersistentVolumeClaim, corev1.PersistentVolumeClaimList](),
	"resourcequotas":              typesOf[corev1.ResourceQuota, corev1.ResourceQuotaList](),
	"policy/poddisruptionbudgets": typesOf[policyv1.PodDisruptionBudget, policyv1.PodDisruptionBudgetList](),
}

func typesOf[T, L any]() []reflect.Type {
	return []reflect.Type{reflect.TypeFor[T](), reflect.TypeFor[L]()}
}

// schemas are those of the types. What is kept is what the kinds name: the Go types have both the JSON name and the
// protobuf number of each field.
var schemas = sync.OnceValue(func() map[string]schema {
	known := wholes{}
	all := map[string]schema{}
	for resource, of := range types {
		all[resource] = schema{}
		for _, t := range append(of, reflect.TypeFor[metav1.Status]()) {
			m := known.message(t, kinds[resource].root)
			m.outer = true
			for _, f := range m.fields {
				if f != nil && f.repeated { // the items of a list
					f.of.outer = true
				}
			}
			all[resource][t.Name()] = m
		}
	}
	return all
})

// wholes are the messages that are kept whole. They are taken apart all the same, as each of their fields may be
// more than what is kept of one. No type that is read contains itself.
type wholes map[reflect.Type]*message

func (w wholes) message(t reflect.Type, keep fields) *message {
	if m, ok := w[t]; ok && keep == nil {
		return m
	}
	m := &message{}
	for f := range t.Fields() {
		number, ok := numberOf(f)
		if !ok {
			continue
		}
		of, kept := keep, true
		if called, options, _ := strings.Cut(f.Tag.Get("json"), ","); options != "inline" {
			of, kept = keep.of([]byte(called))
		}
		if !kept {
			continue
		}
		if more := number + 1 - len(m.fields); more > 0 {
			m.fields = append(m.fields, make([]*field, more)...)
		}
		m.fields[number] = w.field(f.Type, of)
	}
	if keep == nil {
		w[t] = m
	}
	return m
}

func (w wholes) field(t reflect.Type, keep fields) *field {
	switch t.Kind() {
	case reflect.Pointer:
		return w.field(t.Elem(), keep)
	case reflect.Map:
		return &field{form: entry, repeated: true, keys: keep, value: w.field(t.Elem(), nil)}
	case reflect.Slice:
		switch {
		case t.Elem().Kind() == reflect.Uint8:
			return &field{}
		case t.Name() != "": // a message of its own
			return &field{form: opaque}
		}
		f := w.field(t.Elem(), keep)
		f.repeated = true
		return f
	case reflect.Struct:
		for f := range t.Fields() {
			if _, ok := numberOf(f); ok {
				return &field{form: nested, of: w.message(t, keep)}
			}
		}
		return &field{form: opaque}
	}
	return &field{}
}

// numberOf is the number in a tag such as protobuf:"bytes,4,opt,name=hostIP".
func numberOf(f reflect.StructField) (int, bool) {
	parts := strings.Split(f.Tag.Get("protobuf"), ",")
	if len(parts) < 2 {
		return 0, false
	}
	number, err := strconv.Atoi(parts[1])
	return number, err == nil
}

// What is around the objects: an answer is an unknown, and each event of a watch has one.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding
var (
	typeMeta  = &message{fields: []*field{1: {form: text}, 2: {form: name}}}
	inUnknown = []*field{1: {form: nested, of: typeMeta}, 2: {form: named}, 3: {}, 4: {}}
	unknown   = &message{outer: true, prefix: true, fields: inUnknown}
	extension = &message{outer: true, fields: []*field{1: {form: nested, of: unknown}}}
	event     = &message{outer: true, fields: []*field{1: {}, 2: {form: nested, of: extension}}}
)

// prefix is what an unknown begins with.
const prefix = "k8s\x00"
