package turns

import (
	"fmt"
	"strconv"
	"strings"
)

// Concurrency is how many nodes of a pool may be replaced at the same time. The zero value
// is one.
type Concurrency struct{ number, percent int }

// ParseConcurrency reads a number such as "2", or a percentage of the pool's nodes such as
// "10%".
func ParseConcurrency(text string) (Concurrency, error) {
	digits, percentage := strings.CutSuffix(text, "%")
	n, err := strconv.Atoi(digits)
	switch {
	case err != nil || n < 1 || digits != strconv.Itoa(n):
		return Concurrency{}, fmt.Errorf("%q: want a number from 1, or a percentage of the pool's nodes, such as 10%%", text)
	case percentage && n > 100:
		return Concurrency{}, fmt.Errorf("%q: want 100%% at most", text)
	case percentage:
		return Concurrency{percent: n}, nil
	}
	return Concurrency{number: n}, nil
}

// Of is the number for a pool of that many nodes: a percentage is rounded down, but at least
// one node is always allowed.
func (c Concurrency) Of(nodes int) int { return max(1, c.number, nodes*c.percent/100) }
