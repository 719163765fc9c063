package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Most of what happens, happens in the first seconds, so there is time to recover before the
// first deadlines: what the faults cannot excuse has to end well.
const (
	faultsUntil = 35 * time.Second
	lossesUntil = 15 * time.Second
)

// Size says how much happens in a round.
type Size int

const (
	Full  Size = iota
	Short      // for the test suite: fewer nodes are lost, with less time
)

// Draw draws a round.
func Draw(seed uint64, number int, size Size) Round {
	d := dice{rand.New(rand.NewPCG(seed, uint64(number)))}
	r := Round{Seed: seed, Number: number, Mode: mode(seed), Services: d.services()}
	least, most, groups := 55*time.Second, 110*time.Second, 1+d.IntN(4)
	if size == Short {
		least, most, groups = 45*time.Second, 55*time.Second, 2
	}
	free := d.Perm(Nodes)[:Nodes-1] // one stays
	for range groups {
		var group []Step
		group, free = d.losses(free, least, most)
		r.Steps = append(r.Steps, group...)
	}
	for range 4 + d.IntN(7) {
		r.Steps = append(r.Steps, d.fault())
	}
	for range d.IntN(5) {
		r.Steps = append(r.Steps, d.owner(r.Services))
	}
	slices.SortStableFunc(r.Steps, func(a, b Step) int { return int(a.At - b.At) })
	// Another stream: the rest of a round is what it was before there was this.
	d = dice{rand.New(rand.NewPCG(seed, 1<<61+uint64(number)))}
	for i := range r.Services {
		d.ask(&r.Services[i])
	}
	return r
}

// ask draws what a service's pods ask for.
func (d dice) ask(s *Service) {
	s.When = pick(d, "", "", "", "now", "hold", "last")
	s.Gang = d.chance(0.2)
	s.Notices = pick(d, "", "", Silence, Hang, Nonsense, "now", "last")
}

// flags have another stream than any round.
func flags(seed uint64) []string {
	d := dice{rand.New(rand.NewPCG(seed, 1<<63))}
	return []string{
		"--drain-strategy=" + pick(d, "surge", "surge", "surge", "hold", "at-once"),
		"--blocked-pods=" + pick(d, "leave", "delete"),
		fmt.Sprintf("--max-concurrent-rebalances=%d", 1+d.IntN(3)),
		"--margin=" + pick(d, "10s", "5s"),
		"--replacement=" + pick(d, "always", "always", "when-needed"),
	}
}

func mode(seed uint64) string {
	return pick(dice{rand.New(rand.NewPCG(seed, 1<<60))}, "queue", "queue", "imds")
}

func boot(seed uint64) time.Duration {
	return time.Duration(1+rand.New(rand.NewPCG(seed, 1<<62)).IntN(12)) * time.Second
}

// dice draw. Every draw is from one stream, in a fixed order.
type dice struct{ *rand.Rand }

func pick[T any](d dice, from ...T) T { return from[d.IntN(len(from))] }

// between draws a time, in tenths of a second, which are easy to read.
func (d dice) between(least, most time.Duration) time.Duration {
	const unit = time.Second / 10
	return least + unit*time.Duration(d.IntN(int((most-least)/unit)+1))
}

func (d dice) chance(p float64) bool { return d.Float64() < p }

// at is a step about nothing in particular, yet.
func at(t time.Duration, what What) Step {
	return Step{At: t, What: what, Node: -1, Replica: -1, Service: -1}
}

func (d dice) services() []Service {
	var services []Service
	for i := range 2 + d.IntN(2) {
		s := Service{
			Name: fmt.Sprint("service-", i), Replicas: 5 + d.IntN(8),
			Ready: d.between(time.Second, 5*time.Second), Stop: d.between(time.Second, 4*time.Second),
			Grace:       time.Duration(5+d.IntN(11)) * time.Second,
			MaxSurge:    d.IntN(4),
			Unavailable: d.IntN(5) - 1,
			Stays:       d.chance(0.15),
			Tolerates:   d.chance(0.1),
		}
		if s.Unavailable == 0 && s.MaxSurge == 0 {
			s.Unavailable = 1 // a budget that never allows anything says nothing about us
		}
		services = append(services, s)
	}
	return services
}

