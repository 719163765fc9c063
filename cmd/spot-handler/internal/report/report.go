// Package report tells how interruptions went: it scores a recording, against a forecast where
// there is one, and draws both as a page that needs nothing but a browser.
//
// Everything here is pure: a recording and a forecast in, figures, lines and a page out. Names
// and reasons come from the cluster, where anybody may have written them.
package report

import (
	"time"

	"spot-handler/cmd/spot-handler/internal/observe"
	"spot-handler/cmd/spot-handler/internal/plan"
)

// Report is all that is told of interruptions that are over. Programs read it as JSON.
type Report struct {
	// Title is what the page is called; empty is by what happened.
	Title     string            `json:"title,omitempty"`
	Score     Score             `json:"score"`
	Recording observe.Recording `json:"recording"`
	Forecast  *plan.Forecast    `json:"forecast,omitempty"`
}

// Of makes a report of a recording, and of what had been forecast, which may be nil.
func Of(r observe.Recording, f *plan.Forecast) Report {
	return Report{Score: score(r, f), Recording: r, Forecast: f}
}

// Require notes what was required, and whether it was so.
func (r *Report) Require(of Requirements) { r.Score.Required = of.judge(r.Score) }

// Broken are the requirements that were not met, each in a clause.
func (r *Report) Broken() []string {
	var list []string
	for _, v := range r.Score.Required {
		if !v.Met {
			list = append(list, v.Required+": "+v.Got)
		}
	}
	return list
}

// since is how many seconds after the first notice something was.
func since(begin time.Time, at *time.Time) *plan.Seconds {
	if at == nil {
		return nil
	}
	s := plan.Seconds(at.Sub(begin).Seconds())
	return &s
}
