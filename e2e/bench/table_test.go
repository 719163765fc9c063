package bench

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
)

// row is one figure, with the values of all rounds.
type row struct {
	what   string
	unit   string
	values []float64

	// limit is what this machine can do at best, measured in the same rounds: the
	// ratio is the median of each round's own. Without it the ratio is to the goal.
	limit []float64
	peer  bool // the limit is no limit but what another program does

	// goal is a bound of the value, or of the ratio to the limit with ofLimit. Zero:
	// the figure only explains others.
	goal    float64
	ofLimit bool
	none    bool // the goal is that there is none

	text string // instead of values
	// atLeast: the goal is a lower bound.
	atLeast bool
}

var table struct {
	mu   sync.Mutex
	rows []row
}

// report adds a figure to the table.
func report(r row) {
	table.mu.Lock()
	defer table.mu.Unlock()
	table.rows = append(table.rows, r)
}

func (r row) ratios() []float64 {
	var ratios []float64
	for i, v := range r.values {
		switch {
		case r.limit != nil && r.limit[i] > 0:
			ratios = append(ratios, v/r.limit[i])
		case r.goal > 0:
			ratios = append(ratios, v/r.goal)
		}
	}
	return ratios
}

func (r row) cells() []string {
	if r.text != "" {
		return []string{r.what, r.text, "", "", "", "", ""}
	}
	cells := []string{r.what, r.number(median(r.values)), r.spread(), "", "", "", ""}
	if r.limit != nil {
		cells[3] = r.number(median(r.limit))
	}
	ratios := r.ratios()
	if len(ratios) > 0 {
		cells[4] = fmt.Sprintf("%.2f of goal", median(ratios))
		if r.limit != nil {
			cells[4] = fmt.Sprintf("%.2f of limit", median(ratios))
			if r.peer {
				cells[4] = fmt.Sprintf("%.2f of peer", median(ratios))
			}
		}
	}
	if r.none {
		cells[5], cells[6] = "none", "missed"
		if slices.Max(r.values) == 0 {
			cells[6] = "reached"
		}
	}
	if r.goal > 0 {
		reached, bound := median(r.values), "≤ "
		if r.atLeast {
			bound = "≥ "
		}
		cells[5] = bound + r.number(r.goal)
		if r.ofLimit {
			reached = median(ratios)
			cells[5] = fmt.Sprintf("%s%.2f of limit", bound, r.goal)
		}
		cells[6] = "missed"
		if r.atLeast && reached >= r.goal || !r.atLeast && reached <= r.goal {
			cells[6] = "reached"
		}
	}
	return cells
}

func (r row) number(v float64) string { return strings.TrimSpace(fmt.Sprintf("%.2f %s", v, r.unit)) }

func (r row) spread() string {
	if len(r.values) < 2 {
		return ""
	}
	return fmt.Sprintf("%.2f to %.2f", slices.Min(r.values), slices.Max(r.values))
}

// printTable prints all figures, and on what machine they were measured.
func printTable(w io.Writer, loadBefore string) {
	if len(table.rows) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%d cores, %s, %s/%s, %s; load average %s before, %s after\n", runtime.NumCPU(), processor(),
		runtime.GOOS, runtime.GOARCH, runtime.Version(), loadBefore, loadAverage())
	fmt.Fprintf(w, "each figure is the median of its rounds; the control plane and the benchmark run on the same cores\n\n")
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "figure\tvalue\trounds\tlimit or peer\tratio\tgoal\t")
	for _, r := range table.rows {
		fmt.Fprintln(t, strings.Join(r.cells(), "\t"))
	}
	t.Flush()
	fmt.Fprintln(w)
}

// processor is the model's name, as Linux has it.
func processor() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}

// loadAverage is that of the last minute.
func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, ok := strings.Cut(string(text), " ")
	if !ok {
		return "unknown"
	}
	return first
}

func median(values []float64) float64 { return quantile(values, 0.5) }

// quantile is the smallest value that at least the share q of all does not exceed.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	i := int(q * float64(len(sorted)))
	if float64(i) == q*float64(len(sorted)) && i > 0 {
		i--
	}
	return sorted[min(i, len(sorted)-1)]
}

// figures returns the same figure from each round.
func figures[T any](rounds []T, of func(T) float64) (values []float64) {
	for _, r := range rounds {
		values = append(values, of(r))
	}
	return values
}