// losses is what is announced about one to three of the free nodes within a second, and what
// follows from it.
func (d dice) losses(free []int, least, most time.Duration) (steps []Step, rest []int) {
	if len(free) == 0 {
		return nil, free
	}
	group := free[:1+d.IntN(min(3, len(free)))]
	began := d.between(0, lossesUntil)
	what := pick(d, Interrupt, Interrupt, Interrupt, Interrupt, Interrupt, Interrupt,
		Recommend, Recommend, Recommend, Reserve, Stop, Stop, Shutdown)
	if d.chance(0.2) {
		twice := at(max(0, began-time.Second), Duplicate)
		twice.Count = len(group)
		steps = append(steps, twice)
	}
	for _, node := range group {
		s := at(began+d.between(0, time.Second), what)
		s.Node = node
		if what != Recommend && what != Shutdown {
			s.Left = d.between(least, most)
			s.Skew = pick(d, 0, 0, 0, -2*time.Second, 2*time.Second)
		}
		steps = append(steps, s)
		follow := func(what What, least, most time.Duration) Step {
			f := at(max(0, s.At+d.between(least, most)), what)
			f.Node = node
			return f
		}
		if what == Recommend && d.chance(0.4) { // EC2 does take it
			taken := follow(Interrupt, time.Second, 20*time.Second)
			taken.Left = d.between(least, most)
			steps = append(steps, taken)
			s = taken
		}
		if d.chance(0.25) {
			steps = append(steps, follow(pick(d, Repeat, SecondID), time.Second, 20*time.Second))
		}
		if d.chance(0.2) { // when all is over
			steps = append(steps, follow(Repeat, 40*time.Second, 70*time.Second))
		}
		if d.chance(0.1) {
			steps = append(steps, follow(Cordon, -3*time.Second, 3*time.Second))
		}
		if what != Shutdown && d.chance(0.15) {
			off := follow(Cancel, time.Second, 15*time.Second)
			steps = append(steps, off)
			if d.chance(0.5) {
				again := follow(Repeat, 0, 0)
				again.At = off.At + d.between(2*time.Second, 8*time.Second)
				steps = append(steps, again)
			}
		}
	}
	return steps, free[len(group):]
}

func (d dice) fault() Step {
	s := at(d.between(0, faultsUntil-10*time.Second), pick(d,
		Kill, Kill, Kill, Terminate, Pause, Pause,
		CutAPI, CutAPI, SlowAPI, ThrottleAPI, FailAPI, FailAPI, LoseAPI, LoseAPI, FreezeAPI,
		CutQueue, SlowQueue, ThrottleQueue, FailQueue, LoseQueue))
	s.For = d.between(time.Second, 10*time.Second)
	s.Share = float64(2+d.IntN(9)) / 10
	if s.What != FreezeAPI {
		s.Replica = d.IntN(Replicas)
		if d.chance(0.4) {
			s.Replica = Leader
		}
	}
	switch s.What {
	case Kill, Terminate: // For is the time until the kubelet starts it again
		s.For = d.between(0, 4*time.Second)
		s.Share = 0
	case Pause, CutAPI, CutQueue, FreezeAPI:
		s.Share = 0
	}
	return s
}

func (d dice) owner(services []Service) Step {
	i := d.IntN(len(services))
	s := at(d.between(0, faultsUntil), pick(d, Roll, Roll, Scale, Scale, Scale, Remove, Refuse, Refuse, Loosen))
	s.Service = i
	switch s.What {
	case Scale:
		s.Count = d.IntN(services[i].Replicas + 5)
	case Refuse:
		s.For = d.between(3*time.Second, 25*time.Second)
	}
	return s
}
