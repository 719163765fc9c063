package sim

import (
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"time"
)

// Draw draws random numbers by name: what one is does not depend on what was drawn before, so a change of a
// scene in one place moves nothing elsewhere.
type Draw uint64

func (d Draw) of(names []string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(strings.Join(names, "\x00"))) // never fails
	return rand.New(rand.NewPCG(uint64(d), h.Sum64()))
}

// Float is from 0 to 1.
func (d Draw) Float(names ...string) float64 { return d.of(names).Float64() }

// Chance is true with that probability.
func (d Draw) Chance(p float64, names ...string) bool { return p > 0 && d.Float(names...) < p }

// Int is from 0 to n-1.
func (d Draw) Int(n int, names ...string) int { return d.of(names).IntN(n) }

// Between is a time from least to most, in milliseconds.
func (d Draw) Between(least, most time.Duration, names ...string) time.Duration {
	if most <= least {
		return least
	}
	return (least + time.Duration(d.Float(names...)*float64(most-least))).Truncate(time.Millisecond)
}

// Pick is one of these.
func Pick[T any](d Draw, of []T, names ...string) T { return of[d.Int(len(of), names...)] }
