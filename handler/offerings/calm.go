package offerings

import (
	"cmp"
	"slices"
	"time"

	"spot-handler/handler/interruption"
)

// LastLosses are the offerings of which EC2 has taken a node since that time, or was said to, in whatever
// pool, with the last time of each. What an earlier process has left is known only if known is true.
func (m *Memory) LastLosses(since time.Time) (last map[Offering]time.Time, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	last = map[Offering]time.Time{}
	for of, t := range m.of {
		if t.Last.After(since) {
			last[of.Offering] = interruption.Later(last[of.Offering], t.Last)
		}
	}
	return last, m.counts
}

// Had are the offerings that the pool has had a node of lately, in order.
func (m *Memory) Had(pool string) []Offering {
	m.mu.Lock()
	defer m.mu.Unlock()
	var had []Offering
	for of := range m.of {
		if of.Pool == pool {
			had = append(had, of.Offering)
		}
	}
	slices.SortFunc(had, compareOfferings)
	return had
}

// Standing is how many spot nodes of the pool were counted last.
func (m *Memory) Standing(pool string) (count int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for of, t := range m.of {
		if of.Pool == pool {
			count += t.nodes
		}
	}
	return count
}

func compareOfferings(a, b Offering) int {
	return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Zone, b.Zone))
}

// Calm is what to ask for so that it is none of the offerings that were lost: a NodeClaim can't leave out
// one offering, but types, zones, or types in a single zone.
type Calm struct {
	WithoutTypes []string
	WithoutZones []string
	Zone         string // the only one to ask for; empty: all but WithoutZones
	Left         int    // how many known offerings are left
}

// CalmOf leaves out of a pool's offerings those that were lost, and as few others as possible. It reports
// false if nothing is left. If the pool is open, it has types beyond those that are known.
func CalmOf(of, lost []Offering, open bool) (Calm, bool) {
	best := Calm{Left: -1}
	try := func(c Calm) {
		for _, o := range of {
			if c.allows(o) {
				c.Left++
			}
		}
		if c.Left > best.Left {
			best = c
		}
	}
	types, zones := namesOf(lost)
	try(Calm{WithoutTypes: types})
	if len(lost) == 0 {
		return best, true
	}
	try(Calm{WithoutZones: zones})
	_, all := namesOf(of)
	for _, zone := range all {
		here, _ := namesOf(slices.DeleteFunc(slices.Clone(lost), func(o Offering) bool { return o.Zone != zone }))
		try(Calm{WithoutTypes: here, Zone: zone})
	}
	if best.Left == 0 {
		best = Calm{WithoutTypes: types}
	}
	return best, best.Left > 0 || open
}

func (c Calm) allows(o Offering) bool {
	return !slices.Contains(c.WithoutTypes, o.Type) && !slices.Contains(c.WithoutZones, o.Zone) && (c.Zone == "" || c.Zone == o.Zone)
}

// namesOf are the types and the zones of the offerings, each once, in order.
func namesOf(list []Offering) (types, zones []string) {
	for _, o := range list {
		types, zones = append(types, o.Type), append(zones, o.Zone)
	}
	slices.Sort(types)
	slices.Sort(zones)
	return slices.Compact(types), slices.Compact(zones)
}
