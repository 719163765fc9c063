package stories

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// lastRecords are the last records of nodes, even of nodes that are gone.
type lastRecords struct {
	mu      sync.Mutex
	texts   map[string]string
	leaving map[string]bool
}

// watchRecords follows nodes until the test ends.
func (s *story) watchRecords(nodes []*corev1.Node) *lastRecords {
	l := &lastRecords{texts: map[string]string{}, leaving: map[string]bool{}}
	for _, n := range nodes {
		s.background(func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Minute) // more than the default of WaitNode
			defer cancel()
			_, _ = s.cluster.WaitNode(ctx, n.Name, func(now *corev1.Node) bool {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.leaving[n.Name] = now == nil || now.DeletionTimestamp != nil
				if now != nil {
					l.texts[n.Name] = now.Annotations[interruption.Annotation]
				}
				return now == nil
			})
		})
	}
	return l
}

func (l *lastRecords) text(node string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.texts[node]
}

// leaves reports whether somebody has deleted the node.
func (l *lastRecords) leaves(node string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leaving[node]
}

// wantAllGraceful waits until the drain of the node has ended, with this many pods, all graceful.
func (l *lastRecords) wantAllGraceful(s *story, node string, pods int) {
	s.Helper()
	var rec interruption.Record
	s.within("end of the drain of "+node, 5*time.Minute, func() bool {
		rec, _ = interruption.ParseRecord(l.text(node))
		return rec.Phase == interruption.Released
	}, func() string { return "its record is " + l.text(node) })
	if rec.Pods == nil || rec.Pods.Total != pods || rec.Pods.Graceful != pods {
		s.Errorf("record %s, want %d pods graceful", rec, pods)
	}
}
