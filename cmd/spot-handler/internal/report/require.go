package report

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Requirements are what an interruption has to end like, as `left=0,dip=0,slack=20s` says.
type Requirements []Requirement

var _ pflag.Value = (*Requirements)(nil)

// Requirement limits one figure of a score.
type Requirement struct {
	Name  string
	Limit float64 // pods, pod-seconds or seconds
}

// Verdict says whether a requirement was met.
type Verdict struct {
	Required string `json:"required"`
	Got      string `json:"got"`
	Met      bool   `json:"met"`
}

// figure is something that can be required.
type figure struct {
	// of returns the figure; false if it is not known.
	of    func(Score) (float64, bool)
	least bool   // the limit is one from below
	time  bool   // the limit is a duration
	unit  string // of what is told
}

func pods(of func(Score) int) figure {
	return figure{of: func(s Score) (float64, bool) { return float64(of(s)), true }, unit: "pods"}
}

var figures = map[string]figure{
	"left":        pods(func(s Score) int { return s.Left + s.Open }),
	"forced":      pods(func(s Score) int { return s.Forced }),
	"truncated":   pods(func(s Score) int { return s.Truncated }),
	"dip":         pods(func(s Score) int { return s.Dip }),
	"unavailable": {of: func(s Score) (float64, bool) { return s.UnavailableSeconds, true }, time: true, unit: "pod-seconds"},
	"slack": {of: func(s Score) (float64, bool) {
		if s.SlackSeconds == nil {
			return 0, false
		}
		return *s.SlackSeconds, true
	}, least: true, time: true, unit: "s"},
	"misses": {of: func(s Score) (float64, bool) {
		if s.Forecast == nil {
			return 0, false
		}
		return float64(len(s.Forecast.Misses)), true
	}, unit: "pods"},
}

// Figures are the names of what can be required.
func Figures() []string { return slices.Sorted(maps.Keys(figures)) }

// Set takes the requirements from a text such as left=0,slack=20s; it replaces earlier ones.
func (r *Requirements) Set(text string) error {
	*r = nil
	for part := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		f, known := figures[name]
		if !ok || !known {
			return fmt.Errorf("%q: want NAME=LIMIT, with NAME one of %s", part, strings.Join(Figures(), ", "))
		}
		limit, err := f.parse(value)
		if err != nil {
			return fmt.Errorf("%q: %w", part, err)
		}
		*r = append(*r, Requirement{name, limit})
	}
	return nil
}

func (f figure) parse(value string) (float64, error) {
	if !f.time {
		n, err := strconv.ParseUint(value, 10, 31)
		if err != nil {
			return 0, fmt.Errorf("want a number of pods, such as 0")
		}
		return float64(n), nil
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("want a duration, such as 20s")
	}
	return d.Seconds(), nil
}

// String is the text that Set takes.
func (r *Requirements) String() string {
	parts := make([]string, len(*r))
	for i, q := range *r {
		parts[i] = q.String()
	}
	return strings.Join(parts, ",")
}

// Type is what --help calls the value.
func (*Requirements) Type() string { return "requirements" }

func (q Requirement) String() string {
	if figures[q.Name].time {
		return q.Name + "=" + time.Duration(q.Limit*float64(time.Second)).String()
	}
	return fmt.Sprintf("%s=%.0f", q.Name, q.Limit)
}

func (r Requirements) judge(s Score) []Verdict {
	var list []Verdict
	for _, q := range r {
		list = append(list, q.judge(s))
	}
	return list
}

func (q Requirement) judge(s Score) Verdict {
	f := figures[q.Name]
	got, known := f.of(s)
	v := Verdict{Required: q.String(), Got: "not known", Met: known && got <= q.Limit}
	if f.least {
		v.Met = known && got >= q.Limit
	}
	if known {
		v.Got = strconv.FormatFloat(got, 'f', -1, 64) + " " + f.unit
		if f.time {
			v.Got = fmt.Sprintf("%.1f %s", got, f.unit)
		}
	}
	return v
}
