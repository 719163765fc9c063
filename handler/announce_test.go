package handler

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
)

// The process that drains notifies people of what a process on the node has recorded: once, and after
// a change of the leader only if the one before might not have.
func TestNoticesOfMarkedNodesAreAnnounced(t *testing.T) {
	for name, tt := range map[string]struct {
		source   interruption.Source
		own      string        // the only node of the process
		age      time.Duration // of the record, when the process began
		notified int
	}{
		"new":                          {interruption.IMDS, "", -time.Second, 1},
		"just before it began":         {interruption.IMDS, "", time.Second, 1},
		"long before it began":         {interruption.IMDS, "", time.Minute, 0},
		"of the queue":                 {interruption.Queue, "", -time.Second, 0},
		"of a process that drains too": {interruption.IMDS, "node-a", -time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			events := &shownNews{}
			began := time.Now()
			h := &Handler{opts: Options{Events: events, Node: tt.own}, began: began}
			r := &reconciliation{
				Handler: h, node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}, known: &known{},
				rec: interruption.NewRecord(interruption.Notice{
					Kind: interruption.SpotInterruption, EventID: "first", Source: tt.source, Received: began.Add(-tt.age),
				}),
			}
			for range 2 {
				if done, err := r.announce(t.Context()); done || err != nil {
					t.Fatalf("done %v, %v: want the reconciliation to go on", done, err)
				}
			}
			if len(events.shown) != tt.notified {
				t.Errorf("notified %q, want %d", events.shown, tt.notified)
			}
			// The next notice is news, however late it comes.
			r.rec.Event = "second"
			_, _ = r.announce(t.Context())
			if again := tt.source == interruption.IMDS && tt.own == ""; (len(events.shown) == tt.notified+1) != again {
				t.Errorf("notified %q of two notices, want it of the second: %v", events.shown, again)
			}
		})
	}
}
