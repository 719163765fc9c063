package narrow

import "io"

// source is an answer as it arrives.
type source struct {
	body io.ReadCloser
	left limit       // of the answer's
	size int         // how much of the object has arrived
	slow func(n int) // waits before more than n further bytes of a large one are read; nil: never
}

func newSource(body io.ReadCloser) source { return source{body: body, left: limit{passes, passes}} }

// Read reads the answer up to its limit.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.body.Read(p)
	if s.size += n; s.size > ample && s.slow != nil {
		s.slow(n)
	}
	if s.left.read -= int64(n); s.left.read < 0 {
		return 0, ErrTooLong
	}
	return n, err
}

// Close ends the request.
func (s *source) Close() error { return s.body.Close() }

// keep counts what is kept of the answer.
func (s *source) keep(n int) error {
	if s.left.kept -= int64(n); s.left.kept < 0 {
		return ErrTooLong
	}
	return nil
}

// whole is an answer that is only limited.
type whole struct{ source }

func (w *whole) Read(p []byte) (int, error) {
	n, err := w.source.Read(p)
	if tooLong := w.keep(n); tooLong != nil {
		return 0, tooLong
	}
	return n, err
}

// bounds are what is left of those of a kind, in bytes, for an object.
type bounds struct {
	kind          kind
	field, object int
}

func newBounds(of kind) bounds { return bounds{of, of.field, of.object} }

// exhausted reports whether no more is kept at this depth. The fields of metadata, spec and status
// that are single values always are: only a longer one ends early.
func (b *bounds) exhausted(depth int) bool { return b.room(depth) <= 0 }

// room is how much more is kept at this depth: 0 is the object, 1 its metadata, spec and status.
func (b *bounds) room(depth int) int {
	switch {
	case depth > 1:
		return min(b.field, b.object) + 1
	case depth > 0:
		return b.field + 1
	}
	return passes
}

// spend counts what is kept of the object.
func (b *bounds) spend(n int) {
	b.field -= n
	b.object -= n
}
