package odds

import (
	"embed"
	"encoding/csv"
	"io"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"
)

// Each line of a trace is a moment and the number of instances that ran from then on. A fall is
// instances that EC2 took back, a rise is instances that it granted.
//
//   - bamboo-*.csv: github.com/uclasystem/bamboo, doc/data, MIT (LICENSE.bamboo), 2020
//   - parcae-p3.csv: github.com/JF-D/Parcae, aws/traces, MIT (LICENSE.parcae)
//
//go:embed testdata
var testdata embed.FS

// recorded are the traces, with the number of instances that was asked for.
var recorded = []struct {
	name, file string
	target     int
	unit       time.Duration // of the time column
}{
	{"g4dn us-east-1c", "bamboo-g4dn-xlarge-us-east-1c-2020-11-20-1930-to-2020-11-21-2200.csv", 12, time.Second},
	{"g4dn us-east-1d", "bamboo-g4dn-xlarge-us-east-1d-2020-11-23-1730-to-2020-11-24-1530.csv", 12, time.Second},
	{"p2, several zones", "bamboo-p2-xlarge-2020-11-20-to-2020-11-23.csv", 16, time.Hour},
	{"p3", "parcae-p3.csv", 32, time.Millisecond},
}

// epoch is when every trace begins: with its first instance.
var epoch = time.Date(2020, 11, 20, 0, 0, 0, 0, time.UTC)

// trace is how many instances of an offering ran. A loss counts from its notice on, two minutes
// before the instance is gone.
type trace struct {
	name   string
	target int // instances asked for
	steps  []step
	end    time.Time
	known  []outcome // what became of the nodes of each minute
}

// step is a moment at which the number of instances changed.
type step struct {
	at       time.Time
	lost, of int // instances at once; lost is 0 for a rise
	now      int // instances from then on
}

func recordedTraces(tb testing.TB) []*trace {
	tb.Helper()
	var all []*trace
	for _, r := range recorded {
		f, err := testdata.Open("testdata/" + r.file)
		if err != nil {
			tb.Fatal(err)
		}
		defer f.Close()
		all = append(all, &trace{name: r.name, target: r.target})
		t := all[len(all)-1]
		var began float64
		for lines := csv.NewReader(f); ; {
			line, err := lines.Read()
			if err == io.EOF {
				break
			}
			if err != nil {
				tb.Fatal(err)
			}
			at, err := strconv.ParseFloat(line[0], 64)
			if err != nil {
				tb.Fatal(err)
			}
			now, err := strconv.Atoi(line[1])
			if err != nil {
				tb.Fatal(err)
			}
			if len(t.steps) == 0 && now == 0 {
				began = at // the first instance comes at the last of these
				continue
			}
			t.add(epoch.Add(time.Duration((at-began)*float64(r.unit))), now)
		}
		t.finish()
	}
	return all
}

// add has so many instances run from then on. What is lost at one moment is one loss.
func (t *trace) add(at time.Time, now int) {
	s := step{at: at, now: now}
	if n := len(t.steps); n > 0 {
		last := &t.steps[n-1]
		if s.of = last.now; now < s.of {
			s.lost = s.of - now
			if last.lost > 0 && last.at.Equal(at) {
				last.lost, last.now = last.lost+s.lost, now
				return
			}
		}
	}
	t.steps = append(t.steps, s)
}

func (t *trace) finish() {
	t.end = t.steps[len(t.steps)-1].at
	t.known = t.outcomes()
}

// madeUp is a trace whose nodes are each lost at the same rate per hour, whatever else is lost, and
// granted again ten minutes later.
func madeUp(name string, target int, rate float64, length time.Duration, seed uint64) *trace {
	t := &trace{name: name, target: target}
	random := rand.New(rand.NewPCG(seed, 0))
	now, at := target, epoch
	var back []time.Time
	for end := epoch.Add(length); ; {
		t.add(at, now)
		next := end
		if now > 0 {
			next = at.Add(time.Duration(random.ExpFloat64() / (float64(now) * rate) * float64(time.Hour)))
		}
		switch {
		case len(back) > 0 && back[0].Before(next) && back[0].Before(end):
			at, back, now = back[0], back[1:], now+1
		case next.Before(end):
			at, now = next, now-1
			back = append(back, at.Add(10*time.Minute))
		default:
			t.finish()
			t.end = end
			t.known = t.outcomes()
			return t
		}
	}
}

func madeUpTraces() []*trace {
	return []*trace{
		madeUp("made up, 0.6/h", 16, 0.6, 24*time.Hour, 1),
		madeUp("made up, 0.1/h", 16, 0.1, 72*time.Hour, 2),
		madeUp("made up, calm", 16, 0.002, 7*24*time.Hour, 3),
	}
}
