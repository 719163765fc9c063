package odds

import (
	"math"
	"time"

	"spot-handler/handler/offerings"
)

// horizons are the times for which odds are given.
var horizons = [2]time.Duration{5 * time.Minute, 30 * time.Minute}

// outcome is what became of the nodes that stood at a moment.
type outcome struct {
	nodes float64
	lost  [len(horizons)]float64 // the share that was lost within the time; -1 where the trace ends before
}

// outcomes are those of each minute. A trace does not say which nodes were lost: any of those that
// stood were equally likely to be.
func (t *trace) outcomes() []outcome {
	var all []outcome
	i, now := 0, 0
	for at := epoch; at.Before(t.end); at = at.Add(time.Minute) {
		for i < len(t.steps) && !t.steps[i].at.After(at) {
			now = t.steps[i].now
			i++
		}
		o := outcome{nodes: float64(now)}
		for h, within := range horizons {
			until := at.Add(within)
			if until.After(t.end) {
				o.lost[h] = -1
				continue
			}
			left := 1.0
			for j := i; j < len(t.steps) && !t.steps[j].at.After(until); j++ {
				if s := t.steps[j]; s.lost > 0 {
					left *= 1 - float64(s.lost)/float64(s.of)
				}
			}
			o.lost[h] = 1 - left
		}
		all = append(all, o)
	}
	return all
}

// forecast is the odds of each minute.
type forecast [][len(horizons)]float64

// shown is the prior that status begins with, but that its jump is fitted to the other traces.
func (p Prior) shown() Prior {
	p.Base, p.BaseWeight = offerings.Assumed.Base, offerings.Assumed.BaseWeight
	return p
}

// forecast replays the trace, and asks for the odds of each minute, which know nothing of later ones.
func (p Prior) forecast(t *trace) forecast {
	r := New(p, epoch)
	given := make(forecast, 0, len(t.known))
	i, now := 0, 0
	for at := epoch; at.Before(t.end); at = at.Add(time.Minute) {
		for ; i < len(t.steps) && !t.steps[i].at.After(at); i++ {
			s := t.steps[i]
			r.Stood(now, s.at)
			if s.lost > 0 {
				r.Lost(s.lost, s.of)
			}
			now = s.now
		}
		r.Stood(now, at)
		given = append(given, [len(horizons)]float64{r.Odds(horizons[0]), r.Odds(horizons[1])})
	}
	return given
}

// constant gives the same odds at each minute.
func (t *trace) constant(odds [len(horizons)]float64) forecast {
	given := make(forecast, len(t.known))
	for i := range given {
		given[i] = odds
	}
	return given
}

// anyMoment is the share of the nodes of any minute that was lost within the times: the best constant
// odds, which are only known afterwards.
func (t *trace) anyMoment() (odds [len(horizons)]float64) {
	for h := range horizons {
		var lost, nodes float64
		for _, o := range t.known {
			if o.lost[h] >= 0 {
				lost, nodes = lost+o.nodes*o.lost[h], nodes+o.nodes
			}
		}
		odds[h] = lost / nodes
	}
	return odds
}

// constantOdds is what the average loss rate of the traces says: each counts as much as any other.
func constantOdds(of []*trace) (odds [len(horizons)]float64) {
	for _, t := range of {
		for h, p := range t.anyMoment() {
			odds[h] += p / float64(len(of))
		}
	}
	return odds
}

// brier is the mean square of the difference between odds and what happened, over all node-minutes.
func (t *trace) brier(given forecast) (score [len(horizons)]float64) {
	for h := range horizons {
		var sum, nodes float64
		for i, o := range t.known {
			if y, p := o.lost[h], given[i][h]; y >= 0 {
				sum, nodes = sum+o.nodes*(y*(1-p)*(1-p)+(1-y)*p*p), nodes+o.nodes
			}
		}
		score[h] = sum / nodes
	}
	return score
}

// loss is the Brier score of the prior, as a ratio to that of constant odds known afterwards, over both horizons and
// all traces, each counting as much as any other.
func (p Prior) loss(traces []*trace) float64 {
	var sum float64
	for _, t := range traces {
		score, best := t.brier(p.forecast(t)), t.brier(t.constant(t.anyMoment()))
		for h := range horizons {
			sum += score[h] / best[h]
		}
	}
	return sum / float64(len(traces)*len(horizons))
}

// fit is the prior with the least loss on the traces: the best of a coarse grid, one parameter after
// the other until none gets better.
func fit(traces []*trace) Prior {
	best := Prior{Base: 0.1, Jump: 2, BaseWeight: 4, JumpWeight: 10, Decay: 20 * time.Minute}
	least := best.loss(traces)
	for better := true; better; {
		better = false
		try := func(change func(*Prior)) {
			p := best
			change(&p)
			if l := p.loss(traces); l < least-1e-9 {
				best, least, better = p, l, true
			}
		}
		for _, v := range []float64{0.02, 0.05, 0.1, 0.2, 0.4} {
			try(func(p *Prior) { p.Base = v })
		}
		for _, v := range []float64{0.25, 0.5, 1, 2, 4} {
			try(func(p *Prior) { p.Jump = v })
		}
		for _, v := range []float64{1, 2, 4, 8, 16} {
			try(func(p *Prior) { p.BaseWeight = v })
		}
		for _, v := range []float64{1, 5, 10, 20, 40} {
			try(func(p *Prior) { p.JumpWeight = v })
		}
		for _, v := range []time.Duration{5, 10, 20, 40, 60} {
			try(func(p *Prior) { p.Decay = v * time.Minute })
		}
	}
	return best
}

// bin is how many node-minutes were given odds in a range, the mean of these odds, and the share lost.
type bin struct{ nodes, odds, lost float64 }

// bins are the lower ends of the ranges.
var bins = []float64{0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6}

func calibration(t *trace, given forecast, h int, into []bin) {
	for i, o := range t.known {
		y, p := o.lost[h], given[i][h]
		if y < 0 {
			continue
		}
		b := 0
		for b+1 < len(bins) && p >= bins[b+1] {
			b++
		}
		into[b].nodes += o.nodes
		into[b].odds += o.nodes * p
		into[b].lost += o.nodes * y
	}
}

func (b bin) means() (odds, lost float64) {
	if b.nodes == 0 {
		return math.NaN(), math.NaN()
	}
	return b.odds / b.nodes, b.lost / b.nodes
}
