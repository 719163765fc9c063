package sim

import (
	"fmt"
	"go/format"
	"slices"
	"strings"
)

// Shrink makes a scene that fails smaller: it leaves out one thing after the other, and keeps out what the scene
// fails without. The scene that it returns still fails, and does not with anything less. A scene that does not fail
// each time can end up larger than need be.
func Shrink(s Scene, fails func(Scene) bool) Scene {
	for again := true; again; {
		again = false
		for _, smaller := range smallerThan(s) {
			if fails(smaller) {
				s, again = smaller, true
				break // what is smaller than this one is another list
			}
		}
	}
	return s
}

// smallerThan are the scenes with one thing less, those that lack the most first.
func smallerThan(s Scene) (list []Scene) {
	add := func(change func(*Scene)) {
		smaller := s
		smaller.Faults, smaller.Losses = slices.Clone(s.Faults), slices.Clone(s.Losses)
		smaller.Workloads, smaller.Nodes, smaller.Flags = slices.Clone(s.Workloads), slices.Clone(s.Nodes), slices.Clone(s.Flags)
		change(&smaller)
		list = append(list, smaller)
	}
	if len(s.Faults) > 0 {
		add(func(s *Scene) { s.Faults = nil })
	}
	if s.Rates != (Rates{}) {
		add(func(s *Scene) { s.Rates = Rates{} })
	}
	for i := range s.Faults {
		add(func(s *Scene) { s.Faults = slices.Delete(s.Faults, i, i+1) })
	}
	for i, f := range s.Faults {
		if f.Some {
			add(func(s *Scene) { s.Faults[i].Some = false })
		}
		if f.What == FaultOlder && f.Plural == "" {
			for _, kind := range []string{"nodes", "pods"} {
				add(func(s *Scene) { s.Faults[i].Plural = kind })
			}
		}
	}
	for i := range s.Losses {
		add(func(s *Scene) { s.Losses = slices.Delete(s.Losses, i, i+1) })
	}
	for i := range s.ScaleIns {
		add(func(s *Scene) { s.ScaleIns = slices.Delete(slices.Clone(s.ScaleIns), i, i+1) })
	}
	for i, r := range s.Rehearsals {
		add(func(s *Scene) { s.Rehearsals = slices.Delete(slices.Clone(s.Rehearsals), i, i+1) })
		for _, clears := range []func(*Rehearsal) bool{
			func(r *Rehearsal) bool { return clearOf(&r.Release) },
			func(r *Rehearsal) bool { return clearOf(&r.Cancel) },
		} {
			if simpler := r; clears(&simpler) {
				add(func(s *Scene) { s.Rehearsals = slices.Clone(s.Rehearsals); s.Rehearsals[i] = simpler })
			}
		}
	}
	for i := range s.Workloads {
		add(func(s *Scene) { s.Workloads = slices.Delete(s.Workloads, i, i+1) })
	}
	for i, n := range s.Nodes {
		shrunk := slices.ContainsFunc(s.ScaleIns, func(r ScaleIn) bool { return r.Node == n.Name })
		rehearsed := slices.ContainsFunc(s.Rehearsals, func(r Rehearsal) bool { return r.Node == n.Name })
		if !rehearsed && !shrunk && !slices.ContainsFunc(s.Losses, func(l Loss) bool { return l.Node == n.Name }) {
			add(func(s *Scene) { s.Nodes = slices.Delete(s.Nodes, i, i+1) })
		}
	}
	for i, flag := range s.Flags {
		if strings.Contains(flag, "-ttl=") || strings.Contains(flag, "-lead=") {
			continue // by default they are longer than a round
		}
		if strings.Contains(flag, "-selector=") && slices.Contains(s.Flags, "--provisioner=placeholder") {
			continue // that needs one
		}
		add(func(s *Scene) { s.Flags = slices.Delete(s.Flags, i, i+1) })
	}
	for _, rate := range []func(*Rates) bool{
		func(r *Rates) bool { return clearOf(&r.Error) },
		func(r *Rates) bool { return clearOf(&r.Slow) },
		func(r *Rates) bool { return clearOf(&r.Lost) },
		func(r *Rates) bool { return clearOf(&r.Conflict) },
		func(r *Rates) bool { return clearOf(&r.Cut) },
		func(r *Rates) bool { return clearOf(&r.Lag) },
	} {
		if rates := s.Rates; rate(&rates) {
			add(func(s *Scene) { s.Rates = rates })
		}
	}
	for i, w := range s.Workloads {
		for _, simpler := range simplerWorkloads(w) {
			add(func(s *Scene) { s.Workloads[i] = simpler })
		}
	}
	for i, l := range s.Losses {
		for _, simpler := range simplerLosses(l) {
			add(func(s *Scene) { s.Losses[i] = simpler })
		}
	}
	if s.Ahead != 0 {
		add(func(s *Scene) { s.Ahead = 0 })
	}
	if s.Webhook != 0 {
		add(func(s *Scene) { s.Webhook = 0 })
	}
	if s.Intake == IntakeBoth {
		add(func(s *Scene) { s.Intake = IntakeQueue })
		add(func(s *Scene) { s.Intake = IntakeIMDS })
	}
	for _, clears := range []func(*Groups) bool{
		func(g *Groups) bool { return clearOf(&g.Rebalances) },
		func(g *Groups) bool { return clearOf(&g.Full) },
		func(g *Groups) bool { return clearOf(&g.Launches) },
		func(g *Groups) bool { return len(s.ScaleIns) == 0 && !g.Launches && clearOf(&g.Hook) },
	} {
		if groups := s.Groups; clears(&groups) {
			add(func(s *Scene) { s.Groups = groups })
		}
	}
	for _, k := range simplerKarpenters(s.Karpenter) {
		add(func(s *Scene) { s.Karpenter = k })
	}
	return list
}

