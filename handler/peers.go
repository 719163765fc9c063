package handler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// A process that cares for one node only has to look at the others of its pool for who is
// before it in line. Each looks by itself and all follow the same rule, so that it takes no
// agreement: of two that look at the same moment, one is before the other for both. It
// rests on two things:
//
//   - who looks knows all that come before it, so it begins only when it has stood in line
//     for peerSettle, in which those that were recommended earlier have written that down;
//   - the last look, before it begins, is at what the API server has stored, and not at
//     what its cache holds.
//
// More than are allowed can be under way only if a record was written peerSettle too late,
// or if clocks differ by as much; and while the pool shrinks.

const (
	// peerSettle is how long a node stands in line at the least. The record is written
	// within a second or so of the recommendation.
	peerSettle = 10 * time.Second

	// peerLook and peerLookMost are between which times a node that is next looks again.
	// Those further behind look the less often, up to peerLookFactor: each look is a list
	// of the pool, and a pool may wait as a whole.
	peerLook, peerLookMost = 10 * time.Second, 30 * time.Second
	peerLookFactor         = 10
)

// Peers lists the nodes that a label selector selects: fast, from a cache of the API
// server, or fresh.
type Peers func(ctx context.Context, selector string, fresh bool) ([]nodes.Peer, error)

// turnAmongPeers is rebalanceTurn where the index does not know the other nodes.
func (h *Handler) turnAmongPeers(ctx context.Context, node *corev1.Node, rec interruption.Record) (begin bool, again time.Duration, err error) {
	jittered := peerLook + rand.N(peerLookMost-peerLook)
	if settled := rec.Received.Add(peerSettle); time.Now().Before(settled) {
		return false, until(settled) + jittered - peerLook, nil
	}
	for _, fresh := range []bool{false, true} {
		begin, most, ahead, err := h.amongPeers(ctx, node, rec, fresh)
		if err != nil {
			return false, 0, err
		}
		if !begin {
			return false, jittered * time.Duration(min(peerLookFactor, 1+ahead/most)), nil
		}
	}
	return true, 0, nil
}

func (h *Handler) amongPeers(ctx context.Context, node *corev1.Node, rec interruption.Record, fresh bool) (begin bool, most, ahead int, err error) {
	of := poolOf(node)
	peers, err := h.opts.Peers(ctx, of.selector(), fresh)
	if err != nil {
		return false, 0, 0, fmt.Errorf("list nodes of pool %q: %w", of.name, err)
	}
	line := newLine()
	for _, peer := range peers {
		other, err := interruption.ParseRecord(peer.Record)
		if err != nil || peer.Name == node.Name {
			continue // none, or not one that anybody acts on
		}
		if p, ok := placeOf(of, other); ok && (p.begun || !h.forgotten(other)) {
			line.stand(peer.Name, p)
		}
	}
	line.stand(node.Name, place{pool: of, received: rec.Received})
	most = h.opts.RebalancesAtOnce.Of(len(peers))
	begin, ahead = line.take(node.Name, most)
	return begin, most, ahead, nil
}

// forgotten: a node that has stood in line for longer than the TTL would have left it, if
// there were a process to see to it.
func (h *Handler) forgotten(rec interruption.Record) bool {
	return h.opts.RebalanceTTL > 0 && time.Since(rec.Received) > h.opts.RebalanceTTL+rebalanceLook
}
