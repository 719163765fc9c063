package narrow

import "sync"

// pageSize is enough for an event about a usual pod.
const pageSize = 4 << 10

type page [pageSize]byte

var pagePool = sync.Pool{New: func() any { return new(page) }}

// pages hold what is kept of a message until its length is known. They are given back while they are read, as the
// reader of a list has it in memory as well.
type pages struct {
	of           []*page
	read, length int // positions
}

func (p *pages) empty() bool { return p.length == 0 }

func (p *pages) write(text []byte) {
	for len(text) > 0 {
		if p.length == len(p.of)*pageSize {
			p.of = append(p.of, pagePool.Get().(*page))
		}
		n := copy(p.of[p.length/pageSize][p.length%pageSize:], text)
		p.length += n
		text = text[n:]
	}
}

// set changes a byte that has been written.
func (p *pages) set(at int, b byte) { p.of[at/pageSize][at%pageSize] = b }

// take reads what has been written. It is empty after the last byte.
func (p *pages) take(into []byte) int {
	taken := 0
	for taken < len(into) && p.read < p.length {
		i, from := p.read/pageSize, p.read%pageSize
		n := copy(into[taken:], p.of[i][from:min(pageSize, from+p.length-p.read)])
		taken += n
		if p.read += n; p.read%pageSize == 0 {
			pagePool.Put(p.of[i])
			p.of[i] = nil
		}
	}
	if p.read == p.length {
		p.free()
	}
	return taken
}

// free forgets what is left.
func (p *pages) free() {
	for i, page := range p.of {
		if page != nil {
			pagePool.Put(page)
		}
		p.of[i] = nil
	}
	*p = pages{of: p.of[:0]}
}
