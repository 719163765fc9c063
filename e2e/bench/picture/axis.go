package picture

import (
	"math"
	"strconv"
	"strings"
)

// ticks are the round values of an axis: as many as fit, but most at the highest, all
// the same step of 1, 2 or 5 times a power of ten apart.
func ticks(from, to float64, most int) []float64 {
	if !(to > from) || most < 1 {
		return nil
	}
	for power := math.Floor(math.Log10((to-from)/float64(most))) - 1; ; power++ {
		for _, factor := range []float64{1, 2, 5} {
			// Ticks are whole multiples, as added steps add up their errors, too.
			first, last := math.Ceil(in(from, factor, power)-tiny), math.Floor(in(to, factor, power)+tiny)
			if int(last-first)+1 > most {
				continue
			}
			var at []float64
			for i := first; i <= last; i++ {
				at = append(at, times(i*factor, power)+0) // no -0
			}
			return at
		}
	}
}

// tiny is how far beside a tick the end of an axis may lie and still have it.
const tiny = 1e-9

// in is how many steps a value is.
func in(v, factor, power float64) float64 { return times(v, -power) / factor }

// times multiplies by a power of ten. A division by ten is exact to the last digit where a
// multiplication by 0.1 is not.
func times(v, power float64) float64 {
	if power < 0 {
		return v / math.Pow(10, -power)
	}
	return v * math.Pow(10, power)
}

// number writes a value with at most two decimals, which is finer than a screen.
func number(v float64) string {
	s := strconv.FormatFloat(v, 'f', 2, 64)
	s = strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
	if s == "-0" {
		return "0"
	}
	return s
}

// spoken writes a value as people do: with commas between thousands.
func spoken(v float64) string {
	s := strconv.FormatFloat(v, 'f', -1, 64)
	sign, digits := "", s
	if v < 0 {
		sign, digits = "−", s[1:]
	}
	whole, rest, _ := strings.Cut(digits, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if rest != "" {
		whole += "." + rest
	}
	return sign + whole
}
