package narrow

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// A field that is used has a bound too, and what comes after it is still read.
func TestBoundsInProtobuf(t *testing.T) {
	labels := map[string]string{"app": "a"}
	amounts := corev1.ResourceList{}
	for i := range 100_000 {
		labels[fmt.Sprint("l", i)] = "v"
		amounts[corev1.ResourceName(fmt.Sprint("example.com/", i))] = resource.MustParse("100Mi")
	}
	containers := make([]corev1.Container, 100_000)
	for name, fill := range map[string]func(*corev1.Pod){
		"many labels":     func(p *corev1.Pod) { p.Labels = labels },
		"a long label":    func(p *corev1.Pod) { p.Labels = map[string]string{"app": strings.Repeat("x", 1<<20)} },
		"a long key":      func(p *corev1.Pod) { p.Labels = map[string]string{strings.Repeat("x", 1<<20): ""} },
		"a long name":     func(p *corev1.Pod) { p.GenerateName = strings.Repeat("x", 1<<20) },
		"many containers": func(p *corev1.Pod) { p.Spec.Containers = containers },
		"many amounts":    func(p *corev1.Pod) { p.Spec.Overhead = amounts },
		"many finalizers": func(p *corev1.Pod) { p.Finalizers = strings.Split(strings.Repeat("f,", 100_000), ",") },
		"all of them": func(p *corev1.Pod) {
			p.Labels, p.Spec.Containers, p.Spec.InitContainers, p.Spec.Overhead = labels, containers, containers, amounts
			p.Spec.Tolerations = make([]corev1.Toleration, 100_000)
			p.Spec.NodeSelector = labels
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: make([]corev1.PodAffinityTerm, 100_000),
			}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			seconds := int64(5)
			pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: corev1.PodSpec{NodeName: "n", TerminationGracePeriodSeconds: &seconds}}
			fill(&pod)
			answer := inProtobuf(t, &corev1.PodList{Items: []corev1.Pod{pod, {ObjectMeta: metav1.ObjectMeta{Name: "next"}}}})
			out, err := io.ReadAll(protobufReaderOf(bytes.NewReader(answer), kinds["pods"], "pods", false))
			if err != nil || len(out) > podBound+2*podField {
				t.Fatalf("%d bytes are left of %d, %v", len(out), len(answer), err)
			}
			list := decodeProtobuf(t, out).(*corev1.PodList)
			got := list.Items[0]
			if got.UID != "u" || got.Spec.NodeName != "n" || got.Spec.TerminationGracePeriodSeconds == nil || *got.Spec.TerminationGracePeriodSeconds != 5 {
				t.Errorf("%+v", got)
			}
			for name, amount := range got.Spec.Overhead {
				if amount.String() != "100Mi" {
					t.Errorf("100Mi of %s became %s", name, &amount)
				}
			}
			if list.Items[1].Name != "next" {
				t.Errorf("the next one is %+v", list.Items[1])
			}
		})
	}
}

// Wherever a bound falls, what is left of a pod can be decoded.
func TestWhatIsCutInProtobufCanBeDecoded(t *testing.T) {
	for length := range 300 {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Overhead: corev1.ResourceList{}}}
		for i := range 30 {
			name := fmt.Sprintf("%d%s", i, strings.Repeat("a", 400+length%50))
			pod.Spec.Overhead[corev1.ResourceName(name)] = resource.MustParse("100Mi")
		}
		got := decodeProtobuf(t, narrowedProtobuf(t, kinds["pods"], "pods", false, inProtobuf(t, pod))).(*corev1.Pod)
		if len(got.Spec.Overhead) < 10 || len(got.Spec.Overhead) == 30 {
			t.Fatalf("%d of 30 are left", len(got.Spec.Overhead))
		}
		for name, amount := range got.Spec.Overhead {
			if amount.String() != "100Mi" {
				t.Errorf("100Mi of %s became %s", name, &amount)
			}
		}
	}
}

// tagged is a field of a message with its contents.
func tagged(number int, contents ...[]byte) []byte {
	all := join(contents...)
	return join(binary.AppendUvarint(nil, uint64(number)<<3|2), binary.AppendUvarint(nil, uint64(len(all))), all)
}

func podAnswer(pod ...[]byte) []byte {
	return join([]byte(prefix), tagged(1, tagged(1, []byte("v1")), tagged(2, []byte("Pod"))), tagged(2, pod...))
}

