package handler

import (
	"cmp"
	"sync"
	"time"

	"spot-handler/handler/interruption"
)

// memory is what this process remembers of interrupted Nodes between two reconciliations.
// Losing it costs a request or a log line, never a pod.
type memory struct {
	mu     sync.Mutex
	byNode map[string]*known
}

// known is what we remember of one Node. Only the worker that has the node's key changes it;
// the lock is for those who read it concurrently.
type known struct {
	rec             interruption.Record       // as it was last read or written
	resourceVersion string                    // of our own last write
	replacement     *interruption.Replacement // the provisioner's last answer; nil before the first
	unreadable      bool                      // already reported
	announced       string                    // the event that was announced last
	cancelling      bool                      // its drain was cancelled, or is about to be
	begun           bool                      // this process has looked after its drain
	firstDue        time.Time                 // when its reconciliation was first due
	retry           time.Time                 // when to request a replacement again after a refusal, see [reconciliation.pass]
	left            int                       // pods that have left since this process looks after its drain
	moved           time.Time                 // when the last one left, or has to have left

	// final is the record of a drain that has ended and been counted, kept until it is written.
	final *interruption.Record
}

// of returns what is known of a node.
func (m *memory) of(name string) *known {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, ok := m.byNode[name]
	if !ok {
		k = &known{}
		m.byNode[name] = k
	}
	return k
}

func (m *memory) drop(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byNode, name)
}

// change changes what is known, safely for concurrent readers.
func (m *memory) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// replacementOf is the node's replacement as far as anybody knows; nil if none was requested.
func (k *known) replacementOf(rec interruption.Record) *interruption.Replacement {
	return cmp.Or(k.replacement, rec.Replacement)
}
