package plan

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Boot is how long a replacement takes until it is Ready: as the last ones of its pools took or, if
// these have none, as those of the lost nodes' pools did. ok is false if neither tells.
func Boot(ctx context.Context, read func(ctx context.Context, pool string) ([]time.Duration, error), pools, own []string) (a Assumption, ok bool, err error) {
	took, err := readAll(ctx, read, pools)
	from := strings.Join(pools, ", ")
	if err == nil && len(took) == 0 {
		if took, err = readAll(ctx, read, own); len(pools) > 0 {
			from = strings.Join(own, ", ") + ", as " + from + " has none"
		} else {
			from = strings.Join(own, ", ")
		}
	}
	if err != nil || len(took) == 0 {
		return Assumption{}, false, err
	}
	slices.Sort(took)
	what := "NodeClaims"
	if len(took) == 1 {
		what = "NodeClaim"
	}
	return Assume(took[len(took)/2], fmt.Sprintf("median of %d %s of %s", len(took), what, from)), true, nil
}

func readAll(ctx context.Context, read func(context.Context, string) ([]time.Duration, error), pools []string) (all []time.Duration, err error) {
	for _, pool := range pools {
		took, err := read(ctx, pool)
		if err != nil {
			return nil, fmt.Errorf("how long nodes of pool %s take to boot: %w", pool, err)
		}
		all = append(all, took...)
	}
	return all, nil
}
