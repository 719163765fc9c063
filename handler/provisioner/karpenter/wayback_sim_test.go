package karpenter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"spot-handler/handler/offerings"
	"spot-handler/handler/turns"
)

// simulated is a spot pool in virtual time: its nodes are lost independently of each other, at a rate, and what
// replaces them stays on demand as long as the rule says. They go back as the line of recommended nodes lets
// them: a tenth of the fallback pool's nodes at a time.
type simulated struct {
	nodes, types, zones int
	perHour             float64
	seed                uint64
}

// share is the part of the pool that is held, on average over some days.
func (s simulated) share() float64 {
	const (
		days    = 2
		trip    = 3 * time.Minute // until the spot node is Ready, and the pods have moved
		warmUp  = 12 * time.Hour
		perHour = int(time.Hour / heldCheck)
	)
	var of []offerings.Offering
	for t := range s.types {
		for z := range s.zones {
			of = append(of, offerings.Offering{Type: fmt.Sprint("type-", t), Zone: fmt.Sprint("zone-", z)})
		}
	}
	requirements := []requirement{
		{Key: "node.kubernetes.io/instance-type", Operator: "In"},
		{Key: "topology.kubernetes.io/zone", Operator: "In"},
	}
	for _, o := range of {
		requirements[0].Values, requirements[1].Values = append(requirements[0].Values, o.Type), append(requirements[1].Values, o.Zone)
	}
	field := fieldOf(requirements, nil)
	atOnce, err := turns.ParseConcurrency("10%") // --max-concurrent-rebalances
	if err != nil {
		panic(err)
	}
	random := rand.New(rand.NewPCG(s.seed, 1))
	spots := make([]offerings.Offering, s.nodes)
	for i := range spots {
		spots[i] = of[i%len(of)]
	}
	last := map[offerings.Offering]time.Time{}
	var held []time.Time // since when
	var underWay []time.Time
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	sum, count := 0.0, 0
	for now := start; now.Before(start.Add(days * 24 * time.Hour)); now = now.Add(heldCheck) {
		lost := field.within(last, now.Add(-DefaultCalm))
		calm, ok := offerings.CalmOf(field.of, lost, field.open)
		for len(underWay) > 0 && now.Sub(underWay[0]) >= trip {
			underWay = underWay[1:]
			to := slices.DeleteFunc(slices.Clone(of), func(o offerings.Offering) bool {
				return ok && (slices.Contains(calm.WithoutTypes, o.Type) || slices.Contains(calm.WithoutZones, o.Zone) || calm.Zone != "" && calm.Zone != o.Zone)
			})
			spots = append(spots, to[random.IntN(len(to))])
		}
		spots = slices.DeleteFunc(spots, func(o offerings.Offering) bool {
			if random.Float64() >= s.perHour/float64(perHour) {
				return false
			}
			last[o] = now
			held = append(held, now)
			return true
		})
		slots := atOnce.Limit(len(held)+len(underWay)) - len(underWay)
		held = slices.DeleteFunc(held, func(since time.Time) bool {
			until, _ := (wayBack{since: since, calm: DefaultCalm, field: field, last: last}).stay(now)
			if until.After(now) || slots <= 0 {
				return false
			}
			slots--
			underWay = append(underWay, now)
			return true
		})
		if now.Sub(start) > warmUp {
			sum, count = sum+float64(len(held)+len(underWay))/float64(s.nodes), count+1
		}
	}
	return sum / float64(count)
}

// However large a pool, what stands in for its lost nodes is the part that it loses in half an hour, and a little
// more.
func TestHeldShareDoesNotGrowWithThePool(t *testing.T) {
	for _, losses := range []struct{ perHour, most float64 }{{0.01, 0.02}, {0.03, 0.05}} {
		for _, nodes := range []int{20, 300, 1000} {
			s := simulated{nodes: nodes, types: 8, zones: 3, perHour: losses.perHour, seed: 1}
			share := s.share()
			t.Logf("%d nodes, %.0f%% lost an hour: %.1f%% held", nodes, 100*s.perHour, 100*share)
			if share >= losses.most {
				t.Errorf("%+v: a share of %.3f is held, want less than %.2f", s, share, losses.most)
			}
		}
	}
	few := simulated{nodes: 1000, types: 2, zones: 2, perHour: 0.03, seed: 1}
	t.Logf("1000 nodes of 4 offerings, 3%% lost an hour: %.1f%% held", 100*few.share())
}