// An answer that isn't protobuf, or isn't of the resource, is an error, and takes no memory.
func TestMalformedProtobuf(t *testing.T) {
	long := binary.AppendUvarint([]byte{1<<3 | 2}, 1<<62)
	for name, answer := range map[string][]byte{
		"JSON":                     []byte(`{"kind":"Pod"}`),
		"half a prefix":            []byte("k8"),
		"a group":                  join([]byte(prefix), []byte{1<<3 | 3, 1<<3 | 4}),
		"an endless number":        podAnswer([]byte{1 << 3}, bytes.Repeat([]byte{0xff}, 11)),
		"longer than the answer":   podAnswer(long),
		"a length beyond all":      podAnswer([]byte{1<<3 | 2}, bytes.Repeat([]byte{0xff}, 9), []byte{1}),
		"a number for a message":   podAnswer([]byte{1 << 3, 1}),
		"half a tag":               podAnswer([]byte{0x80}),
		"of another kind":          join([]byte(prefix), tagged(1, tagged(2, []byte("Secret"))), tagged(2)),
		"of a long kind":           join([]byte(prefix), tagged(1, tagged(2, make([]byte, 1<<20))), tagged(2)),
		"of no kind":               join([]byte(prefix), tagged(2, tagged(1))),
		"cut short":                join([]byte(prefix), long),
		"a short field of 8 bytes": podAnswer([]byte{1<<3 | 1, 0}),
	} {
		if out, err := io.ReadAll(protobufReaderOf(bytes.NewReader(answer), kinds["pods"], "pods", false)); err == nil || len(out) > 0 {
			t.Errorf("%s: %q is left, %v", name, out, err)
		}
		frame := tagged(2, tagged(1, answer))
		frame = append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)
		if out, err := io.ReadAll(protobufReaderOf(bytes.NewReader(frame), kinds["pods"], "pods", true)); err == nil || len(out) > 0 {
			t.Errorf("%s, in a watch: %q is left, %v", name, out, err)
		}
	}
	event := eventInProtobuf(t, apiwatch.Added, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	for n := range event {
		out, err := io.ReadAll(protobufReaderOf(bytes.NewReader(event[:n]), kinds["pods"], "pods", true))
		if n > 0 && !errors.Is(err, io.ErrUnexpectedEOF) || len(out) > 0 {
			t.Errorf("of %d bytes of %d %q is left, %v", n, len(event), out, err)
		}
	}
}

// Fields that no encoder writes twice, or in another order, take no more room.
func TestStrangeEncoders(t *testing.T) {
	label := func(name string) []byte { return tagged(11, tagged(1, []byte(name)), tagged(2, []byte("v"))) }
	many := bytes.Repeat(join(tagged(1, bytes.Repeat([]byte("x"), 1000)), label("l"), tagged(14, []byte("f"))), 10_000)
	meta := func(more ...[]byte) []byte {
		return tagged(1, append([][]byte{tagged(5, []byte("u")), label("a")}, more...)...)
	}
	for name, pod := range map[string][]byte{
		"fields":        meta(many),
		"metadata":      join(meta(), bytes.Repeat(meta(bytes.Repeat(label("l"), 100)), 1000)),
		"a map's value": meta(tagged(11, tagged(1, []byte("m")), bytes.Repeat(tagged(2, bytes.Repeat([]byte("v"), 60)), 10_000))),
	} {
		out, err := io.ReadAll(protobufReaderOf(bytes.NewReader(podAnswer(pod)), kinds["pods"], "pods", false))
		if err != nil || len(out) > podBound+2*podField {
			t.Fatalf("%s: %d bytes are left, %v", name, len(out), err)
		}
		if got := decodeProtobuf(t, out).(*corev1.Pod); got.UID != "u" || got.Labels["a"] != "v" {
			t.Errorf("%s: %+v", name, got.ObjectMeta)
		}
	}
	swapped := podAnswer(tagged(2, tagged(10, []byte("n"))), meta(tagged(1, []byte("a"))))
	got := decodeProtobuf(t, narrowedProtobuf(t, kinds["pods"], "pods", false, swapped)).(*corev1.Pod)
	if got.Name != "a" || got.UID != "u" || got.Spec.NodeName != "n" {
		t.Errorf("in another order: %+v", got)
	}
}

func FuzzProtobuf(f *testing.F) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"a": "b"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}, Overhead: corev1.ResourceList{"cpu": resource.MustParse("1")}}}
	f.Add(inProtobuf(f, pod), false)
	f.Add(inProtobuf(f, &corev1.PodList{Items: []corev1.Pod{*pod}}), false)
	f.Add(eventInProtobuf(f, apiwatch.Added, pod), true)
	f.Fuzz(func(t *testing.T, in []byte, watch bool) {
		out, err := io.ReadAll(protobufReaderOf(bytes.NewReader(in), kinds["pods"], "pods", watch))
		if len(out) > len(in) {
			t.Errorf("%d bytes became %d", len(in), len(out))
		}
		if err != nil || watch {
			return
		}
		decoder := serializerOf(runtime.ContentTypeProtobuf).Serializer
		if _, err := runtime.Decode(decoder, in); err == nil {
			if _, err := runtime.Decode(decoder, out); err != nil {
				t.Errorf("%q became %q: %v", in, out, err)
			}
		}
	})
}
