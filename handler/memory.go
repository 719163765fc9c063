package handler

import (
	"cmp"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// memory is what this process remembers of interrupted Nodes between two reconciliations.
// Losing it costs a request or a log line, never a pod.
type memory struct {
	mu     sync.Mutex
	byNode map[string]*known
	ahead  map[string]*corev1.Node // that the watch doesn't have yet, see [Handler.readAhead]
}

// known is what we remember of one Node. Only the worker that has the node's key changes it;
// the lock is for concurrent reads.
type known struct {
	rec             interruption.Record // as it was last read or written
	resourceVersion string              // of our own last write
	beside          *besideWrite        // nil if none is under way, see [reconciliation.progressBeside]
	failedWrites    int                 // of those, in a row
	writeAt         time.Time           // when the next may be made
	outdated        string              // the version of the Node that was found to be outdated last
	refused         string              // the version of the Node that a record was refused for last
	gone            string              // the version of the Node whose write found that it no longer exists
	firstDue        time.Time           // when its reconciliation was first due
	showAt          time.Time           // when its conditions stop waiting for the drain's first progress

	// What was said already.
	unreadable bool   // that its record cannot be read
	announced  string // the event that was announced last

	// Of the replacement.
	replacement *interruption.Replacement // the provisioner's last answer; nil before the first
	retry       time.Time                 // when to request one again after a refusal, see [reconciliation.pass]
	retryFor    string                    // the event that this is about

	// Of the drain.
	begun      bool                 // this process has looked after it
	draining   bool                 // the drainer was told to drain it
	capacity   plan.Capacity        // and with which capacity to wait for
	event      string               // of the interruption that it was looked after for
	started    time.Time            // when, if nobody had before and the node was Ready
	marked     time.Time            // when, if nobody had before: the node's mark was seen by then
	deadline   time.Time            // the record's, when last looked at
	cancelling bool                 // it was cancelled, or is about to be
	dropping   string               // the event whose recommendation is being dropped
	left       int                  // pods that have left since this process looks after it
	onTheirWay int                  // pods that are leaving
	moved      time.Time            // when the last one left, or began to leave
	leaving    time.Time            // when the last of those that are leaving has to have left
	final      *interruption.Record // its record if it has ended and been counted, until that is written
}

// get returns what is known of a node.
func (m *memory) get(name string) *known {
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

// takeRecord stores a record that was just read. If it names the replacement by now, or says how that turned out,
// another process wrote that, or this one in an earlier term as leader, and our watch lagged. What the provisioner said
// about the older record then no longer counts. Otherwise we would look for a replacement that is already Ready, or
// take the name off the record of an instance that is about to leave its group.
func (k *known) takeRecord(rec interruption.Record) {
	now := rec.Replacement
	news := now != nil && k.rec.Event == rec.Event && !ptr.Equal(k.rec.Replacement, now)
	if news && (!provisioner.Pending(now.State) || now.Name != "" && k.replacement != nil && unnamed(*k.replacement)) {
		k.replacement = now
		if k.final != nil {
			final := *k.final
			final.Replacement = now
			k.final = &final
		}
	}
	k.rec, k.unreadable = rec, false
}

// replacementOf is the node's replacement as far as anybody knows; nil if none was requested.
func (k *known) replacementOf(rec interruption.Record) *interruption.Replacement {
	return cmp.Or(k.replacement, rec.Replacement)
}
