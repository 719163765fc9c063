package turns

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// own is the node that looks at the others, and its record, written now.
func own() (*corev1.Node, interruption.Record) {
	rec := interruption.NewRecord(interruption.Notice{Kind: interruption.RebalanceRecommendation, Received: time.Now()})
	rec.Phase = interruption.Waiting
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}, rec
}

func TestTurnAmongPeers(t *testing.T) {
	peer := func(phase interruption.Phase, after time.Duration) func(time.Time) []nodes.Peer {
		return func(own time.Time) []nodes.Peer {
			rec := interruption.NewRecord(interruption.Notice{Kind: interruption.RebalanceRecommendation, Received: own.Add(after)})
			rec.Phase = phase
			return []nodes.Peer{{Name: "node-a"}, {Name: "node-b", Record: rec.String()}}
		}
	}
	none := func(time.Time) []nodes.Peer { return nil }
	for name, tt := range map[string]struct {
		cached, stored func(own time.Time) []nodes.Peer
		begins         bool
	}{
		"alone":                {none, none, true},
		"one under way":        {peer(interruption.Replacing, time.Second), none, false},
		"one is over":          {peer(interruption.Released, -time.Second), peer(interruption.Released, -time.Second), true},
		"one before it":        {peer(interruption.Waiting, -time.Second), none, false},
		"one after it":         {peer(interruption.Waiting, time.Second), peer(interruption.Waiting, time.Second), true},
		"same time, by name":   {peer(interruption.Waiting, 0), peer(interruption.Waiting, 0), true},
		"nobody sees to it":    {peer(interruption.Waiting, -2*time.Hour), peer(interruption.Waiting, -2*time.Hour), true},
		"begun behind a cache": {none, peer(interruption.Draining, time.Second), false},
		"unreadable": {none, func(time.Time) []nodes.Peer {
			return []nodes.Peer{{Name: "node-b", Record: "{"}}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node, rec := own()
				peers := Peers{TTL: time.Hour, List: func(_ context.Context, _ string, fresh bool) ([]nodes.Peer, error) {
					if fresh {
						return tt.stored(rec.Received), nil
					}
					return tt.cached(rec.Received), nil
				}}
				turn, again, _, err := peers.Turn(t.Context(), node, rec)
				if turn || err != nil || again < peerSettle || again > peerSettle+peerLookMost {
					t.Fatalf("turn %v, again in %s, %v; want to stand in line for a while first", turn, again, err)
				}
				time.Sleep(again)
				if turn, again, _, err = peers.Turn(t.Context(), node, rec); turn != tt.begins || err != nil {
					t.Fatalf("turn %v, %v; want %v", turn, err, tt.begins)
				}
				if !turn && (again < peerLook || again > peerLookFactor*peerLookMost) {
					t.Errorf("looks again in %s", again)
				}
			})
		})
	}
}

// A pool that cannot be read is an error, not a turn.
func TestNoTurnWithoutPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, rec := own()
		peers := Peers{List: func(context.Context, string, bool) ([]nodes.Peer, error) {
			return nil, errors.New("API server is away")
		}}
		time.Sleep(time.Minute)
		if turn, _, _, err := peers.Turn(t.Context(), node, rec); turn || err == nil {
			t.Errorf("turn %v, %v; want an error", turn, err)
		}
	})
}
