// Package odds evaluates whether launching capacity ahead of losses pays, by the odds of package
// offerings: on recorded traces to which they were not fitted, and on made-up ones. It does not, so the
// product only shows them. BenchmarkReplay compares the simulation that this rests on with the daemon and
// Karpenter.
package odds

import (
	"time"

	"spot-handler/handler/offerings"
)

// Prior is what is assumed of an offering without a history.
type Prior offerings.Prior

// Rate is what is known of the losses of one offering, as of a time. It is not safe for concurrent use.
type Rate struct {
	known offerings.Rate
	prior offerings.Prior
	at    time.Time
}

// New returns the rate of an offering that nothing is known about.
func New(prior Prior, at time.Time) *Rate { return &Rate{prior: offerings.Prior(prior), at: at} }

// Stood adds that so many nodes have stood until then, since the call before.
func (r *Rate) Stood(nodes int, until time.Time) {
	r.known.Stood(r.prior, nodes, until.Sub(r.at))
	r.at = until
}

// Lost adds that so many nodes of all were lost at once, at the time of the last call of Stood.
func (r *Rate) Lost(nodes, of int) {
	r.known.Lose(r.prior, float64(nodes), float64(nodes)/float64(of), r.known.Share)
}

// Odds is the probability that a node that stands now is lost within the time.
func (r *Rate) Odds(within time.Duration) float64 { return r.known.Odds(r.prior, within) }
