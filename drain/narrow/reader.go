package narrow

import (
	"bytes"
	"sync"
)

// reader drops from a stream of JSON values what the kind does not keep. It trusts the API server
// to send JSON: other input comes out as other garbage.
type reader struct {
	source
	bounds
	err error
	out *bytes.Buffer // what is kept, and not read yet; nil if there is nothing

	at    state
	stack []level // the last is what the next byte is in; the first is the stream
	key   []byte  // of a member, with its quotes
	next  fields  // of the value that comes
	slash bool    // after a backslash, in a text
	hex   int     // digits to come of an escaped character
	taken int     // how long the text is until now

	drops bool // the value is dropped
	text  bool // within a text of it
	depth int  // how many of its arrays and objects are open

	cut bool
}

// level is an array or an object that is kept, at least in part.
type level struct {
	array bool
	of    fields
	depth int // 0 is the object, 1 its metadata, spec and status
	n     int // how many members are kept
}

type state int

const (
	value  state = iota // is expected, or the end of an array
	member              // is expected, or the end of an object
	inKey
	inText
	inWord // a number, true, false or null
	after  // a value
)

func newReader(body source, of kind) *reader {
	return &reader{source: body, bounds: newBounds(of), next: of.root, stack: []level{{}}}
}

// chunks are for what is dropped, and buffers for what is kept until it is read. A watch that waits has
// neither: most do, most of the time, and there are thousands.
var (
	chunks  = sync.Pool{New: func() any { return new([chunkSize]byte) }}
	buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}
)

func (r *reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for r.out == nil {
		switch {
		case r.err != nil:
			return 0, r.err
		case r.drops:
			chunk := chunks.Get().(*[chunkSize]byte)
			r.fill(chunk[:])
			chunks.Put(chunk)
		default:
			r.fill(p)
		}
	}
	n, _ := r.out.Read(p) // it fails only if it is empty
	r.release()
	return n, nil
}

// release gives the buffer back if it is empty.
func (r *reader) release() {
	if r.out.Len() == 0 {
		buffers.Put(r.out)
		r.out = nil
	}
}

func (r *reader) fill(chunk []byte) {
	n, err := r.source.Read(chunk)
	r.err = err
	r.out = buffers.Get().(*bytes.Buffer)
	defer func() {
		if err := r.keep(r.out.Len()); err != nil {
			r.err = err
		}
		r.release()
	}()
	for in := chunk[:n]; len(in) > 0; {
		if r.enterElement(in[0]); r.drops {
			in = in[r.drop(in):]
		} else {
			in = in[r.take(in):]
		}
	}
}

// drop passes over a value, and returns how much of in belongs to it.
func (r *reader) drop(in []byte) int {
	drops, slash, text, depth := true, r.slash, r.text, r.depth
	i := 0
	for ; drops && i < len(in); i++ {
		switch c := in[i]; {
		case slash:
			slash = false
		case text:
			slash, text = c == '\\', c != '"'
			drops = text || depth > 0
		case c == '"':
			text = true
		case c == '{', c == '[':
			depth++
		case depth == 0 && (c == '}' || c == ']' || c == ','): // of what is around it
			drops = false
			i--
		case c == '}', c == ']':
			depth--
			drops = depth > 0
		}
	}
	r.drops, r.slash, r.text, r.depth = drops, slash, text, depth
	return i
}

// take takes a byte of what is not dropped, or as much of a text as needs no further look, and returns how much
// that was.
func (r *reader) take(in []byte) int {
	if n := r.plain(in); n > 0 {
		if r.at == inKey {
			r.key = append(r.key, in[:n]...)
		} else {
			r.emit(in[:n]...)
			r.taken += n
		}
		return n
	}
	r.takeByte(in[0])
	return 1
}

// plain is how much of the input is text that is kept as it is: up to the next quote or backslash, or to a bound.
func (r *reader) plain(in []byte) int {
	most := len(in)
	switch {
	case r.slash, r.hex > 0:
		return 0
	case r.at == inKey:
		most = min(most, longestKey-len(r.key))
	case r.at == inText:
		most = min(most, r.roomForText())
	default:
		return 0
	}
	for i := range most {
		if in[i] == '"' || in[i] == '\\' {
			return i
		}
	}
	return max(0, most)
}

