package odds

import (
	"math"
	"math/rand/v2"
	"time"
)

// What is assumed of a fleet.
const (
	boot     = 50 * time.Second // a node, from its request until pods start on it
	serves   = 80 * time.Second // a pod, from its node's notice on: two minutes less margin and grace period
	calm     = 30 * time.Minute // without a loss, before pods are given back, as is the default
	giveBack = time.Minute      // between two pods that are given back
	tick     = 30 * time.Second // of the evaluation
	runs     = 4                // of each replay; they differ in which nodes are lost
)

// kind is what is done ahead of losses. To watch is to show the odds and do nothing, which costs what
// off costs.
type kind int

const (
	off kind = iota
	act
	oracle // knows each loss ahead, and launches just in time, without caps
)

// policy is a kind with the settings of act.
type policy struct {
	kind  kind
	from  float64 // odds of a loss within 30 minutes from which it acts
	nodes float64 // launched ahead at a time, at most, as a share of the fleet's
	hours float64 // launched ahead in a day, at most, as a share of the fleet's node-hours
}

// cost is what a replay has cost.
type cost struct {
	unavailable float64 // pod-seconds
	all         float64 // node-minutes, of spot and fallback nodes
	fallback    float64 // of these, on fallback nodes
	vain        float64 // of these, on nodes launched ahead of a loss that did not come
	moves       float64 // of pods
	podDays     float64
}

// replay has a fleet of one pod on each node of the trace. A pod is ready so long after its node is.
//
// The same nodes are lost under each policy: each pod has a slot, and a share of the slots, which
// differ in each run, is lost when the trace loses that share of its nodes. A slot whose pod is on a
// fallback node at that time loses nothing. On a notice, a fallback node is requested and the
// replacement pod starts there; the old pod serves until its eviction deadline. After a time without
// losses, pods are given back one by one, as far as the trace has spot nodes: Karpenter evicts each
// when its spot node has booted, and only then another starts. Fallback nodes never lack.
func replay(t *trace, prior Prior, ready time.Duration, p policy) cost {
	return replayWith(calm, t, prior, ready, p)
}

// replayWith is replay with another time without losses before pods are given back.
func replayWith(calm time.Duration, t *trace, prior Prior, ready time.Duration, p policy) (sum cost) {
	for run := range uint64(runs) {
		f := newFleet(t, prior, ready, p, run)
		f.calm, f.cost = calm, sum
		f.run()
		sum = f.cost
	}
	return sum
}

func (f *fleet) run() {
	for f.now = epoch; f.now.Before(f.trace.end); f.now = f.now.Add(f.tick) {
		f.pass()
	}
}

// pass has a tick pass.
func (f *fleet) pass() {
	f.notices()
	f.arrive()
	f.prepare()
	f.giveBack()
	f.pay()
}

// slot is a pod's place in the fleet. While its pod moves, it has two nodes.
type slot struct {
	spot     bool        // it has a spot node that is not noticed
	fallback bool        // it has a fallback node
	ready    time.Time   // when the pod that moves is ready; zero if none does
	back     bool        // it moves to the spot node, which boots until ready
	moved    time.Time   // when its pod moved ahead of a loss, the last time
	returned time.Time   // when the pod that was given back last is ready on its spot node
	ahead    bool        // its fallback node was launched, or is held, ahead of a loss
	extra    float64     // minutes of that node
	losses   []time.Time // of its spot nodes, to come
}

// next is how long it is until the slot's next loss.
func (s *slot) next(now time.Time) time.Duration {
	for len(s.losses) > 0 && !s.losses[0].After(now) {
		s.losses = s.losses[1:]
	}
	if len(s.losses) == 0 {
		return math.MaxInt64
	}
	return s.losses[0].Sub(now)
}

// standby is a fallback node without a pod.
type standby struct {
	boots   time.Time
	minutes float64
}

type fleet struct {
	trace    *trace
	policy   policy
	calm     time.Duration
	tick     time.Duration
	ready    time.Duration
	need     time.Duration // how long before its notice a pod has to move to be ready in time
	rate     *Rate         // by the fleet's own losses
	now      time.Time
	step     int // the next of the trace
	granted  int // spot nodes that the trace has
	slots    []slot
	standby  []standby
	lost     time.Time // a node, the last time
	gaveBack time.Time // a pod, the last time
	budget   float64   // node-minutes that may still be launched ahead
	cost     cost
}

func newFleet(t *trace, prior Prior, ready time.Duration, p policy, run uint64) *fleet {
	f := &fleet{
		trace: t, policy: p, calm: calm, tick: tick, ready: ready, need: max(0, boot+ready-serves),
		rate: New(prior, epoch), slots: make([]slot, t.target),
	}
	random := rand.New(rand.NewPCG(run, 1))
	for _, s := range t.steps {
		if s.lost == 0 {
			continue
		}
		share := float64(s.lost) / float64(s.of) * float64(t.target)
		n := int(share)
		if random.Float64() < share-float64(n) {
			n++
		}
		for _, i := range random.Perm(t.target)[:n] {
			f.slots[i].losses = append(f.slots[i].losses, s.at)
		}
	}
	for i := range f.slots {
		f.slots[i].fallback = true
	}
	return f
}

// notices takes the nodes that were lost since the last tick.
func (f *fleet) notices() {
	for ; f.step < len(f.trace.steps) && !f.trace.steps[f.step].at.After(f.now); f.step++ {
		f.granted = f.trace.steps[f.step].now
	}
	stood, lost := f.standing(), 0
	f.rate.Stood(stood, f.now)
	for i := range f.slots {
		s := &f.slots[i]
		if len(s.losses) == 0 || s.losses[0].After(f.now) {
			continue
		}
		s.next(f.now)
		switch {
		case s.spot:
			f.lose(s)
			lost++
		case s.ahead: // launched with good reason
			s.ahead, s.extra = false, 0
		}
	}
	if lost > 0 {
		f.rate.Lost(lost, stood)
		f.lost = f.now
	}
}

