package narrow

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// protobufReader drops from an answer in protobuf what the schema does not keep.
//
// A message begins with its length, so it can be handed out only after it has been read to its end. Until then, what is
// kept of it is in pages: one event of a watch, or the whole of any other answer. Each length that is kept takes as
// many bytes as it arrived with, so it is written in place once it is known.
type protobufReader struct {
	source
	bounds
	schema schema
	watch  bool
	err    error
	ended  error // what the source said after its last bytes
	out    pages // what is kept of the message

	header [4]byte  // of an event: how long it is
	work   *work    // while a message is read
	in     []byte   // of the work's chunk: not looked at yet
	unread int64    // how much of the message is left in the source
	at     int64    // how much of the message has been looked at
	named  *message // what the answer is, once its kind is known
}

// work is what reading a message takes. A watch that waits for the next one has none: see chunks.
type work struct {
	chunk [chunkSize]byte
	key   [longestKey]byte
}

var works = sync.Pool{New: func() any { return new(work) }}

var errMalformed = errors.New("the API server's answer is not the protobuf that was asked for")

func newProtobufReader(body source, of kind, known schema, watch bool) *protobufReader {
	return &protobufReader{source: body, bounds: newBounds(of), schema: known, watch: watch}
}

func (r *protobufReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for r.out.empty() {
		if r.err != nil {
			return 0, r.err
		}
		r.next()
	}
	return r.out.take(p), nil
}

// next reads a message.
func (r *protobufReader) next() {
	r.at, r.named = 0, nil
	of, end := unknown, int64(passes)
	if r.watch {
		if _, r.err = io.ReadFull(&r.source, r.header[:]); r.err != nil { // it waits here
			return
		}
		of, end = event, int64(binary.BigEndian.Uint32(r.header[:]))
		r.out.write(r.header[:])
	}
	r.unread = end
	r.work = works.Get().(*work)
	r.message(of, end, 0)
	works.Put(r.work)
	r.work, r.in = nil, nil
	switch {
	case r.err != nil && !errors.Is(r.err, io.EOF): // that comes after the whole answer
		r.out.free()
	case r.watch:
		for i, b := range binary.BigEndian.AppendUint32(nil, uint32(r.out.length-len(r.header))) {
			r.out.set(i, b)
		}
	}
}

// message keeps what is to be kept of a message up to its end.
func (r *protobufReader) message(m *message, end int64, depth int) {
	if m.outer {
		depth = 0
		r.field, r.object, r.size = r.kind.field, r.kind.object, 0
	}
	if m.prefix && r.more(end) {
		r.expectPrefix(end)
	}
	var seen uint64 // bits of the fields that have come
	for r.more(end) {
		h := r.head(end)
		f := m.field(h.number)
		first := seen&(1<<h.number) == 0
		seen |= 1 << h.number
		if f == nil || !r.admits(f, first, depth) {
			r.skip(h.length)
			continue
		}
		if f.repeated {
			r.keepField(f, h, depth+1)
		} else {
			r.keepField(f, h, depth)
		}
	}
}

// admits decides whether a field is kept at this depth. An element of an array, or of a map, is deeper than that.
func (r *protobufReader) admits(f *field, first bool, depth int) bool {
	if depth > 1 {
		return !r.exhausted(depth)
	}
	if first {
		r.field = r.kind.field
	}
	if f.repeated {
		return depth == 0 || !r.exhausted(depth+1)
	}
	return first // no encoder writes another
}

func (r *protobufReader) keepField(f *field, h head, depth int) {
	if !h.delimited {
		if f.form != text {
			r.fail(errMalformed)
		}
		r.emit(h.text[:h.size])
		r.copy(h.length)
		return
	}
	room := int64(max(r.room(max(depth, 1)), shortText))
	switch f.form {
	case text:
		kept := min(h.length, room)
		r.close(r.open(h), h, kept)
		r.copy(kept)
		r.skip(h.length - kept)
	case opaque:
		if h.length > room {
			r.skip(h.length)
			return
		}
		r.emit(h.text[:h.size])
		r.copy(h.length)
	case entry:
		r.entry(f, h)
	case name:
		r.name(h)
	case named:
		if r.named == nil {
			r.fail(errMalformed)
			return
		}
		r.nested(r.named, h, depth)
	case nested:
		r.nested(f.of, h, depth)
	}
}

func (r *protobufReader) nested(m *message, h head, depth int) {
	length := r.open(h)
	r.message(m, r.at+h.length, depth+1)
	r.close(length, h, int64(r.out.length-length-h.width()))
}

// entry keeps an entry of a map if its key is to be kept. Encoders write that first.
func (r *protobufReader) entry(f *field, h head) {
	end := r.at + h.length
	if !r.more(end) {
		return
	}
	key := r.head(end)
	if key.number != 1 || !key.delimited || key.length > longestKey {
		r.skip(end - r.at)
		return
	}
	called := r.take(int(key.length))
	if _, kept := f.keys.of(called); !kept {
		r.skip(end - r.at)
		return
	}
	length := r.open(h)
	r.emit(key.text[:key.size])
	r.emit(called)
	for first := true; r.more(end); {
		value := r.head(end)
		if value.number != 2 || !first {
			r.skip(value.length)
			continue
		}
		first = false
		r.keepField(f.value, value, 2)
	}
	r.close(length, h, int64(r.out.length-length-h.width()))
}

