package queue

import "sync"

// maxRemembered is how many message ids each memory holds: several bursts' worth.
const maxRemembered = 4096

// A memory remembers the last ids that were added to it.
type memory struct {
	mu    sync.Mutex
	known map[string]struct{}
	order []string // a ring; next is the oldest
	next  int
}

func newMemory(size int) *memory {
	return &memory{known: make(map[string]struct{}), order: make([]string, 0, size)}
}

// add reports whether id is new.
func (m *memory) add(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.known[id]; known {
		return false
	}
	m.known[id] = struct{}{}
	if len(m.order) < cap(m.order) {
		m.order = append(m.order, id)
		return true
	}
	delete(m.known, m.order[m.next])
	m.order[m.next] = id
	m.next = (m.next + 1) % len(m.order)
	return true
}

func (m *memory) has(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, known := m.known[id]
	return known
}