// clearOf clears a value, and reports whether there was anything to clear.
func clearOf[T comparable](value *T) bool {
	was, zero := *value, *new(T)
	*value = zero
	return was != zero
}

func simplerWorkloads(w Workload) (list []Workload) {
	try := func(change func(*Workload) bool) {
		if simpler := w; change(&simpler) {
			list = append(list, simpler)
		}
	}
	try(func(w *Workload) bool { had := len(w.Annotations) > 0; w.Annotations = nil; return had })
	try(func(w *Workload) bool { return clearOf(&w.Budget) })
	try(func(w *Workload) bool { return clearOf(&w.Broken) })
	try(func(w *Workload) bool { return clearOf(&w.Volume) })
	try(func(w *Workload) bool { return clearOf(&w.Gang) })
	try(func(w *Workload) bool { return clearOf(&w.Tolerates) })
	try(func(w *Workload) bool { return clearOf(&w.Zone) })
	if w.Replicas > 1 {
		try(func(w *Workload) bool { w.Replicas /= 2; w.Broken = min(w.Broken, w.Replicas); return true })
		try(func(w *Workload) bool { w.Replicas--; w.Broken = min(w.Broken, w.Replicas); return true })
	}
	return list
}

func simplerLosses(l Loss) (list []Loss) {
	try := func(change func(*Loss) bool) {
		if simpler := l; change(&simpler) {
			list = append(list, simpler)
		}
	}
	try(func(l *Loss) bool { return clearOf(&l.Warned) })
	try(func(l *Loss) bool { return clearOf(&l.Cancel) })
	try(func(l *Loss) bool { return clearOf(&l.Renews) })
	try(func(l *Loss) bool { return clearOf(&l.Withdrawn) })
	if l.Copies > 1 {
		try(func(l *Loss) bool { l.Copies, l.Again, l.Renews = 1, 0, false; return true })
	}
	return list
}

func simplerKarpenters(k Karpenter) (list []Karpenter) {
	for _, clears := range []func(*Karpenter) bool{
		func(k *Karpenter) bool { return clearOf(&k.NoCapacity) },
		func(k *Karpenter) bool { return clearOf(&k.NoSpot) },
		func(k *Karpenter) bool { return clearOf(&k.NeverReady) },
		func(k *Karpenter) bool { return clearOf(&k.Provisions) },
		func(k *Karpenter) bool { return clearOf(&k.Consolidates) },
		func(k *Karpenter) bool { return clearOf(&k.Limit) },
		func(k *Karpenter) bool { return clearOf(&k.Reserved) },
	} {
		if simpler := k; clears(&simpler) {
			list = append(list, simpler)
		}
	}
	return list
}

// AsTest is a test of cmd/spot-handler that plays the scene.
func (s Scene) AsTest() string {
	text := fmt.Sprintf("func TestScene%d(t *testing.T) {\n\tkeepsInvariants(t, %#v)\n}\n", s.Seed, s)
	source, err := format.Source([]byte("package main\n\n" + text))
	if err != nil {
		return text
	}
	return string(source[len("package main\n\n"):])
}
