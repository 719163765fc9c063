package picture

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTicks(t *testing.T) {
	for _, test := range []struct {
		from, to float64
		most     int
		want     []float64
	}{
		{-6, 126, 10, []float64{0, 20, 40, 60, 80, 100, 120}},
		{16, 38, 8, []float64{20, 25, 30, 35}},
		{0, 1080, 8, []float64{0, 200, 400, 600, 800, 1000}},
		{0, 0.75, 8, []float64{0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7}},
		{-1, 1, 3, []float64{-1, 0, 1}},
		{3, 3, 8, nil},
		{0, math.NaN(), 8, nil},
	} {
		if diff := cmp.Diff(test.want, ticks(test.from, test.to, test.most)); diff != "" {
			t.Errorf("ticks of %v to %v: %s", test.from, test.to, diff)
		}
	}
}

// TestTicksOfAnyAxis holds for axes of all lengths what a reader expects of one.
func TestTicksOfAnyAxis(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		length := math.Pow(10, 9*random.Float64()-3)
		from := (random.Float64() - 0.5) * 4 * length
		to, most := from+length, 3+random.IntN(10)
		at := ticks(from, to, most)
		if len(at) > most || len(at) < 1 || most >= 5 && len(at) < 2 {
			t.Fatalf("%v to %v has %d ticks, %d at most: %v", from, to, len(at), most, at)
		}
		texts := map[string]bool{}
		for i, v := range at {
			if v < from-1e-6*length || v > to+1e-6*length {
				t.Fatalf("%v to %v has a tick outside: %v", from, to, at)
			}
			if i > 1 && math.Abs((v-at[i-1])-(at[1]-at[0])) > 1e-6*length {
				t.Fatalf("%v to %v has unequal steps: %v", from, to, at)
			}
			texts[spoken(v)] = true
		}
		if !slices.IsSorted(at) || len(texts) != len(at) {
			t.Fatalf("%v to %v has ticks that are not in order or read the same: %v", from, to, at)
		}
		if len(at) > 1 && !round(at[1]-at[0]) {
			t.Fatalf("%v to %v has steps of %v", from, to, at[1]-at[0])
		}
	}
}

// round reports whether a step is 1, 2 or 5 times a power of ten.
func round(step float64) bool {
	text := strconv.FormatFloat(step, 'e', 6, 64)
	return slices.Contains([]string{"1.000000", "2.000000", "5.000000"}, text[:8])
}

func TestSpoken(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", 0.3: "0.3", -1200: "−1,200"} {
		if got := spoken(v); got != want {
			t.Errorf("%v is written %q, want %q", v, got, want)
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", -0.001: "0", 12: "12", 120: "120", 1.5: "1.5", 1.239: "1.24"} {
		if got := number(v); got != want {
			t.Errorf("%v is written %q, want %q", v, got, want)
		}
	}
}
