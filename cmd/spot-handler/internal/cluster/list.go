package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

const (
	// pageSize is how many objects one answer has at most. It bounds the work of the API server;
	// here, one object is in memory at a time.
	pageSize = 500
	// leastPage is how small pages get where the API server breaks off answers.
	leastPage = 5

	// mostOfObject is how many bytes are kept of an object at most. Of a real pod it is about one
	// KiB.
	mostOfObject = 64 << 10
	// mostOfNamespace is the share of a namespace in a list. Kubernetes is tested with 3,000 pods in
	// a namespace; this is enough for 16,000.
	// https://github.com/kubernetes/community/blob/master/sig-scalability/configs-and-limits/thresholds.md
	mostOfNamespace = 16 << 20
	// mostOnWire bounds a whole object: etcd takes 1.5 MiB, which can be some more as JSON.
	mostOnWire = 16 << 20
)

// errLeftOut says that the list was read but for some objects.
var errLeftOut = errors.New("left out")

// Lister reads lists without believing that their objects are small. A list is read in pages, and
// each page object by object from the wire: in memory there is one whole object at a time, and what
// is kept of the others. That has a bound: an object of which too much would be kept is left out,
// and so are those of a namespace that fill its share. What is left out is in the error, by
// namespace; all other objects are read.
type Lister struct {
	Client    rest.Interface // of any API group
	Namespace string         // the only one that is read; all if empty
	Fields    string         // a field selector
}

// Meta is the metadata that most narrow types have, under the name metadata.
type Meta struct {
	Name              string       `json:"name"`
	Namespace         string       `json:"namespace,omitempty"`
	UID               types.UID    `json:"uid"`
	DeletionTimestamp *metav1.Time `json:"deletionTimestamp,omitempty"`
}

// GetNamespace is the object's namespace, or empty.
func (m Meta) GetNamespace() string { return m.Namespace }