// name keeps the name of a kind. The message of that kind comes after it.
func (r *protobufReader) name(h head) {
	if h.length > longestKey {
		r.fail(errMalformed)
		return
	}
	r.emit(h.text[:h.size])
	called := r.take(int(h.length))
	r.emit(called)
	if r.named = r.schema[string(called)]; r.named == nil && r.err == nil {
		r.fail(fmt.Errorf("%w: it is of the kind %.50q", errMalformed, called))
	}
}

// head is what a field begins with.
type head struct {
	number    uint64
	delimited bool  // by a length
	length    int64 // of what follows
	text      [2 * binary.MaxVarintLen64]byte
	tag, size int // of the text: how long its first part is, and all of it
}

// width is how many bytes the length has.
func (h *head) width() int { return h.size - h.tag }

// head reads the number and the length of a field, or its number and value.
func (r *protobufReader) head(end int64) (h head) {
	tag := r.varint(&h, end)
	h.tag = h.size
	var length uint64
	switch h.number = tag >> 3; tag & 7 {
	case 0:
		r.varint(&h, end)
	case 1:
		length = 8
	case 2:
		length, h.delimited = r.varint(&h, end), true
	case 5:
		length = 4
	default: // groups, which nobody writes any more
		r.fail(errMalformed)
	}
	if length > uint64(end-r.at) {
		r.fail(io.ErrUnexpectedEOF)
	}
	if r.err != nil {
		return head{}
	}
	h.length = int64(length)
	return h
}

func (r *protobufReader) varint(h *head, end int64) (v uint64) {
	for shift := 0; shift < 64; shift += 7 {
		if r.at >= end || len(r.in) == 0 && !r.fill() {
			r.fail(io.ErrUnexpectedEOF)
			return 0
		}
		b := r.in[0]
		r.in = r.in[1:]
		r.at++
		h.text[h.size] = b
		h.size++
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v
		}
	}
	r.fail(errMalformed)
	return 0
}

// open keeps the beginning of a field, and returns the position of its length, which close changes.
func (r *protobufReader) open(h head) int {
	r.emit(h.text[:h.size])
	return r.out.length - h.width()
}

func (r *protobufReader) close(at int, h head, length int64) {
	if r.err != nil {
		return
	}
	for i := range h.width() {
		b := byte(length>>(7*i)) & 0x7f
		if i < h.width()-1 {
			b |= 0x80
		}
		r.out.set(at+i, b)
	}
}

func (r *protobufReader) expectPrefix(end int64) {
	if end-r.at < int64(len(prefix)) || string(r.take(len(prefix))) != prefix {
		r.fail(errMalformed)
		return
	}
	r.emit([]byte(prefix))
}

// more reports whether the message has another field. An answer as a whole doesn't say how long it is.
func (r *protobufReader) more(end int64) bool {
	if end == passes && r.err == nil && !r.fill() {
		return false
	}
	return r.err == nil && r.at < end
}

// fill reports whether there is something to look at. At the end of the source its error is io.EOF.
func (r *protobufReader) fill() bool {
	for r.err == nil && len(r.in) == 0 {
		if r.err = r.ended; r.err == nil {
			var n int
			n, r.ended = r.source.Read(r.work.chunk[:min(chunkSize, r.unread)])
			r.in = r.work.chunk[:n]
			r.unread -= int64(n)
		}
	}
	return r.err == nil
}

// pass passes over n bytes and hands them out.
func (r *protobufReader) pass(n int64, to func([]byte)) {
	for n > 0 {
		if len(r.in) == 0 && !r.fill() {
			r.fail(io.ErrUnexpectedEOF)
			return
		}
		part := r.in[:min(n, int64(len(r.in)))]
		to(part)
		r.in = r.in[len(part):]
		r.at += int64(len(part))
		n -= int64(len(part))
	}
}

func (r *protobufReader) skip(n int64) {
	if n > 0 {
		r.pass(n, func([]byte) {})
	}
}

func (r *protobufReader) copy(n int64) { r.pass(n, r.emit) }

// take reads a short text. It is valid until the next one.
func (r *protobufReader) take(n int) []byte {
	text := r.work.key[:0]
	r.pass(int64(n), func(part []byte) { text = append(text, part...) })
	return text
}

func (r *protobufReader) emit(text []byte) {
	if r.err != nil {
		return
	}
	if err := r.keep(len(text)); err != nil {
		r.fail(err)
		return
	}
	r.out.write(text)
	r.spend(len(text))
}

// fail ends reading with the error, unless it has already failed with another. A source that ends in the middle of a
// message counts as a failure.
func (r *protobufReader) fail(err error) {
	if r.err == nil || errors.Is(r.err, io.EOF) {
		r.err = err
	}
	r.in = nil
}
