package turns

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// Peers is the line of a process that cares for one node only: it has to look at the others of
// its pool to see who comes first. Each process looks by itself and all follow the same rule,
// so they need no agreement: of two that look at the same time, both see the same one first.
// This rests on two things:
//
//   - a process knows all nodes ahead of its own: it begins only after its node has stood in
//     line for peerSettle, and by then those recommended earlier have written that down;
//   - the last look, before it begins, is at what the API server has stored, and not at
//     what its cache holds.
//
// More nodes than allowed can be under way only if a record was written peerSettle too late, if
// clocks differ by as much, or while the pool shrinks.
type Peers struct {
	AtOnce Concurrency
	// List lists the nodes that a label selector selects: quickly, from a cache of the API
	// server, or fresh.
	List func(ctx context.Context, selector string, fresh bool) ([]nodes.Peer, error)
	// TTL is how long a recommended node stands in line at most; zero means forever. A node
	// that has stood there longer has no process that looks after it, and no longer counts.
	TTL time.Duration
}

const (
	// peerSettle is how long a node stands in line at least. The record is written within a
	// second or so of the recommendation.
	peerSettle = 10 * time.Second

	// The next node in line looks again after peerLook to peerLookMost. Those further behind
	// look less often, by a factor of up to peerLookFactor: each look lists the pool, and a
	// whole pool may be waiting.
	peerLook, peerLookMost = 10 * time.Second, 30 * time.Second
	peerLookFactor         = 10

	// ttlSlack is how late a node may leave the line.
	ttlSlack = time.Minute
)

// Stand does nothing: what stands in line is written on the Nodes.
func (Peers) Stand(*corev1.Node, interruption.Record) {}

// Leave does nothing: the others see the Node.
func (Peers) Leave(string) string { return "" }

// Turn is as [Line]'s. It may read the nodes of the pool, at most twice.
func (p Peers) Turn(ctx context.Context, node *corev1.Node, rec interruption.Record) (turn bool, again time.Duration, next string, err error) {
	jittered := peerLook + rand.N(peerLookMost-peerLook)
	if settled := rec.Received.Add(peerSettle); time.Now().Before(settled) {
		return false, time.Until(settled) + jittered - peerLook, "", nil
	}
	for _, fresh := range []bool{false, true} {
		turn, most, ahead, err := p.look(ctx, node, rec, fresh)
		if err != nil {
			return false, 0, "", err
		}
		if !turn {
			return false, jittered * time.Duration(min(peerLookFactor, 1+ahead/most)), "", nil
		}
	}
	return true, 0, "", nil
}

func (p Peers) look(ctx context.Context, node *corev1.Node, rec interruption.Record, fresh bool) (turn bool, most, ahead int, err error) {
	of := nodes.PoolOf(node)
	peers, err := p.List(ctx, of.Selector(), fresh)
	if err != nil {
		return false, 0, 0, fmt.Errorf("list nodes of pool %q: %w", of.Name, err)
	}
	line := NewLine(p.AtOnce, nil)
	for _, peer := range peers {
		other, err := interruption.ParseRecord(peer.Record)
		if err != nil || peer.Name == node.Name {
			continue // none, or not one that anybody acts on
		}
		if e, ok := entryOf(of, other); ok && (e.begun || p.TTL == 0 || time.Since(other.Received) <= p.TTL+ttlSlack) {
			line.stand(peer.Name, e)
		}
	}
	line.stand(node.Name, entry{pool: of, received: rec.Received})
	most = p.AtOnce.Of(len(peers))
	turn, ahead = line.take(node.Name, most)
	return turn, most, ahead, nil
}
