package handler

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/nodes"
)

// A new leader's watch can be seconds behind its predecessor's last writes. What the leader concludes from an outdated
// record would outlive that record: that a detached instance belongs to no group, or that a node still has the turn it
// has already given back. So the leader first reads each interrupted Node once from etcd.

const (
	// readsAhead is how many of these reads are made concurrently.
	readsAhead = 32

	// readsAheadFor bounds them all. What could not be read by then is taken as the watch has it.
	readsAheadFor = 2 * time.Second
)

// readAhead reads the Nodes that carry a record, and keeps those that the watch doesn't have yet.
func (h *Handler) readAhead(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, readsAheadFor)
	defer cancel()
	var reads errgroup.Group
	reads.SetLimit(readsAhead)
	for _, name := range h.opts.Index.WithRecord() {
		reads.Go(func() error {
			if node, err := h.opts.Nodes.Get(ctx, name, metav1.GetOptions{}); err == nil {
				h.memory.keepAhead(h.opts.Index, node)
			}
			return nil
		})
	}
	_ = reads.Wait() // none fails
}

// keepAhead keeps a Node that was read until the watch has it.
func (m *memory) keepAhead(index *nodes.Index, node *corev1.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if seen, ok := index.Get(node.Name); ok && nodes.Older(seen.ResourceVersion, node.ResourceVersion) {
		m.ahead[node.Name] = node
	}
}

// newest returns the Node as it was read ahead, if that is newer than what the watch says.
func (m *memory) newest(seen *corev1.Node) *corev1.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	if node, ok := m.ahead[seen.Name]; ok && nodes.Older(seen.ResourceVersion, node.ResourceVersion) {
		return node
	}
	delete(m.ahead, seen.Name)
	return seen
}