func (r *reader) takeByte(c byte) {
	switch r.at {
	case inKey:
		if len(r.key) <= longestKey {
			r.key = append(r.key, c)
		}
		if r.ends(c) {
			r.enterMember()
		}
	case inText:
		if r.hex == 0 && !r.slash && c != '"' && r.roomForText() <= 0 {
			r.cut = true
			r.drops, r.text, r.at = true, true, after
			r.slash = c == '\\'
			r.out.WriteByte('"')
			return
		}
		r.emit(c)
		r.taken++
		if r.ends(c) {
			r.at = after
		}
	case inWord:
		if c == ',' || c == '}' || c == ']' || c <= ' ' {
			r.at = after
			r.pass(c)
			return
		}
		r.emit(c)
	default:
		r.pass(c)
	}
}

// ends reports whether the text ends with the byte.
func (r *reader) ends(c byte) bool {
	switch {
	case r.slash:
		r.slash = false
		if c == 'u' {
			r.hex = 4
		}
	case r.hex > 0:
		r.hex--
	case c == '\\':
		r.slash = true
	case c == '"':
		return true
	}
	return false
}

// pass takes a byte between texts and words, or the first of one.
func (r *reader) pass(c byte) {
	switch c {
	case '\n', '\r', '\t', ' ', ':':
		if len(r.stack) > 1 {
			return
		}
		if c == '\n' { // ends an event of a watch
			r.emit(c)
		}
		r.at, r.next = value, r.kind.root
	case ',':
		r.at = member
		if top := r.top(); top.array {
			r.at, r.next = value, top.of
		}
	case '}', ']':
		r.close(c)
	case '"':
		if r.at == member {
			r.at, r.key = inKey, append(r.key[:0], c)
			return
		}
		r.begin(c)
		r.at, r.taken = inText, 0
	case '{', '[':
		r.begin(c)
		r.open(c == '[')
	default:
		r.begin(c)
		r.at = inWord
	}
}

func (r *reader) top() *level { return &r.stack[len(r.stack)-1] }

// begin writes the first byte of a value that is kept.
func (r *reader) begin(c byte) {
	if top := r.top(); top.array {
		if top.n > 0 {
			r.emit(',')
		}
		top.n++
	}
	r.emit(c)
}

func (r *reader) open(array bool) {
	depth := 0
	switch top := r.top(); {
	case len(r.stack) == 1:
	case len(r.stack) == 2 && !top.array && string(r.key) == `"items"`:
		depth = -1 // a list's elements are objects
	case len(r.stack) == 2 && !top.array && string(r.key) == `"object"`:
	default:
		depth = top.depth + 1
	}
	r.stack = append(r.stack, level{array: array, of: r.next, depth: depth})
	if depth == 0 {
		r.field, r.object, r.cut, r.size = r.kind.field, r.kind.object, false, 0
	}
	r.at = member
	if array {
		r.at = value
	}
}

func (r *reader) close(c byte) {
	if top := r.top(); len(r.stack) > 1 {
		if top.depth == 0 && r.cut {
			if top.n > 0 {
				r.emit(',')
			}
			r.out.WriteString(`"` + CutKey + `":true`)
			r.cut = false
		}
		r.stack = r.stack[:len(r.stack)-1]
	}
	r.emit(c)
	r.at = after
}

// enterMember decides whether a member is kept.
func (r *reader) enterMember() {
	r.at = after // where it is not
	if len(r.stack) == 1 {
		return
	}
	top := r.top()
	of, kept := top.of.of(r.key[1 : len(r.key)-1])
	if kept && top.depth == 1 {
		r.field = r.kind.field
	}
	if kept && len(r.key) > longestKey || kept && r.exhausted(top.depth) {
		kept, r.cut = false, true
	}
	if !kept {
		r.drops = true
		return
	}
	if top.n > 0 {
		r.emit(',')
	}
	top.n++
	r.emit(r.key...)
	r.emit(':')
	r.at, r.next = value, of
}

// enterElement decides whether what begins with the byte is kept, if it is an element of an array.
func (r *reader) enterElement(c byte) {
	if r.at != value || c <= ' ' || c == ']' {
		return
	}
	if top := r.top(); top.array && r.exhausted(top.depth) {
		r.at, r.drops, r.cut = after, true, true
	}
}

// roomForText is how much more is kept of the text that is being read.
func (r *reader) roomForText() int { return max(r.room(r.top().depth), shortText-r.taken) }

func (r *reader) emit(text ...byte) {
	r.out.Write(text)
	r.spend(len(text))
}
