package offerings

import (
	"math"
	"time"
)

// Prior is what is assumed of an offering without a history.
type Prior struct {
	Base       float64       // losses per node-hour while nothing has happened of late
	Jump       float64       // losses per node-hour on top, right after all nodes were lost at once
	BaseWeight float64       // losses of its own after which history counts as much as Base
	JumpWeight float64       // the same for Jump
	Decay      time.Duration // after which the jump is at 1/e
}

// Assumed is the prior of a cluster. The jump is what fits recorded fleets best, see deploy/docs/odds.md.
// Most capacity is lost less often than that of those fleets, so the base is lower, and gives way soon.
var Assumed = Prior{Base: 0.01, Jump: 2, BaseWeight: 0.2, JumpWeight: 40, Decay: 20 * time.Minute}

// Rate is what is known of the losses of an offering. A node is lost at a rate of base + jump·share.
// When a share of the nodes is lost, Share grows by it, and decays then. Base and jump begin with a
// Prior, which gives way to what the offering has lost (gamma-Poisson); that counts half after a day.
// Each loss is divided between base and jump by what each contributed to the rate at that moment. A
// Rate is not safe for concurrent use.
type Rate struct {
	Lost     float64 `json:"lost"`               // nodes, by their interruption notices
	Hours    float64 `json:"hours"`              // node-hours that nodes have stood
	Followed float64 `json:"followed,omitempty"` // of those lost, how many the jump explains
	Risk     float64 `json:"risk,omitempty"`     // the integral of Share over node-hours
	Share    float64 `json:"share,omitempty"`    // what is left of the shares that were lost
}

// Stood adds that so many nodes have stood for a time.
func (r *Rate) Stood(p Prior, nodes int, stood time.Duration) {
	h, decay := max(0, stood).Hours(), p.Decay.Hours()
	fade, left := math.Exp2(-h/halfLife.Hours()), math.Exp(-h/decay)
	r.Lost, r.Followed = r.Lost*fade, r.Followed*fade
	r.Hours = r.Hours*fade + float64(nodes)*h
	r.Risk = r.Risk*fade + float64(nodes)*r.Share*(1-left)*decay
	r.Share *= left
}

// Lose adds that nodes, a share of those of the offering, were lost, and what Share was before they and
// those lost with them.
func (r *Rate) Lose(p Prior, nodes, share, before float64) {
	base, jump := r.rates(p)
	r.Lost += nodes
	r.Followed += nodes * jump * before / (base + jump*before)
	r.Share += share
}

// Odds is the probability that a node that stands now is lost within the time.
func (r *Rate) Odds(p Prior, within time.Duration) float64 {
	base, jump := r.rates(p)
	h, decay := within.Hours(), p.Decay.Hours()
	return 1 - math.Exp(-base*h-jump*r.Share*decay*(1-math.Exp(-h/decay)))
}

// rates are base and jump, in losses per node-hour.
func (r *Rate) rates(p Prior) (base, jump float64) {
	return (r.Lost - r.Followed + p.BaseWeight) / (r.Hours + p.BaseWeight/p.Base), (r.Followed + p.JumpWeight) / (r.Risk + p.JumpWeight/p.Jump)
}