// Annotated is the metadata with annotations.
type Annotated struct {
	Meta
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Each calls use for every object of the resource that the label selector matches. They are decoded
// from JSON, so T says with its fields what is kept of them.
func Each[T any, P interface {
	*T
	GetNamespace() string
}](ctx context.Context, l Lister, of schema.GroupVersionResource, selector string, use func(P)) error {
	share := newShares()
	err := l.pages(ctx, of, selector, runtime.ContentTypeJSON, func(body io.Reader) (string, error) {
		return jsonItems(body, func(dec *json.Decoder) error {
			object := P(new(T))
			if err := dec.Decode(object); err != nil {
				return err
			}
			kept, err := json.Marshal(object) // most of a large object is not
			if err == nil && share.take(object.GetNamespace(), len(kept)) {
				use(object)
			}
			return err
		})
	})
	return errors.Join(err, share.leftOut(of.Resource))
}

// EachOf calls use for every object of a type that the API has in protobuf, which is several times
// as fast. slim returns what is kept of an object: no more of it may be reached from there. It
// returns nil if nothing is.
func EachOf[T any, P interface {
	*T
	Unmarshal([]byte) error
	Size() int
	GetNamespace() string
}](ctx context.Context, l Lister, of schema.GroupVersionResource, selector string, slim func(P) P, use func(P)) error {
	share := newShares()
	keep := func(decode func(P) error) error {
		object := P(new(T))
		if err := decode(object); err != nil {
			return err
		}
		if object = slim(object); object != nil && share.take(object.GetNamespace(), object.Size()) {
			use(object)
		}
		return nil
	}
	err := l.pages(ctx, of, selector, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON, func(body io.Reader) (string, error) {
		answer := bufio.NewReader(body)
		if magic, err := answer.Peek(len(protobufMagic)); err == nil && string(magic) == protobufMagic {
			return protobufItems(answer, func(raw []byte) error {
				return keep(func(object P) error { return object.Unmarshal(raw) })
			})
		}
		return jsonItems(answer, func(dec *json.Decoder) error { // from somebody between us and the API server
			return keep(func(object P) error { return dec.Decode(object) })
		})
	})
	return errors.Join(err, share.leftOut(of.Resource))
}

// pages has read read one page after the other. It returns where the next begins; empty: nowhere.
func (l Lister) pages(
	ctx context.Context, of schema.GroupVersionResource, selector, mime string, read func(io.Reader) (next string, err error),
) error {
	path := []string{"/apis", of.Group, of.Version}
	if of.Group == "" {
		path = []string{"/api", of.Version}
	}
	if l.Namespace != "" {
		path = append(path, "namespaces", l.Namespace)
	}
	limit := pageSize
	for next := ""; ; {
		body, err := l.Client.Get().AbsPath(append(path, of.Resource)...).
			Param("labelSelector", selector).
			Param("fieldSelector", l.Fields).
			Param("continue", next).
			Param("limit", fmt.Sprint(limit)).
			SetHeader("Accept", mime).
			Stream(ctx)
		var answer apierrors.APIStatus
		if err != nil && !errors.As(err, &answer) && ctx.Err() == nil && limit > leastPage {
			limit /= 10 // the API server gives up on answers that take it too long
			continue
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", of.Resource, err)
		}
		next, err = read(body)
		_ = body.Close() // what matters has been read
		if err != nil {
			return fmt.Errorf("list %s: read the answer: %w", of.Resource, err)
		}
		if next == "" {
			return nil
		}
	}
}

// jsonItems calls item where each object of a list begins.
func jsonItems(body io.Reader, item func(*json.Decoder) error) (next string, err error) {
	bounded := &io.LimitedReader{R: body, N: mostOnWire}
	dec := json.NewDecoder(bounded)
	if _, err := dec.Token(); err != nil {
		return "", err
	}
	for dec.More() {
		field, err := dec.Token()
		if err != nil {
			return "", err
		}
		var other json.RawMessage
		switch field {
		case "metadata":
			var meta metav1.ListMeta
			err, next = dec.Decode(&meta), meta.Continue
		case "items":
			var begin json.Token
			if begin, err = dec.Token(); begin == nil {
				break // null
			}
			for err == nil && dec.More() {
				bounded.N = mostOnWire
				err = item(dec)
			}
			if err == nil {
				_, err = dec.Token()
			}
		default:
			err = dec.Decode(&other)
		}
		if err != nil {
			return "", err
		}
	}
	_, err = dec.Token()
	return next, err
}

const protobufMagic = "k8s\x00"

// protobufItems calls item with each object of a list. The bytes are valid until it returns.
//
// The list is the second field of an envelope that begins with protobufMagic; the first
// field of every list is its metadata, and the second its objects.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding
func protobufItems(envelope *bufio.Reader, item func([]byte) error) (next string, err error) {
	_, _ = envelope.Discard(len(protobufMagic)) // is there
	err = fields(envelope, func(field uint64, list io.Reader) error {
		if field != 2 {
			return nil
		}
		var buffer bytes.Buffer
		return fields(bufio.NewReader(list), func(field uint64, value io.Reader) error {
			if field > 2 {
				return nil
			}
			buffer.Reset()
			if _, err := buffer.ReadFrom(value); err != nil {
				return err
			}
			if field == 2 {
				return item(buffer.Bytes())
			}
			var meta metav1.ListMeta
			err := meta.Unmarshal(buffer.Bytes())
			next = meta.Continue
			return err
		})
	})
	return next, err
}

// fields calls use with each field of a message whose fields all are messages or strings. What use
// does not read is skipped.
func fields(r *bufio.Reader, use func(field uint64, value io.Reader) error) error {
	for {
		tag, err := binary.ReadUvarint(r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		size, err2 := binary.ReadUvarint(r)
		switch {
		case errors.Join(err, err2) != nil:
			return errors.Join(err, err2)
		case tag&7 != 2 || size > math.MaxInt64:
			return fmt.Errorf("unexpected field %d of type %d", tag>>3, tag&7)
		}
		value := &io.LimitedReader{R: r, N: int64(size)}
		if err := use(tag>>3, value); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, value); err != nil {
			return err
		}
		if value.N > 0 {
			return io.ErrUnexpectedEOF
		}
	}
}

// shares are what namespaces have of a list.
type shares struct {
	kept map[string]int // bytes
	left map[string]int // objects that are left out
}

func newShares() shares { return shares{map[string]int{}, map[string]int{}} }

// take takes an object into its namespace's share, if there is room.
func (s *shares) take(namespace string, size int) bool {
	if size > mostOfObject || namespace != "" && s.kept[namespace]+size > mostOfNamespace {
		s.left[namespace]++
		return false
	}
	s.kept[namespace] += size
	return true
}

// leftOut says of which namespaces objects are missing, one line each.
func (s *shares) leftOut(resource string) error {
	var errs []error
	for _, namespace := range slices.Sorted(maps.Keys(s.left)) {
		of := ""
		if namespace != "" {
			of = fmt.Sprintf(" of namespace %q", namespace)
		}
		errs = append(errs, fmt.Errorf("%w: %d %s%s: larger than %d KiB each, or than %d MiB together", errLeftOut,
			s.left[namespace], resource, of, mostOfObject>>10, mostOfNamespace>>20))
	}
	return errors.Join(errs...)
}
