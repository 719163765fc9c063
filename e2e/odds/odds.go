// Package odds estimates how likely spot nodes of an offering are to be lost soon. Its tests evaluate
// whether launching capacity ahead of such losses pays: on recorded traces to which it was not fitted,
// and on made-up ones. It does not, so the package is no part of the product, which shows the simpler
// odds of package offerings. BenchmarkReplay compares the simulation that this rests on with the daemon
// and Karpenter.
//
// The model: a node of the offering is lost at a rate of base + jump·x. When a share of the nodes is
// lost, x grows by that share, and it decays with time. Base and jump begin with a [Prior], which
// gives way to the offering's own losses and node-hours (gamma-Poisson); these count half after a
// day. Each loss is divided between base and jump by what each contributed to the rate at that moment.
package odds

import (
	"math"
	"time"
)

// halfLife is after how long an offering's own history counts half, as in the memory of lost offerings.
const halfLife = 24 * time.Hour

// Prior is what is assumed of an offering without a history.
type Prior struct {
	Base       float64       // losses per node-hour while nothing has happened of late
	Jump       float64       // losses per node-hour on top, right after all nodes were lost at once
	BaseWeight float64       // losses of its own after which history counts as much as Base
	JumpWeight float64       // the same for Jump
	Decay      time.Duration // after which the jump is at 1/e
}

// Rate is what is known of the losses of one offering. It is not safe for concurrent use.
type Rate struct {
	prior          Prior
	at             time.Time
	x              float64 // what is left of the shares that were lost
	lost, hours    float64 // losses that the base explains, and node-hours
	followed, risk float64 // losses that the jump explains, and the integral of x over node-hours
}

// New returns the rate of an offering that nothing is known about.
func New(prior Prior, at time.Time) *Rate { return &Rate{prior: prior, at: at} }

// Stood adds that so many nodes have stood until then, since the call before.
func (r *Rate) Stood(nodes int, until time.Time) {
	dt := until.Sub(r.at)
	if dt <= 0 {
		return
	}
	fade, left := math.Exp2(-dt.Hours()/halfLife.Hours()), math.Exp(-dt.Hours()/r.prior.Decay.Hours())
	r.lost, r.hours, r.followed, r.risk = r.lost*fade, r.hours*fade, r.followed*fade, r.risk*fade
	r.hours += float64(nodes) * dt.Hours()
	r.risk += float64(nodes) * r.x * (1 - left) * r.prior.Decay.Hours()
	r.x *= left
	r.at = until
}

// Lost adds that so many nodes of all were lost at once, at the time of the last call of Stood.
func (r *Rate) Lost(nodes, of int) {
	base, jump := r.rates()
	follows := jump * r.x / (base + jump*r.x)
	r.lost += float64(nodes) * (1 - follows)
	r.followed += float64(nodes) * follows
	r.x += float64(nodes) / float64(of)
}

// Odds is the probability that a node that stands now is lost within the time.
func (r *Rate) Odds(within time.Duration) float64 {
	base, jump := r.rates()
	h, decay := within.Hours(), r.prior.Decay.Hours()
	return 1 - math.Exp(-base*h-jump*r.x*decay*(1-math.Exp(-h/decay)))
}

// rates are base and jump, in losses per node-hour.
func (r *Rate) rates() (base, jump float64) {
	p := r.prior
	return (r.lost + p.BaseWeight) / (r.hours + p.BaseWeight/p.Base), (r.followed + p.JumpWeight) / (r.risk + p.JumpWeight/p.Jump)
}
