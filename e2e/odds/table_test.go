package odds

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// page reads what the manual says, with single spaces.
func page(t *testing.T) (text, words string) {
	t.Helper()
	read, err := os.ReadFile(filepath.Join("..", "..", "deploy", "docs", "odds.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(read), strings.Join(strings.Fields(string(read)), " ")
}

// The manual says what the evaluation shows: act did not earn its place, so it is not part of the
// product. What was fitted is taken as it is: BenchmarkOdds fits it again.
func TestEvaluation(t *testing.T) {
	recorded, invented := recordedTraces(t), madeUpTraces()
	results := judge(append(recorded, invented...))
	text, words := page(t)
	for _, table := range [][]string{calibrationTable(recorded), verdictTable(recorded, results)} {
		if whole := strings.Join(table, "\n"); !strings.Contains(text, whole+"\n") {
			t.Errorf("deploy/docs/odds.md does not say:\n%s", whole)
		}
	}
	saved, later, more := newSpan(), newSpan(), newSpan()
	for _, r := range results[:len(recorded)] {
		if r.gain() >= wantGain {
			t.Errorf("%s: gains %.2f of what the oracle gains: act might have earned its place", r.trace.name, r.gain())
		}
		saved.add(1 - r.oracle.unavailable/r.off.unavailable)
		calmer := replayWith(2*calm, r.trace, foundWithout(r.trace).prior, slow, policy{})
		later.add(1 - calmer.unavailable/r.off.unavailable)
		more.add(calmer.fallback/calmer.all - r.off.fallback/r.off.all)
	}
	for _, want := range []string{
		fmt.Sprintf("An oracle that knows each loss saves %v of the unavailable pod-seconds:", saved),
		fmt.Sprintf("`--calm=1h` saves %v of the unavailable pod-seconds, with %v more of the node-minutes on the fallback", later, more),
	} {
		if !strings.Contains(words, want) {
			t.Errorf("deploy/docs/odds.md does not say: %s", want)
		}
	}
	if r := results[len(results)-1]; r.worse() {
		t.Errorf("%s: act makes something worse: %+v", r.trace.name, r)
	}
	if r := compare(recorded[3], found["p3"].prior, fast, found["p3"].slow); r.act != r.off {
		t.Errorf("services that are ready in time are moved ahead: %+v", r)
	}
}

// span is the least and the largest of some shares.
type span struct{ from, to float64 }

func newSpan() *span { return &span{math.Inf(1), math.Inf(-1)} }

func (s *span) add(v float64) { s.from, s.to = min(s.from, v), max(s.to, v) }

func (s *span) String() string { return fmt.Sprintf("%.0f to %.0f%%", 100*s.from, 100*s.to) }

// BenchmarkOdds fits and judges again, prints the tables, and fails if something else is found than
// the tables rest on.
func BenchmarkOdds(b *testing.B) {
	for b.Loop() {
		recorded, invented := recordedTraces(b), madeUpTraces()
		for i, t := range recorded {
			if f := find(without(recorded, i)); f != found[t.name] {
				b.Errorf("found without %s: %+v", t.name, f)
			}
			_, afterwards := choose([]*trace{t}, foundWithout(t).prior, slow)
			fmt.Printf("%s: the best settings known afterwards gain %.0f%% of what the oracle gains for slow services\n", t.name, 100*afterwards)
		}
		if f := find(recorded); f != found["none"] {
			b.Errorf("found with all: %+v", f)
		}
		for _, t := range append(recorded, invented...) {
			f := foundWithout(t)
			r := compare(t, f.prior, medium, f.medium)
			fmt.Printf("%s: services ready after %s gain %.0f%%, with %.0f%% more node-minutes\n", t.name, medium, 100*r.gain(), 100*r.extra())
		}
		for _, table := range [][]string{calibrationTable(recorded), verdictTable(recorded, judge(append(recorded, invented...)))} {
			fmt.Println("\n" + strings.Join(table, "\n"))
		}
	}
}

func calibrationTable(recorded []*trace) []string {
	head, rule, rows := "| given |", "|---|", []string{"| lost in 5 min |", "| lost in 30 min |", "| 5 min, `status` |", "| 30 min, `status` |"}
	sums := make([][]bin, len(rows))
	for i := range sums {
		sums[i] = make([]bin, len(bins))
	}
	for _, t := range recorded {
		for h := range horizons {
			calibration(t, foundWithout(t).prior.forecast(t), h, sums[h])
			calibration(t, foundWithout(t).prior.shown().forecast(t), h, sums[len(horizons)+h])
		}
	}
	for i, from := range bins {
		rule += "---|"
		if i+1 < len(bins) {
			head += fmt.Sprintf(" %.0f–%.0f%% |", 100*from, 100*bins[i+1])
		} else {
			head += fmt.Sprintf(" over %.0f%% |", 100*from)
		}
		for r := range rows {
			cell := " |"
			if odds, lost := sums[r][i].means(); !math.IsNaN(odds) {
				cell = fmt.Sprintf(" %.0f%% of %.0f |", 100*lost, sums[r][i].nodes)
			}
			rows[r] += cell
		}
	}
	return append([]string{head, rule}, rows...)
}

// judge compares the policies for slow services, each trace by what was found on others.
func judge(all []*trace) (results []result) {
	for _, t := range all {
		f := foundWithout(t)
		results = append(results, compare(t, f.prior, slow, f.slow))
	}
	return results
}

// verdictTable has, of each trace, what acting on the odds does, and Brier scores: of the odds, of
// those that status shows, of the other traces' mean, and of the trace's own mean.
func verdictTable(recorded []*trace, results []result) []string {
	rows := []string{
		"| trace | Brier score, 30 min (0 is perfect): these odds; `status`; mean of the other traces; its own | unavailable pod-seconds for each pod and day | gained, of the oracle's gain | more node-minutes on the fallback | bought in vain | moves for each pod and day |",
		"|---|---|---|---|---|---|---|",
	}
	for i, r := range results {
		t, others := r.trace, recorded
		if i < len(recorded) {
			others = without(recorded, i)
		}
		var scores []string
		for _, given := range []forecast{foundWithout(t).prior.forecast(t), foundWithout(t).prior.shown().forecast(t), t.constant(constantOdds(others)), t.constant(t.anyMoment())} {
			scores = append(scores, fmt.Sprintf("%.3f", t.brier(given)[1]))
		}
		rows = append(rows, fmt.Sprintf("| %s | %s | %.0f | %.0f%% | %.0f%% | %.0f%% | %.1f → %.1f |", t.name, strings.Join(scores, "; "),
			r.off.unavailable/r.off.podDays, 100*r.gain(), 100*r.extra(), 100*r.act.vain/r.off.all, r.off.moves/r.off.podDays, r.act.moves/r.off.podDays))
	}
	return rows
}

// Two of four nodes are lost after an hour, and the other two five minutes later or not at all. A pod
// needs 650 s on another node, serves for 80 after its notice, and is away for 600 when it is given back.
func TestReplay(t *testing.T) {
	prior := Prior{Base: 0.01, Jump: 20, BaseWeight: 100, JumpWeight: 100, Decay: 20 * time.Minute}
	acts := policy{act, 0.2, 1, 1}
	at := func(d time.Duration) time.Time { return epoch.Add(d) }
	for name, tt := range map[string]struct {
		then        int // nodes after five minutes more
		policy      policy
		unavailable float64 // seconds of all pods
		moves       float64
		vain        bool
	}{
		"off":                {0, policy{}, 4 * 570, 4, false},
		"oracle":             {0, policy{kind: oracle}, 0, 4, false},
		"act":                {0, acts, 2*570 + 2*270, 4, false},
		"act with one node":  {0, policy{act, 0.2, 0.25, 1}, 3*570 + 270, 4, false},
		"off, no more":       {2, policy{}, 2 * 570, 2, false},
		"oracle, no more":    {2, policy{kind: oracle}, 0, 2, false},
		"act in vain":        {2, acts, 2*570 + 2*600, 2 + 2 + 2, true},
		"odds are never met": {2, policy{act, 1, 1, 1}, 2 * 570, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			trace := &trace{target: 4}
			trace.add(epoch, 4)
			trace.add(at(time.Hour), 2)
			trace.add(at(65*time.Minute), tt.then)
			trace.add(at(5*time.Hour), tt.then)
			trace.finish()
			c := replay(trace, prior, slow, tt.policy)
			if c.unavailable != runs*tt.unavailable || c.moves != runs*tt.moves || c.vain > 0 != tt.vain {
				t.Errorf("%+v, want %v pod-seconds, %v moves, some in vain: %t", c, runs*tt.unavailable, runs*tt.moves, tt.vain)
			}
		})
	}
}

// If every alarm is false, all the time, act stays within its caps: a quarter of the nodes at a time,
// and a tenth of the fleet's node-hours.
func TestCapsHoldWhenEveryAlarmIsFalse(t *testing.T) {
	alarm := Prior{Base: 10, Jump: 1, BaseWeight: 1e9, JumpWeight: 1, Decay: 20 * time.Minute}
	calm := &trace{target: 20}
	calm.add(epoch, calm.target)
	calm.add(epoch.Add(48*time.Hour), calm.target)
	calm.finish()
	for name, ready := range map[string]time.Duration{"nodes without pods": medium, "pods": slow} {
		p := policy{act, 0.1, 0.25, 0.1}
		f, most, sum := newFleet(calm, alarm, ready, p, 0), 0, 0
		for f.now = epoch; f.now.Before(calm.end); f.now = f.now.Add(tick) {
			f.pass()
			ahead := len(f.standby)
			for _, s := range f.slots {
				if s.ahead {
					ahead++
				}
			}
			most, sum = max(most, ahead), sum+ahead
		}
		minutes, limit := float64(sum)*tick.Minutes(), p.hours*float64(calm.target)*calm.end.Sub(epoch).Minutes()
		if most != 5 || minutes < limit/2 || minutes > 1.01*limit { // they go back one a minute
			t.Errorf("%s: at most %d ahead, want 5 of 20; for %.0f node-minutes, want some, and %.0f at most", name, most, minutes, limit)
		}
	}
}
