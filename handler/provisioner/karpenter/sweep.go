package karpenter

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// unsettled selects those of our claims that might still need us.
const unsettled = ReplacesLabel + ",!" + SettledLabel

const (
	// sweepRetry is the time between two attempts of the first look.
	sweepRetry = 5 * time.Second

	// No process leads among the daemons of single nodes, so they share the search for what
	// others have left behind. Each looks once at some time within firstSweep, to spread the
	// lists of a rollout to thousands of nodes, and then about every nextSweep.
	firstSweep = 2 * time.Minute
	nextSweep  = time.Hour
)

// sweep looks for claims that an earlier process has left behind, and has each of them
// looked after. Without Karpenter, or without the right to ask, there are none.
func (b *Backend) sweep(ctx context.Context) {
	if b.claims.single {
		b.sweepForOthers(ctx)
		return
	}
	for {
		err := b.adopt(ctx)
		if _, away := unavailable(err); err == nil || away {
			return
		}
		b.log.Debug().Err(err).Msg("look for replacements of an earlier process")
		if !wait(ctx, sweepRetry) {
			return
		}
	}
}

func (b *Backend) sweepForOthers(ctx context.Context) {
	for again := wait(ctx, rand.N(firstSweep)); again; again = wait(ctx, nextSweep/2+rand.N(nextSweep)) {
		claims, err := b.listOurs(ctx)
		if err != nil {
			b.log.Debug().Err(err).Msg("look for replacements of other processes")
		}
		for _, claim := range claims {
			if !b.keeper.due(claim) {
				continue // its own process comes first, and there might be a thousand of us
			}
			if _, err := b.keeper.look(ctx, claim.Name); err != nil {
				b.log.Debug().Err(err).Str("nodeclaim", claim.Name).Msg("look after replacement of another process")
			}
		}
	}
}

// adopt takes in those of our claims that exist, to be looked after.
func (b *Backend) adopt(ctx context.Context) error {
	claims, err := b.listOurs(ctx)
	if err != nil {
		return err
	}
	for _, claim := range claims {
		b.claims.learn(claim.slim())
		b.keeper.add(claim.Name)
	}
	if len(claims) > 0 {
		b.claims.start("")
	}
	return nil
}

// listOurs is a consistent read: it includes a claim that a leader made a moment ago, just
// before it died.
func (b *Backend) listOurs(ctx context.Context) ([]*nodeClaim, error) {
	list, err := b.client.Resource(nodeClaimResource).List(ctx, metav1.ListOptions{LabelSelector: unsettled})
	if err != nil {
		return nil, asUnavailable("list NodeClaims", fmt.Errorf("list NodeClaims: %w", err))
	}
	var claims []*nodeClaim
	for i := range list.Items {
		claims = append(claims, decodeClaim(&list.Items[i]))
	}
	return claims, nil
}

// wait reports whether ctx is still alive after the time.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