// lose has a slot's spot node be noticed.
func (f *fleet) lose(s *slot) {
	s.spot = false
	f.cost.all += 2 // minutes until it is gone
	if s.back {
		s.back, s.ready = false, time.Time{} // the pod has not left its fallback node
		return
	}
	ready := s.ready // of a pod that was moved ahead
	if !s.fallback {
		f.cost.moves++
		s.fallback = true
		ready = f.now.Add(boot + f.ready)
		if len(f.standby) > 0 {
			ready = f.now.Add(f.ready)
			if boots := f.standby[0].boots; boots.After(f.now) {
				ready = boots.Add(f.ready)
			}
			f.standby = f.standby[1:]
		}
	}
	until := f.now.Add(serves)
	if s.returned.After(until) { // it does not serve
		until = s.returned
	}
	f.cost.unavailable += max(0, ready.Sub(until).Seconds())
	s.ready, s.ahead, s.extra = time.Time{}, false, 0
}

// arrive ends the moves whose pods are ready.
func (f *fleet) arrive() {
	for i := range f.slots {
		s := &f.slots[i]
		if s.ready.IsZero() || s.ready.After(f.now) {
			continue
		}
		s.ready = time.Time{}
		if s.back {
			s.fallback, s.back, s.returned = false, false, f.now.Add(f.ready)
			f.cost.unavailable += f.ready.Seconds()
		} else {
			s.spot = false // the node is given up, as on a recommendation
		}
	}
}

// prepare launches ahead of losses: as many nodes as are likely to be needed, or one for each pod that
// is not ready in time even if its node has booted.
func (f *fleet) prepare() {
	switch {
	case f.need == 0: // by their own history, these pods are ready in time
	case f.policy.kind == oracle:
		for i := range f.slots {
			if s := &f.slots[i]; s.spot && !s.fallback && s.next(f.now) <= f.need+f.tick {
				f.surge(s)
			}
		}
	case f.policy.kind == act && !f.risky():
		for _, node := range f.standby {
			f.cost.vain += node.minutes
		}
		f.standby = nil
	case f.policy.kind == act && f.ready <= serves:
		for float64(len(f.standby)) < f.rate.Odds(horizons[1])*float64(f.standing()) && f.room() {
			f.standby = append(f.standby, standby{boots: f.now.Add(boot)})
		}
	case f.policy.kind == act:
		for i := range f.slots {
			if s := &f.slots[i]; s.spot && !s.fallback && f.room() {
				f.surge(s)
				s.ahead = true
			}
		}
	}
}

// surge starts a slot's replacement pod on a fallback node.
func (f *fleet) surge(s *slot) {
	f.cost.moves++
	s.fallback, s.moved, s.ready = true, f.now, f.now.Add(boot+f.ready)
}

// risky reports whether act launches nodes ahead, and holds those that it has.
func (f *fleet) risky() bool {
	return f.policy.kind == act && f.need > 0 && f.budget > 0 && f.rate.Odds(horizons[1]) >= f.policy.from
}

// room reports whether the caps let another node be launched ahead.
func (f *fleet) room() bool {
	ahead := len(f.standby)
	for i := range f.slots {
		if f.slots[i].ahead {
			ahead++
		}
	}
	return f.budget > 0 && float64(ahead) < f.policy.nodes*float64(len(f.slots))
}

// standing is the number of spot nodes.
func (f *fleet) standing() (n int) {
	for i := range f.slots {
		if f.slots[i].spot {
			n++
		}
	}
	return n
}

// giveBack has the next pod return to a spot node. Act holds pods for longer, within its caps.
func (f *fleet) giveBack() {
	standing, isCalm := f.standing(), f.now.Sub(f.lost) >= f.calm
	for i := range f.slots {
		s := &f.slots[i]
		switch {
		case s.spot || !s.ready.IsZero() || standing >= f.granted || f.now.Sub(f.gaveBack) < giveBack:
		case !s.ahead && !isCalm, s.ahead && f.risky():
		case f.policy.kind == oracle && s.next(f.now) <= boot+f.ready+f.need+2*f.tick:
		case f.risky() && f.room():
			s.ahead = true
		case f.now.Equal(epoch): // the fleet begins on what is granted
			s.spot, s.fallback = true, false
			standing++
		default:
			if s.ahead {
				f.cost.vain += s.extra
			}
			f.cost.moves++
			s.ahead, s.extra = false, 0
			s.spot, s.back, s.ready = true, true, f.now.Add(boot)
			f.gaveBack = f.now
		}
	}
}

// pay counts what stands during a tick. The cap on node-hours fills up evenly over the day.
func (f *fleet) pay() {
	minutes, fleet := f.tick.Minutes(), float64(len(f.slots))
	day := f.policy.hours * fleet * (24 * time.Hour).Minutes()
	f.budget = min(day, f.budget+f.policy.hours*fleet*minutes)
	for i := range f.slots {
		s := &f.slots[i]
		if s.spot {
			f.cost.all += minutes
		}
		if s.fallback {
			f.cost.all += minutes
			f.cost.fallback += minutes
		}
		if s.ahead {
			s.extra += minutes
			f.budget -= minutes
		}
	}
	for i := range f.standby {
		f.standby[i].minutes += minutes
		f.cost.all += minutes
		f.cost.fallback += minutes
		f.budget -= minutes
	}
	f.cost.podDays += fleet * f.tick.Hours() / 24
}
