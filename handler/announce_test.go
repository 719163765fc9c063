package handler

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
)

// What a process on the node has recorded is told by the one that drains: once, and by one that
// takes over only if the process before it might not have.
func TestNoticesOfMarkedNodesAreTold(t *testing.T) {
	for name, tt := range map[string]struct {
		source interruption.Source
		own    string        // the only node of the process
		age    time.Duration // of the record, when the process began
		told   int
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
			if len(events.shown) != tt.told {
				t.Errorf("told %q, want %d", events.shown, tt.told)
			}
			// The next notice is news, however late it comes.
			r.rec.Event = "second"
			_, _ = r.announce(t.Context())
			if again := tt.source == interruption.IMDS && tt.own == ""; (len(events.shown) == tt.told+1) != again {
				t.Errorf("told %q of two notices, want the second told: %v", events.shown, again)
			}
		})
	}
}
